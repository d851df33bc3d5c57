package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
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

// TestCluster_PodsMetadata: the client for metadata gives what the other client gives.
func TestCluster_PodsMetadata(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7",
		Labels: map[string]string{"l": "x"}}}
	c := fake.NewSimpleClientset(pod)
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: pod.ObjectMeta})
	for _, cluster := range []*Cluster{{Client: c}, {Client: c, Metadata: client}} {
		listed, err := cluster.PodsMetadata(t.Context(), "ns", metav1.ListOptions{LabelSelector: "l=x"})
		if err != nil || len(listed) != 1 || listed[0].UID != pod.UID || listed[0].ResourceVersion != pod.ResourceVersion {
			t.Errorf("%+v, %v", listed, err)
		}
	}
}
