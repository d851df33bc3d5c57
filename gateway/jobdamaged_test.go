package gateway

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// TestJobs_Damaged: a record that cannot be read is reported as such, and an admin can remove it with its notebook.
func TestJobs_Damaged(t *testing.T) {
	g := startUserGateway(t, nil)
	for _, r := range []struct{ kind, notebooks, path string }{
		{"jobs", "job-notebooks", "/api/jobs/"},
		{"job-definitions", "job-definition-notebooks", "/api/jobs/definitions/"},
	} {
		for kind, id := range map[string]string{r.kind: idA, r.notebooks: idA + "-x"} {
			if _, err := g.fake.CreateRecord(t.Context(), launcher.Record{Kind: kind, ID: id, Data: []byte("{")}); err != nil {
				t.Fatal(err)
			}
		}
		for _, user := range []string{"ann", "root"} {
			if got := g.do("GET", r.path+idA, "", as(user)); got.StatusCode != 409 || !strings.Contains(got.body, "damaged") {
				t.Errorf("%s reads %s: %d %s", user, r.kind, got.StatusCode, got.body)
			}
		}
		if got := g.do("DELETE", r.path+idA, "", as("ann")); got.StatusCode != 409 ||
			!strings.Contains(got.body, "An administrator of the gateway can remove it.") {
			t.Errorf("a user removes one of the %s: %d %s", r.kind, got.StatusCode, got.body)
		}
		if got := g.do("DELETE", r.path+idA, "", as("root")); got.StatusCode != 204 {
			t.Errorf("an admin removes one of the %s: %d %s", r.kind, got.StatusCode, got.body)
		}
		for _, kind := range []string{r.kind, r.notebooks} {
			if ids, err := g.fake.RecordIDs(t.Context(), kind); err != nil || len(ids) != 0 {
				t.Errorf("%s are left: %v, %v", kind, ids, err)
			}
		}
		if got := g.do("GET", r.path+idA, "", as("root")); got.StatusCode != 404 {
			t.Errorf("after the removal of one of the %s: %d %s", r.kind, got.StatusCode, got.body)
		}
	}
	stop := g.do("POST", "/api/jobs/"+idA+"/stop", "", as("ann"))
	if stop.StatusCode != 404 {
		t.Errorf("a stop: %d %s", stop.StatusCode, stop.body)
	}
}
