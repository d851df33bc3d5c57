package kube

import (
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestUnheard: a kernel whose node is lost says so. Once its pod should have ended it is dead, and can be restarted or
// stopped, though the pod stays. A supervisor that is heard lives, whatever the clocks of the cluster say.
func TestUnheard(t *testing.T) {
	c := newTestCluster(t)
	now := new(atomic.Int64)
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) {
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.maintenance, tm.removal = time.Hour, time.Millisecond
	})
	startTest(t, l, idA)
	l.mu.Lock()
	k := l.kernels[idA]
	l.follower.EnterLocked(&k.supervisor, api.Status{State: api.Idle})
	l.mu.Unlock()
	check := func(what string, state api.State, stale bool, reason string) {
		t.Helper()
		l.maintainKernel(t.Context(), k)
		if d, err := l.describe(k); err != nil || d.State != state || d.Stale != stale || d.Reason != reason {
			t.Errorf("%s: %v, it is %s, stale %v, %q", what, err, d.State, d.Stale, d.Reason)
		}
	}
	later := func(d time.Duration) { now.Add(int64(d)) }
	hear := func(heard bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.supervisor.Streaming, k.supervisor.Lost = heard, time.Unix(0, now.Load()); heard {
			k.supervisor.Lost = time.Time{}
		}
	}
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		pod.Spec.NodeName = "n1"
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
		for _, name := range []string{podspec.ContainerSupervisor, podspec.ContainerKernel} {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
	})
	eventually(t, "its node is known", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return k.pod.Spec.NodeName != ""
	})
	hear(false)
	later(5 * time.Second)
	check("at first", api.Idle, true, "")
	later(40 * time.Second)
	check("later", api.Idle, true, "its supervisor has not answered for 40 seconds")
	grace := int64(20)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
		long := metav1.NewTime(time.Now().Add(-time.Hour)) // by a clock that is wrong
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &long, &grace
	})
	eventually(t, "the deletion is seen", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return !k.deletionSeen.IsZero()
	})
	later(40 * time.Second)
	check("within the grace and the margin", api.Idle, true,
		"its supervisor has not answered for a minute: its pod was deleted")
	hear(true)
	later(time.Hour)
	check("it is heard", api.Idle, false, "")
	hear(false)
	later(time.Minute)
	check("past the grace", api.Dead, false, "its node n1 is lost: its pod was deleted, and did not end")
	if d, err := l.Revive(t.Context(), idA); err != nil || d.State != api.Starting {
		t.Errorf("restarted: %+v, %v", d, err)
	}
	if name := c.pod(t, podspec.PodName(idA, 2)).Name; name == "" {
		t.Error("there is no next pod")
	}
	waitFor(t, l, idA, func(d launcher.Kernel) bool { return d.State == api.Starting })
}
