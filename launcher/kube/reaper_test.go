package kube

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// fastReaper has the launcher look often, at a clock that the test moves.
func fastReaper(now *atomic.Int64) func(*Options, *timing) {
	now.Store(time.Now().UnixNano())
	return func(_ *Options, tm *timing) {
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.tend = 5 * time.Millisecond
		tm.lease = leaseTiming{duration: time.Second, renew: 700 * time.Millisecond, retry: 100 * time.Millisecond} // it is written in whole seconds
	}
}

// podThere reports whether the cluster has a pod.
func (c *testCluster) podThere(t *testing.T, name string) bool {
	t.Helper()
	_, err := c.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// eventually waits until cond is true.
func eventually(t *testing.T, what string, cond func() bool) {
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

func TestReaper_unclaimed(t *testing.T) {
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
		return pod.Annotations[annotationClaimed]
	}
	if claimedOf(idA+"-1") != unclaimed {
		t.Fatal("a new pod is claimed")
	}
	l.Claim("an id that nobody has")
	l.Claim(idA)
	eventually(t, "the claim in the pod", func() bool { return claimedOf(idA+"-1") == claimed })
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
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.State != launcher.Starting {
		t.Errorf("the claimed kernel: %+v, %v", k, err)
	}
}

// TestReaper_claimedMeanwhile: a claim that this gateway has not heard of yet counts.
func TestReaper_claimedMeanwhile(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	seen, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.refuse("patch", "pods", apierrors.NewConflict(corev1.Resource("pods"), seen.Name, nil)) // the fake compares no versions
	l.removeUnclaimed(t.Context(), seen)
	if !c.podThere(t, seen.Name) {
		t.Error("it was removed")
	}
}

func TestReaper_useless(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	// A gateway has marked it and died before it could delete it.
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		for key, value := range endingAnnotation(pod, ending{Reason: "shut down by ann", At: time.Unix(0, now.Load()), Stopped: true}) {
			pod.Annotations[key] = value
		}
	})
	eventually(t, "it is gone for clients", func() bool { _, err := l.Kernel(t.Context(), idA); return err != nil })
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now.Add(int64(5 * time.Second)); l.useless(pod) {
		t.Error("there is no time of grace")
	}
	now.Add(int64(6 * time.Second))
	eventually(t, "its pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	if why := whyGone(t, l, idA); why != "shut down by ann" {
		t.Errorf("%q", why)
	}
}

// TestReaper_elected: of several gateways one clears away, and another takes over when it has gone.
func TestReaper_elected(t *testing.T) {
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
		t.Error("another took the lease of one that lives")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other takes over", func() bool { return holder() != was })
}

func TestProgress(t *testing.T) {
	now := reasonNow
	event := func(reason string, age time.Duration) corev1.Event {
		return corev1.Event{Reason: reason, LastTimestamp: ago(age)}
	}
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		events []corev1.Event
		want   time.Duration // ago
	}{
		"made": {podOf(), nil, time.Hour},
		"scheduled": {podOf(func(p *corev1.Pod) {
			condition(corev1.PodScheduled, corev1.ConditionTrue, "", "")(p)
		}), nil, 5 * time.Minute},
		"not scheduled":            {podOf(unschedulable("no GPU")), []corev1.Event{event("FailedScheduling", time.Minute)}, time.Hour},
		"a node is being made":     {podOf(), []corev1.Event{event("TriggeredScaleUp", 2*time.Minute), event("FailedScheduling", time.Minute)}, 2 * time.Minute},
		"an image is being pulled": {podOf(), []corev1.Event{event("Scheduled", 50*time.Minute), event("Pulling", 49*time.Minute)}, 0},
		"a pull has failed":        {podOf(), []corev1.Event{event("Pulling", 49*time.Minute), event("Failed", 40*time.Minute), event("BackOff", time.Minute)}, time.Hour},
		"an image has come":        {podOf(), []corev1.Event{event("Pulling", 49*time.Minute), event("Pulled", 3*time.Minute)}, 3 * time.Minute},
		"its node is lost while it pulls": {podOf(), []corev1.Event{event("Scheduled", 50*time.Minute), event("Pulling", 49*time.Minute), event("NodeNotReady", time.Minute)},
			50 * time.Minute},
		"a container runs": {podOf(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerSupervisor, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Minute)}}}}
		}), nil, time.Minute},
		"a container runs again": {podOf(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerKernel, RestartCount: 3, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: ago(time.Minute)}}}}
		}), nil, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			if got := now.Sub(progress(test.pod, test.events, now)); got != test.want {
				t.Errorf("%v ago, want %v", got, test.want)
			}
		})
	}
}

// A supervisor whose client is connected has a client, whatever the gateways know of each other's requests.
func TestReaper_connected(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) { fastReaper(&now)(o, tm); tm.tend = time.Hour })
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
	if !l.unclaimed(pod) {
		t.Error("it is claimed")
	}
	l.mu.Lock()
	k.heard, k.status = true, supervisor.Status{State: "idle", Connections: 1}
	l.mu.Unlock()
	if l.unclaimed(pod) {
		t.Error("it is unclaimed")
	}
	l.tendKernel(t.Context(), k)
	after, err := c.CoreV1().Pods("ns").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || after.Annotations[annotationClaimed] != claimed {
		t.Errorf("%v, %v", after.Annotations, err)
	}
}
