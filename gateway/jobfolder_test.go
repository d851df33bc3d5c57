package gateway

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// TestJobs_Folder: gateways with one folder have the same jobs, and store none of them with the launcher.
func TestJobs_Folder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	with := func(o *Options) { o.Jobs.Dir = dir }
	a, b := startGateway(t, with), startGateway(t, with)
	notebook := `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}`
	made := decode[jobs.Job](t, a.do("POST", "/api/jobs", `{"kernelspec":"r","notebook":`+notebook+`}`).want(t, 201, ""))
	b.do("GET", "/api/jobs/"+made.ID, "").want(t, 200, `"state":"queued"`)
	if got := b.do("GET", "/api/jobs/"+made.ID+"/notebook?source=1", "").want(t, 200, ""); got.body != notebook {
		t.Errorf("the notebook is %q", got.body)
	}
	b.do("POST", "/api/jobs/"+made.ID+"/stop", "").want(t, 202, "")
	a.do("DELETE", "/api/jobs/"+made.ID, "").want(t, 204, "")
	if left, err := os.ReadDir(filepath.Join(dir, "jobs")); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	for _, kind := range []string{"jobs", "job-notebooks"} {
		if ids, err := a.fake.RecordIDs(t.Context(), kind); err != nil || len(ids) != 0 {
			t.Errorf("the launcher has %v, %v", ids, err)
		}
	}
}

// TestJobs_FolderWrong: a folder that cannot be used is an error before the gateway serves.
func TestJobs_FolderWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"jobs": "not an absolute path", file: "the folder of jobs"} {
		o := startGateway(t, nil).opts
		o.Jobs.Dir = dir
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestJobs_WorkingDir: a job's kernel runs in the client's folder, if that is the folder of this path here.
func TestJobs_WorkingDir(t *testing.T) {
	g := startGateway(t, nil)
	dir := t.TempDir()
	const notebook = `,"notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}}`
	for id, want := range map[string]string{files.FolderID(dir): dir, files.FolderID("/"): ""} {
		body := fmt.Sprintf(`{"kernelspec":"r","env":{"KERNEL_NOTE":"x","KERNEL_WORKING_DIR":%q,"KERNEL_WORKING_DIR_ID":%q}%s`,
			dir, id, notebook)
		for _, route := range []string{"/api/jobs", "/api/jobs/definitions"} {
			made := decode[jobs.Job](t, g.do("POST", route, body).want(t, 201, ""))
			if made.WorkingDir != want {
				t.Errorf("%s: the folder %s is %q, want %q", route, id, made.WorkingDir, want)
			}
			if route == "/api/jobs" {
				continue
			}
			changed := decode[jobs.Job](t, g.do("PATCH", route+"/"+made.ID, `{"name":"b"}`).want(t, 200, ""))
			if changed.WorkingDir != want {
				t.Errorf("%s: after a change the folder %s is %q, want %q", route, id, changed.WorkingDir, want)
			}
		}
	}
}
