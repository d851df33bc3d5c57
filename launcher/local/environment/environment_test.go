package environment

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

func TestKernelEnv(t *testing.T) {
	environ := []string{
		"PATH=/bin",
		"HOME=/h",
		"LC_TIME=C",
		"EKG_TOKEN=secret",
		"AWS_SECRET=secret",
		"EKG_KERNEL_ID=outer",
		"JPY_PARENT_PID=1",
		"MINE=m",
		"EG_X=secret",
		"no equals sign",
		"GOMAXPROCS=",
		"GORACE=atexit_sleep_ms=0",
	}
	spec := kernelspecs.Spec{
		Env: map[string]string{"A": "${HOME}/${KERNEL_B}", "PATH": "/spec:${PATH}", "S": "${AWS_SECRET}",
			"E": "${EKG_TOKEN}", "JPY_PARENT_PID": "2", "EKG_Y": "y"},
	}
	client := map[string]string{"KERNEL_B": "b", "A2": "x", "JPY_PARENT_PID": "3", "EKG_KERNEL_ID": "mine"}
	got, err := For(environ, []string{"MINE", "EKG_TOKEN"}, spec, client)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"PATH":     "/spec:/bin",
		"HOME":     "/h",
		"LC_TIME":  "C",
		"MINE":     "m",
		"A":        "/h/b",
		"KERNEL_B": "b",
		"A2":       "x",
		"S":        "${AWS_SECRET}",
		"E":        "${EKG_TOKEN}",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"A=B": "x"}, {"A\x00": "x"}, {"A": "\x00"}} {
		if _, err := For(nil, nil, kernelspecs.Spec{}, bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	ofSupervisor := []string{"GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0", "HOME=/h", "LC_TIME=C", "PATH=/bin"}
	if got := Supervisor(environ); !slices.Equal(got, ofSupervisor) {
		t.Errorf("a supervisor gets %v", got)
	}
	if got := Supervisor([]string{"GOMAXPROCS=4"}); !slices.Equal(got, []string{"GOMAXPROCS=4"}) {
		t.Errorf("a supervisor of an operator with GOMAXPROCS gets %v", got)
	}
	if _, has := got["GOMAXPROCS"]; has {
		t.Error("a kernel gets the GOMAXPROCS of supervisors")
	}
}

func TestWorkingDir(t *testing.T) {
	dir := t.TempDir()
	for want, tries := range map[string][]string{
		dir: {"", "relative", dir + "/none", dir, "/tmp"},
		"/": {"", "/x/y", "/dev/null"},
	} {
		if got := WorkingDir(tries...); got != want {
			t.Errorf("%s: got %q, want %q", strings.Join(tries, ", "), got, want)
		}
	}
}
