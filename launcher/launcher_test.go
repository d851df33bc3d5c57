package launcher

import (
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

func TestRequest_ParseEnv(t *testing.T) {
	for _, tt := range []struct {
		env     map[string]string
		dir     string
		timeout time.Duration
	}{
		{nil, "", 0},
		{
			map[string]string{"KERNEL_WORKING_DIR": "/home/ann", "KERNEL_LAUNCH_TIMEOUT": "39.5"},
			"/home/ann", 39500 * time.Millisecond,
		},
		{map[string]string{"KERNEL_WORKING_DIR": "notebooks", "KERNEL_LAUNCH_TIMEOUT": ""}, "", 0},
		{map[string]string{"KERNEL_LAUNCH_TIMEOUT": "86400"}, "", 24 * time.Hour},
	} {
		r := Request{Env: tt.env, WorkingDir: "/before", LaunchTimeout: time.Hour}
		if err := r.ParseEnv(); err != nil || r.WorkingDir != tt.dir || r.LaunchTimeout != tt.timeout {
			t.Errorf("%v: got %q and %s, %v; want %q and %s", tt.env, r.WorkingDir, r.LaunchTimeout, err, tt.dir, tt.timeout)
		}
	}
	folder := t.TempDir()
	for id, want := range map[string]string{files.FolderID(folder): folder, files.FolderID("/"): "", "1:x": ""} {
		r := Request{Env: map[string]string{"KERNEL_WORKING_DIR": folder, "KERNEL_WORKING_DIR_ID": id}}
		if err := r.ParseEnv(); err != nil || r.WorkingDir != want {
			t.Errorf("the folder %s: got %q, %v; want %q", id, r.WorkingDir, err, want)
		}
	}
	for _, bad := range []string{"0", "-1", "NaN", "Inf", "1e9", "86400.1", "soon", " 40"} {
		r := Request{Env: map[string]string{"KERNEL_LAUNCH_TIMEOUT": bad}}
		const want = "KERNEL_LAUNCH_TIMEOUT is not a number of seconds up to 86400"
		if err := r.ParseEnv(); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", bad, err, want)
		}
	}
}
