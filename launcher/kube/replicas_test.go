package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/replicas"
)

// replicaNet joins the replicas of a test: launchers with addresses whose requests to each other it carries.
type replicaNet struct {
	t *testing.T
	c *testCluster

	mu      sync.Mutex
	all     map[string]http.Handler // by address
	cut     map[string]bool         // addresses that no other replica reaches
	reached map[[2]string]bool      // the addresses of two replicas of which the first has reached the second
}

func newReplicaNet(t *testing.T, c *testCluster) *replicaNet {
	return &replicaNet{t: t, c: c, all: map[string]http.Handler{}, cut: map[string]bool{},
		reached: map[[2]string]bool{}}
}

// carrier carries one replica's requests.
type carrier struct {
	n    *replicaNet
	from string
}

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	ip, _, err := net.SplitHostPort(r.URL.Host)
	if err != nil {
		return nil, err
	}
	c.n.mu.Lock()
	to, cut := c.n.all[ip], c.n.cut[ip] || c.n.cut[c.from]
	c.n.reached[[2]string{c.from, ip}] = to != nil && !cut
	c.n.mu.Unlock()
	if to == nil || cut {
		return nil, errors.New("no route to host")
	}
	in := httptest.NewRequest(r.Method, r.URL.RequestURI(), nil).WithContext(r.Context())
	if r.Body != nil {
		in.Body = r.Body
	}
	in.Header = r.Header
	w := httptest.NewRecorder()
	to.ServeHTTP(w, in)
	resp := w.Result()
	resp.Body = io.NopCloser(bytes.NewReader(w.Body.Bytes()))
	return resp, nil
}

// cutOff makes the replica with this address unreachable, or reachable again.
func (n *replicaNet) cutOff(ip string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[ip] = cut
}

// join makes a launcher a replica: as sharedKernels.join does, but without a port, and without watching the replicas'
// pods.
func (n *replicaNet) join(l *Launcher, ip string) *replicas.Replicas {
	n.t.Helper()
	n.addPod(ip)
	p := n.begin(l, ip)
	ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
	defer cancel()
	if err := p.Introduce(ctx); err != nil {
		n.t.Fatal(err)
	}
	return p
}

// gatewayLabels are the labels of replicas.Selector.
var gatewayLabels = map[string]string{"app.kubernetes.io/name": "ekg", "app.kubernetes.io/component": "gateway"}

// addPod creates a gateway's pod.
func (n *replicaNet) addPod(ip string) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gateways", Name: "ekg-" + ip, Labels: gatewayLabels},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}}
	if _, err := n.c.CoreV1().Pods("gateways").Create(n.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// begin makes a launcher a replica that has not introduced itself.
func (n *replicaNet) begin(l *Launcher, ip string) *replicas.Replicas {
	n.t.Helper()
	r, err := sharedKernels{l}.newReplicas(&peers{"gateways", ip},
		replicas.Options{Name: "ekg-" + ip, Transport: carrier{n, ip}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	n.all[ip] = r.Handler()
	n.mu.Unlock()
	l.freshness.markStale()
	l.replicas = r
	return r
}

// listed returns the ids of a list.
func listed(t *testing.T, l *Launcher) ([]string, error) {
	t.Helper()
	all, err := l.Kernels(t.Context())
	ids := []string{}
	for _, k := range all {
		ids = append(ids, k.ID)
	}
	return ids, err
}

// away makes the API server away for one launcher's informers and requests. The launchers share a cluster, so it is
// away for all but those that were opened with another client.
func (c *testCluster) away(away bool) { c.broken.Store(away) }

const (
	ip1 = "10.0.0.1"
	ip2 = "10.0.0.2"
	ip3 = "10.0.0.3"
)

// outage is a test cluster with two replicas whose clock the test sets, and a kernel of each.
func outage(t *testing.T) (n *replicaNet, first, second *Launcher, later func(time.Duration)) {
	t.Helper()
	c := newTestCluster(t)
	now := new(atomic.Int64)
	now.Store(time.Now().UnixNano())
	silent := c.silence()
	silent.Store(true)
	opened := func() *Launcher {
		return openTest(t, c, func(_ *Options, tm *timing) {
			tm.now = func() time.Time { return time.Unix(0, now.Load()) }
			tm.maintenance = time.Hour
		})
	}
	first, second = opened(), opened()
	n = newReplicaNet(t, c)
	n.join(first, ip1)
	n.join(second, ip2)
	startTest(t, first, idA)
	return n, first, second, func(d time.Duration) { now.Add(int64(d)) }
}

// TestOutage: while the API server is away, lists are answered from memory and from the replicas' memories. They lack
// no kernel.
func TestOutage(t *testing.T) {
	n, first, second, later := outage(t)
	startTest(t, second, idB)
	// A kernel of which this replica has never heard: it was not notified, and its watch is silent.
	first.mu.Lock()
	delete(first.kernels, idB)
	first.mu.Unlock()
	n.c.away(true)
	later(time.Minute)
	for range 3 {
		for name, l := range map[string]*Launcher{"first": first, "second": second} {
			if got, err := listed(t, l); err != nil || !slices.Equal(got, []string{idA, idB}) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
	t.Run("a kernel that only a replica knows is found", func(t *testing.T) {
		first.mu.Lock()
		delete(first.kernels, idB)
		first.mu.Unlock()
		if k, err := first.Kernel(t.Context(), idB); err != nil || k.ID != idB {
			t.Errorf("%+v, %v", k, err)
		}
		if _, err := first.Kernel(t.Context(), "cccccccc-0000-4000-8000-000000000003"); !errors.Is(err,
			launcher.ErrUnavailable) {
			t.Errorf("an unknown kernel: %v", err)
		}
	})
	t.Run("a replica that cannot be reached", func(t *testing.T) {
		n.cutOff(ip2, true)
		defer n.cutOff(ip2, false)
		for name, l := range map[string]*Launcher{"first": first, "second": second} {
			if got, err := listed(t, l); !errors.Is(err, launcher.ErrUnavailable) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	})
	t.Run("a replica that no longer exists is asked until all kernels have been read again", func(t *testing.T) {
		n.cutOff(ip2, true)
		defer n.cutOff(ip2, false)
		n.c.away(false)
		if err := n.c.CoreV1().Pods("gateways").Delete(t.Context(), "ekg-"+ip2, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		first.mu.Lock()
		delete(first.kernels, idB) // a last kernel of which it has not heard
		first.mu.Unlock()
		n.c.away(true)
		first.replicas.Maintain(t.Context())
		if got, err := listed(t, first); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("before: %v, %v", got, err)
		}
		n.c.away(false)
		later(time.Minute)
		eventually(t, "no proof is made", func() bool { return !first.freshness.proving.Load() })
		first.replicas.Maintain(t.Context())
		n.c.away(true)
		later(time.Minute)
		if got, err := listed(t, first); err != nil || len(got) != 2 {
			t.Errorf("afterwards: %v, %v", got, err)
		}
	})
	t.Run("the API server is back", func(t *testing.T) {
		n.c.away(false)
		later(time.Minute)
		eventually(t, "it is asked again", func() bool {
			_, err := listed(t, first)
			later(time.Second)
			return err == nil && !first.freshness.failing.Load()
		})
		n.cutOff(ip2, true)
		if got, err := listed(t, first); err != nil || len(got) != 2 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestOutage_RestartedReplica: a gateway whose process was restarted may have created kernels before. It answers no
// replica until it has read all pods.
func TestOutage_RestartedReplica(t *testing.T) {
	n, first, second, later := outage(t)
	startTest(t, second, idB)
	first.mu.Lock()
	delete(first.kernels, idB) // it has not heard of it
	first.mu.Unlock()
	again := openTest(t, n.c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	again.mu.Lock()
	clear(again.kernels)
	again.mu.Unlock()
	p := n.begin(again, ip2)
	n.c.away(true)
	later(time.Minute)
	if got, err := listed(t, first); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("before it has listed: %v, %v", got, err)
	}
	n.c.away(false)
	if err := p.Introduce(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.c.away(true)
	later(time.Minute)
	if got, err := listed(t, first); err != nil || !slices.Equal(got, []string{idA, idB}) {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

// TestIntroduce_EndedReplica: a replica that ends while this gateway opens has created a kernel last. It is known.
func TestIntroduce_EndedReplica(t *testing.T) {
	n, _, second, _ := outage(t)
	third := openTest(t, n.c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	n.addPod(ip3)
	p := n.begin(third, ip3)
	var once sync.Once
	n.mu.Lock()
	n.all[ip2] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { startTest(t, second, idB) })
		w.WriteHeader(http.StatusBadGateway) // it ends, and says nothing more
	})
	n.mu.Unlock()
	if err := p.Introduce(t.Context()); err != nil {
		t.Fatal(err)
	}
	third.mu.Lock()
	defer third.mu.Unlock()
	if third.kernels[idB] == nil {
		t.Error("the kernel is unknown")
	}
}

// TestProof_OtherNamespace: a kernel in a namespace that was not listed is not taken for removed, and a replica with
// other settings does not make such a kernel known.
func TestProof_OtherNamespace(t *testing.T) {
	_, first, _, later := outage(t)
	first.mu.Lock()
	other := first.kernels[idA].pod.DeepCopy()
	first.mu.Unlock()
	other.Namespace, other.UID, other.Name = "elsewhere", "uid-b", idB+"-1"
	other.Labels[podspec.LabelKernel] = idB
	if err := (sharedKernels{first}).Enter(idB, replicas.Kernel{Pod: other}); err != nil {
		t.Fatal(err)
	}
	if got, err := listed(t, first); err != nil || !slices.Equal(got, []string{idA}) {
		t.Errorf("a replica's kernel: %v, %v", got, err)
	}
	first.updatePod(other)
	later(time.Minute)
	if err := errors.Join(first.proveFresh(t.Context()), first.refresh(t.Context(), idB)); err != nil {
		t.Fatal(err)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	if k := first.kernels[idB]; k == nil || k.removed {
		t.Error("it is taken for removed")
	}
}

// TestOutage_NewReplica: a replica that opened after this gateway's last list is known, because it has introduced
// itself, or because another replica knows it. One that has not listed yet answers no list.
func TestOutage_NewReplica(t *testing.T) {
	n, first, second, later := outage(t)
	third := openTest(t, n.c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	n.cutOff(ip1, true) // it does not learn of it
	n.join(third, ip3)
	if n.reached[[2]string{ip3, ip1}] {
		t.Fatal("the first replica knows the third; the test proves nothing")
	}
	n.cutOff(ip1, false)
	third.mu.Lock()
	_, knows := third.kernels[idA]
	third.mu.Unlock()
	if !knows {
		t.Error("the third replica has not listed")
	}
	startTest(t, third, idB)
	for _, l := range []*Launcher{first, second} {
		l.mu.Lock()
		delete(l.kernels, idB)
		l.mu.Unlock()
	}
	n.c.away(true)
	later(time.Minute)
	if got, err := listed(t, first); err != nil || !slices.Equal(got, []string{idA, idB}) {
		t.Errorf("the first: %v, %v", got, err)
	}
	n.cutOff(ip3, true)
	if got, err := listed(t, first); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("the first, without the third: %v, %v", got, err)
	}
	n.cutOff(ip3, false)
	n.c.away(false)
	fresh := openTest(t, n.c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	n.begin(fresh, "10.0.0.4")
	n.c.away(true)
	if got, err := listed(t, fresh); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("a replica that has not introduced itself: %v, %v", got, err)
	}
}

// TestOutage_Frozen: lists wait once for an API server that does not answer, and no longer after that.
func TestOutage_Frozen(t *testing.T) {
	n, first, _, later := outage(t)
	var asked atomic.Int64
	n.c.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		return true, nil, errors.New("timeout")
	})
	later(time.Minute)
	for range 50 {
		if got, err := listed(t, first); err != nil || len(got) != 1 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	eventually(t, "no proof is made", func() bool { return !first.freshness.proving.Load() })
	if n := asked.Load(); n > 2 {
		t.Errorf("50 lists have asked the API server %d times", n)
	}
}

// TestOutage_Ending: a replica that can reach the API server tells the others that a kernel has ended, unless they hear
// from its supervisor.
func TestOutage_Ending(t *testing.T) {
	n, first, second, later := outage(t)
	second.mu.Lock()
	k := second.kernels[idA]
	second.endLocked(k, &endings.Ending{Reason: "its node is gone", At: time.Now().UTC()})
	second.mu.Unlock()
	n.c.away(true)
	later(time.Minute)
	all, err := first.Kernels(t.Context())
	if err != nil || len(all) != 1 || !isDead(all[0]) || all[0].Reason != "its node is gone" {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestWatch_Kick: an informer whose watch was refused watches again as soon as the API server answers another request.
func TestWatch_Kick(t *testing.T) {
	c := newTestCluster(t)
	var refused, watched atomic.Int64
	refuse := new(atomic.Bool)
	refuse.Store(true)
	c.PrependWatchReactor("pods", func(a k8stesting.Action) (bool, watch.Interface, error) {
		switch {
		case a.GetNamespace() != "gateways":
			return false, nil, nil
		case refuse.Load():
			refused.Add(1)
			return true, nil, errors.New("connection refused")
		}
		watched.Add(1)
		return true, watch.NewFake(), nil
	})
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	n := newReplicaNet(t, c)
	p := n.begin(l, ip1)
	p.Watch()
	eventually(t, "it was refused three times", func() bool { return refused.Load() >= 3 })
	refuse.Store(false)
	eventually(t, "it waits", func() bool {
		l.answers.mu.Lock()
		defer l.answers.mu.Unlock()
		return l.answers.next != nil
	})
	began := time.Now()
	if err := l.proveFresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it watches", func() bool { return watched.Load() > 0 })
	if took := time.Since(began); took > 1500*time.Millisecond {
		t.Errorf("it takes %v", took)
	}
}
