package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// Only OpenShift chooses the users of pods. A cluster that does not let the gateway ask is not OpenShift, and one that
// does not answer gives an error.
func TestCluster_ChoosesUsers(t *testing.T) {
	for _, tt := range []struct {
		name    string
		status  int
		chooses bool
		fails   bool
	}{
		{"OpenShift", http.StatusOK, true, false},
		{"another cluster", http.StatusNotFound, false, false},
		{"a cluster that does not say", http.StatusForbidden, false, false},
		{"a broken cluster", http.StatusInternalServerError, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				path = r.URL.Path
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = w.Write([]byte(`{"kind": "APIGroup", "apiVersion": "v1"}`))
			}))
			defer server.Close()
			c, err := newCluster(&rest.Config{Host: server.URL}, "ns", true, requestRate)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			chooses, err := c.ChoosesUsers(ctx)
			if chooses != tt.chooses || (err != nil) != tt.fails {
				t.Errorf("got %v, %v", chooses, err)
			}
			if path != "/apis/security.openshift.io" {
				t.Errorf("asked for %s", path)
			}
		})
	}
}
