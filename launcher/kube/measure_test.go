package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// recorder is an Observer that records the reported events.
type recorder struct {
	mu     sync.Mutex
	events []string
	waits  map[string][]time.Duration // by client
}

func (h *recorder) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf(format, args...))
}

func (h *recorder) KernelUp(spec string, phases []launcher.Phase) {
	text := "up " + spec
	for _, p := range phases {
		text += fmt.Sprintf(" %s=%v", p.Name, p.Took)
	}
	h.add("%s", text)
}
func (h *recorder) GPUWaited(flavor string, took time.Duration)    { h.add("waited %q %v", flavor, took) }
func (h *recorder) KernelFailed(spec string, why launcher.Failure) { h.add("failed %s %s", spec, why) }
func (h *recorder) ClusterRequest(verb, resource string, code int, _ time.Duration) {
	h.add("%s %s %d", verb, resource, code)
}
func (h *recorder) ClusterWait(client string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waits == nil {
		h.waits = map[string][]time.Duration{}
	}
	h.waits[client] = append(h.waits[client], took)
}

func (h *recorder) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.events, "; ")
}

// A gateway reports the starts that it has begun, each once: up, failed, or neither if the kernel was stopped. Counts
// of supervisors and times of GPUs stay when kernels are gone.
func TestMeasure(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	h, other := new(recorder), new(recorder)
	l := openTest(t, c, func(o *Options, tm *timing) {
		o.Observer = h
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
	})
	openTest(t, c, func(o *Options, _ *timing) { o.Observer = other })
	begin := func(id string) *kernel {
		t.Helper()
		req := testRequest(id)
		req.Env = map[string]string{"KERNEL_GPUS": "1"}
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.kernels[id]
		return k
	}
	var busy time.Duration // of the GPUs
	say := func(k *kernel, state api.State, lost int64) {
		status := api.Status{
			State:  state,
			GPUUse: api.GPUUse{Measured: busy, Busy: busy},
			Counts: api.Counts{Since: time.Unix(0, now.Load()).Add(time.Second), LogLost: lost},
		}
		enterLocked := func() (follow.Supervisor, bool) { return l.follower.EnterLocked(&k.supervisor, status), true }
		followed{l, k}.Receive(status, enterLocked)
	}
	up := begin(idA)
	say(up, api.Starting, 0)
	c.setPod(t, idA+"-1", func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		p.Status.Conditions = []corev1.PodCondition{
			{
				Type:               corev1.PodScheduled,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Unix(0, now.Load())),
			},
		}
	})
	eventually(t, "the pod's node is known", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return up.pod.Spec.NodeName != ""
	})
	if got := h.all(); got != "" {
		t.Errorf("before it is up: %s", got)
	}
	say(up, api.Idle, 5)
	say(up, api.Busy, 7)
	say(up, api.Idle, 7)
	if got := h.all(); !strings.HasPrefix(got, "up python3 admission=") || strings.Count(got, "up ") != 1 {
		t.Errorf("reported %s", got)
	}
	l.Measure()
	now.Add(int64(time.Minute))
	busy = 20 * time.Second
	say(up, api.Idle, 0)
	m := l.Measure()
	python3 := launcher.GPULabels{SpecName: "python3"}
	if m.GPUBusy[python3] != 20 {
		t.Errorf("busy for %g s", m.GPUBusy[python3])
	}
	busy = 30 * time.Second
	say(up, api.Idle, 0)
	if len(m.Kernels) != 1 || m.LogLost != 7 || m.GPUs[python3] != 1 || m.GPUSeconds[python3] < 59 ||
		m.GPUSeconds[python3] > 61 {
		t.Errorf("measured %+v", m)
	}
	now.Add(int64(30 * time.Second)) // until its end, without a call of Measure
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	now.Add(int64(time.Minute))
	after := l.Measure()
	if busy := after.GPUBusy[python3]; busy != 30 {
		t.Errorf("after its end it was busy for %g s", busy)
	}
	if after.LogLost != 7 || after.GPUs[python3] != 0 || after.GPUSeconds[python3] != m.GPUSeconds[python3]+30 {
		t.Errorf("after its end: %+v", after)
	}

	h.events = nil
	say(begin(idB), api.Dead, 0)
	stopped := begin("cccccccc-0000-4000-8000-000000000003")
	l.mu.Lock()
	l.endLocked(stopped, &endings.Ending{Reason: "it was shut down on request", Stopped: true})
	l.mu.Unlock()
	if got := h.all(); got != "failed python3 unscheduled" {
		t.Errorf("a kernel that fails, and one that is stopped: %s", got)
	}
	if got := other.all(); got != "" {
		t.Errorf("a gateway that has started nothing reported %s", got)
	}
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
	cluster, err := newCluster(&rest.Config{Host: server.URL}, "ns", true, requestRate)
	if err != nil {
		t.Fatal(err)
	}
	h := new(recorder)
	cluster.requests.reportTo(h)
	if _, err := cluster.client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("no error")
	}
	if err := cluster.client.CoreV1().Secrets("ns").Delete(t.Context(), "gone", metav1.DeleteOptions{}); err == nil {
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
	cluster, err := newCluster(&rest.Config{Host: server.URL}, "ns", true, rate{qps: 1, burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	h := new(recorder)
	cluster.requests.reportTo(h)
	l := &Launcher{opts: Options{Cluster: cluster}, client: cluster.client, log: slog.New(slog.DiscardHandler)}
	lease := l.leaseLock(admissionLease)
	ctx, cancel := context.WithCancel(t.Context())
	var starts sync.WaitGroup
	for range 800 {
		starts.Go(func() {
			if err := cluster.client.CoreV1().Pods("ns").Delete(ctx, "a", metav1.DeleteOptions{}); err == nil {
				t.Error("no error")
			}
		})
	}
	for range leaseRate.burst {
		asking, done := context.WithTimeout(t.Context(), 5*time.Second)
		if _, _, err := lease.Get(asking); !apierrors.IsForbidden(err) {
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
