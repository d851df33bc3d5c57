package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
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
