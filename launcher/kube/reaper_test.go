package kube

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/election"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fastReaper makes the launcher look often, with a clock that the test moves.
func fastReaper(now *atomic.Int64) func(*Options, *timing) {
	now.Store(time.Now().UnixNano())
	return func(_ *Options, tm *timing) {
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.maintenance = 5 * time.Millisecond
		// leases are written in whole seconds
		tm.lease = election.Timing{Duration: time.Second, Renew: 700 * time.Millisecond, Retry: 100 * time.Millisecond}
	}
}

// podThere reports whether the cluster still has a pod.
func (c *testCluster) podThere(t *testing.T, name string) bool {
	t.Helper()
	_, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// eventually waits until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}

func TestReaper_Unclaimed(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	for _, id := range []string{idA, idB} {
		if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
	}
	claimedOf := func(name string) string {
		pod, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Annotations[podspec.AnnotationClaimed]
	}
	if claimedOf(idA+"-1") != podspec.Unclaimed {
		t.Fatal("a new pod is claimed")
	}
	l.Claim("an unknown id")
	l.Claim(idA)
	eventually(t, "the claim in the pod", func() bool { return claimedOf(idA+"-1") == podspec.Claimed })
	now.Add(int64(4 * time.Minute))
	before := len(c.Actions())
	eventually(t, "some rounds", func() bool { return len(c.Actions()) > before+2 }) // of the lease
	if !c.podThere(t, idB+"-1") {
		t.Fatal("it was removed too early")
	}
	now.Add(int64(2 * time.Minute))
	eventually(t, "the unclaimed kernel is removed", func() bool { return !c.podThere(t, idB+"-1") })
	if why := whyGone(t, l, idB); why != unclaimedReason {
		t.Errorf("%q", why)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.State != api.Starting {
		t.Errorf("the claimed kernel: %+v, %v", k, err)
	}
}

// TestReaper_ClaimedMeanwhile: a claim counts even if this gateway's watch has not reported it yet.
func TestReaper_ClaimedMeanwhile(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	seen, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// the fake does not compare versions
	c.refuse("patch", "pods", apierrors.NewConflict(corev1.Resource("pods"), seen.Name, nil))
	l.reaper.removeUnclaimed(t.Context(), seen)
	if !c.podThere(t, seen.Name) {
		t.Error("it was removed")
	}
}

func TestReaper_Leftovers(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	// A gateway has marked the pod and died before it could delete it.
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		end := endings.Ending{Reason: "shut down by ann", At: time.Unix(0, now.Load()), Stopped: true}
		for key, value := range endingAnnotation(pod, end) {
			pod.Annotations[key] = value
		}
	})
	eventually(t, "it is gone for clients", func() bool { _, err := l.Kernel(t.Context(), idA); return err != nil })
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Add(int64(5 * time.Second)); l.reaper.isLeftover(pod) {
		t.Error("there is no time of grace")
	}
	now.Add(int64(6 * time.Second))
	eventually(t, "its pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	if why := whyGone(t, l, idA); why != "shut down by ann" {
		t.Errorf("%q", why)
	}
}

// TestReaper_Elected: one of several gateways removes leftovers, and another takes over when it is gone.
func TestReaper_Elected(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	holder := func() string {
		lease, err := c.CoordinationV1().Leases("ns").Get(t.Context(), reaperLease, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	first := openTest(t, c, fastReaper(&now))
	eventually(t, "one holds the lease", func() bool { return holder() != "" })
	was := holder()
	openTest(t, c, fastReaper(&now))
	before := len(c.Actions())
	eventually(t, "some rounds", func() bool { return len(c.Actions()) > before+20 })
	if holder() != was {
		t.Error("another gateway took the lease of a living gateway")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other takes over", func() bool { return holder() != was })
}

// A connected client counts as a claim, even if no gateway knows of a request that named the kernel.
func TestReaper_ConnectedIsClaimed(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) { fastReaper(&now)(o, tm); tm.maintenance = time.Hour })
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	k, err := l.lookUp(idA)
	if err != nil {
		t.Fatal(err)
	}
	now.Add(int64(time.Hour))
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	if !l.reaper.isUnclaimed(pod) {
		t.Error("it is claimed")
	}
	l.mu.Lock()
	k.supervisor.HasStatus, k.supervisor.Status = true, api.Status{State: "idle", Connections: 1}
	l.mu.Unlock()
	if l.reaper.isUnclaimed(pod) {
		t.Error("it is unclaimed")
	}
	l.maintainKernel(t.Context(), k)
	after, err := c.CoreV1().Pods("ns").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || after.Annotations[podspec.AnnotationClaimed] != podspec.Claimed {
		t.Errorf("%v, %v", after.Annotations, err)
	}
}

// TestReaper_HeldOpen: a container that an admission webhook has added runs on after the kernel was culled. The pod and
// its GPUs are released, but not before the reason is stored.
func TestReaper_HeldOpen(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	const why = "it was idle for 2 hours"
	var stored atomic.Bool
	refuse := func(a k8stesting.Action) (bool, runtime.Object, error) {
		return !stored.Load(), nil, apierrors.NewInternalError(errors.New("no space"))
	}
	c.PrependReactor("patch", "configmaps", refuse)
	c.PrependReactor("create", "configmaps", refuse)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		text, err := json.Marshal(api.Ending{KernelID: idA, Reason: why, At: time.Unix(0, now.Load()), Culled: true})
		if err != nil {
			t.Fatal(err)
		}
		ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(text)}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: podspec.ContainerSupervisor, State: ended},
			{Name: podspec.ContainerKernel, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}},
			{Name: "injected", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		}
	})
	dead := func(k launcher.Kernel) bool { return k.State == api.Dead }
	if k := waitFor(t, l, idA, dead); k.Reason != why {
		t.Errorf("its reason is %q", k.Reason)
	}
	now.Add(int64(11 * time.Second))
	before := len(c.Actions())
	eventually(t, "some rounds", func() bool { return len(c.Actions()) > before+10 })
	if !c.podThere(t, idA+"-1") {
		t.Fatal("it was removed before its reason was stored")
	}
	stored.Store(true)
	eventually(t, "its pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	if k := waitFor(t, l, idA, dead); k.Reason != why {
		t.Errorf("after the removal its reason is %q", k.Reason)
	}
	// Without the pod another gateway knows the reason.
	if got := whyGone(t, openTest(t, c, nil), idA); got != why {
		t.Errorf("another gateway says %q", got)
	}
}

// TestReaper_ClockAhead: a pod's age is by the API server's clock. A gateway whose clock is wrong ends no new start.
func TestReaper_ClockAhead(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	now.Store(int64(time.Hour))
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		tm.maintenance = time.Hour
	})
	learn := func() {
		here := l.timing.now()
		l.opts.Cluster.Answered(time.Now().UTC().Format(http.TimeFormat), here, here)
	}
	learn()
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if l.reaper.isUnclaimed(pod) {
		t.Error("a start is taken for an old one")
	}
	pod.CreationTimestamp.Time = pod.CreationTimestamp.Add(-l.timing.claim - time.Second)
	if !l.reaper.isUnclaimed(pod) {
		t.Error("an old start is taken for a new one")
	}
}
