package cluster

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// recorder is an Observer that records requests.
type recorder struct {
	launcher.Observer
	mu     sync.Mutex
	events []string
	waits  map[string][]time.Duration // by client
}

func (h *recorder) ClusterRequest(verb, resource string, code int, _ time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf("%s %s %d", verb, resource, code))
}

func (h *recorder) ClusterWait(client string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[string][]time.Duration{}
	}
	h.waits[client] = append(h.waits[client], took)
}

func TestVerbAndResource(t *testing.T) {
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "/api/v1/namespaces/ns/pods?labelSelector=x", "list pods"},
		{"GET", "/api/v1/namespaces/ns/pods?watch=true", "watch pods"},
		{"GET", "/api/v1/namespaces/ns/pods/a", "get pods"},
		{"POST", "/api/v1/namespaces/ns/pods", "create pods"},
		{"PATCH", "/api/v1/namespaces/ns/pods/a", "patch pods"},
		{"DELETE", "/api/v1/namespaces/ns/pods/a", "delete pods"},
		{"POST", "/api/v1/namespaces/ns/pods/a/portforward", "create pods/portforward"},
		{"PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/ekg", "update leases"},
		{"GET", "/api/v1/namespaces/ns", "get namespaces"},
		{"GET", "/k8s/clusters/c-1/api/v1/namespaces/ns/configmaps", "list configmaps"},
		{"GET", "/api/v1/namespaces/ns/secret-of-somebody", "list other"},
		{"GET", "/version", "get other"},
		{"GET", "/api", "get other"},
		{"BREW", "/api/v1/namespaces/ns/pods/a", "other pods"},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.url, nil)
		r.Method = tt.method
		verb, resource := verbAndResource(r)
		if got := verb + " " + resource; got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.url, got, tt.want)
		}
	}
}

// Every request of the real client is counted, also one that is rejected or gets no answer.
func TestRequestCounter(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/gone") {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	c, err := newCluster(&rest.Config{Host: server.URL}, "ns", true, requestRate)
	if err != nil {
		t.Fatal(err)
	}
	h := new(recorder)
	c.Report(h, func() {})
	if _, err := c.Client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("no error")
	}
	if err := c.Client.CoreV1().Secrets("ns").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err == nil {
		t.Error("no error")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := slices.Compact(h.events); !slices.Equal(got, []string{"list pods 403", "delete secrets 0"}) {
		t.Errorf("counted %v", got)
	}
}

// TestLeases_OwnRate: however many requests wait for their turn, those for leases do not. The waits are reported.
func TestLeases_OwnRate(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	c, err := newCluster(&rest.Config{Host: server.URL}, "ns", true, rate{qps: 1, burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := new(recorder)
	c.Report(h, func() {})
	ctx, cancel := context.WithCancel(t.Context())
	var starts sync.WaitGroup
	for range 800 {
		starts.Go(func() {
			if err := c.Client.CoreV1().Pods("ns").Delete(ctx, "a", metav1.DeleteOptions{}); err == nil {
				t.Error("no error")
			}
		})
	}
	for range leaseRate.burst {
		asking, done := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := c.Leases.CoordinationV1().Leases("ns").Get(asking, "ekg", metav1.GetOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("the lease is not read: %v", err)
		}
		done()
	}
	cancel()
	starts.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waits["requests"]) != 800 || slices.Max(h.waits["requests"]) == 0 ||
		len(h.waits["leases"]) != leaseRate.burst {
		t.Errorf("reported are %d and %d waits", len(h.waits["requests"]), len(h.waits["leases"]))
	}
}
