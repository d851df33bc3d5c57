package kube

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestBrokenWatches: client-go does not report that the cluster rejects watches. Meanwhile kernels are found by lists.
// These lists end when watches work again.
func TestBrokenWatches(t *testing.T) {
	c := newTestCluster(t)
	other := openTest(t, c, nil)
	var refused atomic.Bool
	var watches sync.Map // those that have begun
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) {
		if refused.Load() {
			return true, nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		w := watch.NewFake()
		watches.Store(w, true)
		return true, w, nil
	})
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.maintenance, tm.fresh = time.Millisecond, time.Millisecond })
	refused.Store(true)
	watches.Range(func(w, _ any) bool { // as when the API server ends; watches without any event stay open
		w.(*watch.FakeWatcher).Action(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "100"}})
		w.(*watch.FakeWatcher).Stop()
		return true
	})
	if _, _, err := other.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel is known", func() bool { return len(l.snapshot()) == 1 })
	refused.Store(false)
	eventually(t, "it watches again", func() bool {
		l.watches.mu.Lock()
		defer l.watches.mu.Unlock()
		return len(l.watches.broken) == 0
	})
}

// TestLists: a list never lacks a kernel that exists; if that is uncertain, the list fails.
func TestLists(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	ids := func() ([]string, error) {
		all, err := l.Kernels(t.Context())
		var ids []string
		for _, k := range all {
			ids = append(ids, k.ID)
		}
		return ids, err
	}
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if got, err := ids(); err != nil || !slices.Equal(got, []string{idA}) {
		t.Errorf("%v, %v", got, err)
	}
	c.broken.Store(true)
	if got, err := ids(); err != nil || len(got) != 1 {
		t.Errorf("with the watch fresh: %v, %v", got, err)
	}
	now.Add(int64(11 * time.Second))
	if got, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("without the cluster: %v, %v", got, err)
	}
	if k, err := l.Kernel(t.Context(), idA); err != nil || k.ID != idA {
		t.Errorf("a known kernel: %v, %v", k, err)
	}
	if _, err := l.Kernel(t.Context(), idB); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("an unknown kernel: %v", err)
	}
	before := c.requests()
	for range 5 {
		if _, err := ids(); !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("still without the cluster: %v", err)
		}
	}
	if n := c.requests() - before; n != 0 {
		t.Errorf("a cluster that does not answer was asked %d times more", n)
	}
	now.Add(int64(3 * time.Second))
	c.broken.Store(false)
	before = c.requests()
	for range 5 {
		if got, err := ids(); err != nil || len(got) != 1 {
			t.Errorf("with the cluster again: %v, %v", got, err)
		}
	}
	if n := c.requests() - before; n != 1 {
		t.Errorf("five lists asked the cluster %d times", n)
	}
}

// TestLists_ClockSkew: a pod that is created while the cluster is being asked is not taken for removed, however wrong
// this machine's clock is. A pod that is gone is noticed, too.
func TestLists_ClockSkew(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			c := newTestCluster(t)
			c.silence().Store(true)
			l := openTest(t, c, func(_ *Options, tm *timing) {
				tm.now = func() time.Time { return time.Now().Add(skew) }
			})
			startTest(t, l, idA)
			startTest(t, l, idB)
			created := c.pod(t, idB+"-1")
			l.mu.Lock()
			delete(l.kernels, idB)
			l.mu.Unlock()
			c.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
				l.updatePod(created) // the answer was made before
				return true, &corev1.PodList{}, nil
			})
			l.freshness.markStale()
			all, err := l.Kernels(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range all {
				if want := k.ID == idA; isDead(k) != want {
					t.Errorf("%s is %s: %q", k.ID, k.State, k.Reason)
				}
			}
			if len(all) != 2 {
				t.Errorf("there are %d kernels", len(all))
			}
		})
	}
}

// TestWatch_Waiting: a supervisor receives once why its kernel's container is missing, and once that it is there.
func TestWatch_Waiting(t *testing.T) {
	c, f := newRunning(t, 1)
	id, s := idOf(0), f.of(idOf(0))
	s.set(func(st *api.Status) { st.State = api.Starting })
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	kernelIs := func(state corev1.ContainerState) {
		c.setPod(t, podspec.PodName(id, 1), func(pod *corev1.Pod) { pod.Status.ContainerStatuses[1].State = state })
	}
	kernelIs(corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no answer from the registry"},
	})
	openTest(t, c, nil)
	s.await(t, "an update", func() bool { return len(s.updates) > 0 })
	kernelIs(runs)
	s.await(t, "an update that nothing is waited for", func() bool { return len(s.updates) > 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	first, second := s.updates[0], s.updates[1]
	if len(s.updates) != 2 || first.Class != api.WaitingClass || !strings.Contains(first.Text, "image") ||
		second.Text != "" ||
		second.Version <= first.Version {
		t.Errorf("the supervisor received %+v", s.updates)
	}
}

// TestWatch_End: a supervisor receives the end of its kernel's container before anything newer, however slowly it
// answers.
func TestWatch_End(t *testing.T) {
	c, f := newRunning(t, 1)
	id, s := idOf(0), f.of(idOf(0))
	s.hold = make(chan struct{})
	l := openTest(t, c, nil)
	waitFor(t, l, id, func(k launcher.Kernel) bool { return !k.Stale })
	k, err := l.lookUp(id)
	if err != nil {
		t.Fatal(err)
	}
	died := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: metav1.Now()}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	for i, step := range []func(*corev1.ContainerStatus){
		func(s *corev1.ContainerStatus) { s.State = died },
		func(s *corev1.ContainerStatus) { s.State, s.LastTerminationState = runs, died },
	} {
		c.setPod(t, podspec.PodName(id, 1), func(pod *corev1.Pod) { step(&pod.Status.ContainerStatuses[1]) })
		poll.Until(t, "the update is queued", func() bool { // which no change of the kernel announces
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(k.told.unsent) == i+1
		})
	}
	close(s.hold)
	s.await(t, "two updates", func() bool { return len(s.updates) > 1 })
	s.mu.Lock()
	defer s.mu.Unlock()
	first, second := s.updates[0], s.updates[1]
	if first.Class != api.DiedClass || !strings.Contains(first.Text, "signal 9") || second.Text != "" ||
		second.Version <= first.Version {
		t.Errorf("the supervisor received %+v", s.updates)
	}
}

// TestWatch_OtherKey: a server with another key at a pod's address is not the pod's supervisor, and receives no token.
func TestWatch_OtherKey(t *testing.T) {
	c, f := newRunning(t, 2)
	wrong, right := f.of(idOf(0)), f.of(idOf(1))
	wrong.tls = right.tls
	l := openTest(t, c, nil)
	waitFor(t, l, idOf(1), func(k launcher.Kernel) bool { return !k.Stale })
	k, err := l.Kernel(t.Context(), idOf(0)) // waits for the attempt
	if err != nil || k.State != api.Starting {
		t.Errorf("%+v, %v", k, err)
	}
	wrong.mu.Lock()
	defer wrong.mu.Unlock()
	if wrong.asked != 0 {
		t.Errorf("it was asked %d times", wrong.asked)
	}
}

// TestWatch_ApiServerDown: while a watch has failed and is not yet repeated, changes in the cluster are noticed.
func TestWatch_ApiServerDown(t *testing.T) {
	c := newTestCluster(t)
	var open atomic.Bool
	open.Store(true)
	c.PrependWatchReactor("pods", func(k8stesting.Action) (bool, watch.Interface, error) {
		return true, nil, errors.New("connection refused")
	})
	c.PrependReactor("list", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.(k8stesting.ListActionImpl).ListOptions.ResourceVersion != "" && !open.Load() { // the informer's own
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.maintenance, tm.fresh = time.Millisecond, time.Millisecond })
	open.Store(false)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonUnschedulable,
			Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
		})
	})
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return strings.Contains(k.Reason, "no GPU is free") })
}

// A launcher keeps only the trimmed pods, from watches and from answers to its requests.
func TestPods_Trimmed(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if whole := c.pod(t, idA+"-1"); len(whole.Spec.Volumes) == 0 {
		t.Fatal("the pod has no volumes")
	}
	for _, from := range []string{"the start", "an answer", "a list"} {
		switch from {
		case "an answer":
			if err := l.annotate(t.Context(), l.podOf(idA), "", map[string]string{"a": "b"}); err != nil {
				t.Fatal(err)
			}
		case "a list":
			if err := l.refresh(t.Context(), idA); err != nil {
				t.Fatal(err)
			}
		}
		if pod := l.podOf(idA); len(pod.Spec.Volumes) > 0 || len(pod.Spec.Containers) != 2 {
			t.Errorf("from %s: %+v", from, pod.Spec)
		}
	}
	eventually(t, "the informer's pod", func() bool { return len(l.watches.pods[0].GetStore().List()) == 1 })
	if pod := l.watches.pods[0].GetStore().List()[0].(*corev1.Pod); len(pod.Spec.Volumes) > 0 {
		t.Errorf("the informer keeps %+v", pod.Spec)
	}
}
