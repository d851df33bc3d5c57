package kube

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// taint replaces the taints of a node.
func (c *testCluster) taint(t *testing.T, node string, keys ...string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, key := range keys {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	_, err := c.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// onNodes makes kernels that run on the nodes node-0, node-1 and so on.
func onNodes(t *testing.T, kernels int) (*testCluster, *fakeSupervisors) {
	t.Helper()
	c, f := newRunning(t, kernels)
	c.allow("nodes")
	for n := range kernels {
		c.taint(t, fmt.Sprintf("node-%d", n))
	}
	return c, f
}

// TestNodes_Announced: one of two replicas announces a node that goes away, once, to the kernels on it. It takes that
// back when the node stays.
func TestNodes_Announced(t *testing.T) {
	c, f := onNodes(t, 2)
	var now atomic.Int64
	for range 2 {
		openTest(t, c, func(o *Options, tm *timing) {
			fastReaper(&now)(o, tm)
			tm.firstRedial, tm.lastRedial = time.Millisecond, 10*time.Millisecond
		})
	}
	c.taint(t, "node-0", "aws-node-termination-handler/spot-itn")
	s := f.of(idOf(0))
	const spot = "the cloud takes back the spot machine of its node within 2 minutes"
	s.await(t, "announced", func() bool { return s.status.NodeNotice == spot })
	// The same taint again, and a weaker one beside it, change nothing.
	c.taint(t, "node-0", "aws-node-termination-handler/spot-itn", corev1.TaintNodeUnschedulable)
	c.taint(t, "node-0", "aws-node-termination-handler/spot-itn")
	c.taint(t, "node-0")
	s.await(t, "taken back", func() bool { return s.status.NodeNotice == "" })
	s.mu.Lock()
	got := s.notices
	s.mu.Unlock()
	if !slices.Equal(got, []string{spot, ""}) {
		t.Errorf("told %q", got)
	}
	if other := f.of(idOf(1)); len(other.notices) != 0 {
		t.Errorf("the kernel of another node was told %q", other.notices)
	}
}

// TestNodes_NextReaper: the next reaper does not repeat what a supervisor was told. It takes back what no longer holds.
func TestNodes_NextReaper(t *testing.T) {
	c, f := onNodes(t, 2)
	c.taint(t, "node-0", "karpenter.sh/disrupted")
	for i := range 2 {
		f.of(idOf(i)).set(func(st *api.Status) { st.NodeNotice = "Karpenter removes its node" })
	}
	var now atomic.Int64
	openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		tm.firstRedial, tm.lastRedial = time.Millisecond, 10*time.Millisecond
	})
	stays := f.of(idOf(1))
	stays.await(t, "taken back", func() bool { return stays.status.NodeNotice == "" })
	if goes := f.of(idOf(0)); len(goes.notices) != 0 {
		t.Errorf("told again: %q", goes.notices)
	}
}

// TestNodes_OldSupervisor: a supervisor that does not know notices is asked once a minute, and not in each round.
func TestNodes_OldSupervisor(t *testing.T) {
	c, f := onNodes(t, 1)
	s := f.of(idOf(0))
	s.set(func(st *api.Status) { st.Build = "old" })
	c.taint(t, "node-0", "karpenter.sh/disrupted")
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		tm.firstRedial, tm.lastRedial = time.Millisecond, 10*time.Millisecond
		tm.maintenance = time.Hour // the test does the reaper's rounds
	})
	eventually(t, "known", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.machines.SeesNodes() && l.kernels[idOf(0)].supervisor.Streaming
	})
	for n := 1; n <= 3; n++ {
		for range 3 {
			l.reaper.announceNodes()
			eventually(t, "sent", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.noticesSent == 0
			})
		}
		s.mu.Lock()
		if got := len(s.notices); got != n {
			t.Errorf("asked %d times in minute %d", got, n)
		}
		s.mu.Unlock()
		now.Add(int64(noticeRetry))
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestNodes_Unknown: where the API server does not say what a gateway may watch, the gateway works without it.
func TestNodes_Unknown(t *testing.T) {
	c := newTestCluster(t)
	c.refuse("create", "selfsubjectaccessreviews", errors.New("no"))
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(l.timing.claim) + int64(time.Second))
	eventually(t, "reaped", func() bool { return !c.podThere(t, idA+"-1") })
	for _, a := range c.Actions() {
		if a.GetResource().Resource == "nodes" {
			t.Errorf("asked for nodes: %s", a.GetVerb())
		}
	}
}
