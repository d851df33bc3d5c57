package kube

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// rejects makes a pod's node reject it, at a time.
func (c *testCluster) rejects(t *testing.T, name string, at time.Time) {
	t.Helper()
	c.setPod(t, name, func(pod *corev1.Pod) {
		pod.Spec.NodeName = "node-1"
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
			Message: "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices " +
				"nvidia.com/gpu, which is unexpected",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(at)}},
		}
	})
}

const rejection = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices " +
	"nvidia.com/gpu, which is unexpected"

// retrying says that a kernel waits for its second pod.
func retrying(k launcher.Kernel) bool {
	return k.State == api.Starting && k.Reason == "its node refused it, and it is tried once more: "+rejection
}

func isDeadWith(reason string) func(launcher.Kernel) bool {
	return func(k launcher.Kernel) bool { return k.State == api.Dead && strings.HasPrefix(k.Reason, reason) }
}

// A kernel whose node rejects its pod gets a second pod after a pause, and no third one. It is one start.
func TestRetry(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	l := openTest(t, c, fastReaper(&now))
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.UpdateNotes(t.Context(), idA, func(n launcher.Notes) (launcher.Notes, error) {
		n.Sessions = []launcher.Session{{ID: "s", Path: "a.ipynb"}}
		return n, nil
	}); err != nil {
		t.Fatal(err)
	}
	c.rejects(t, idA+"-1", l.timing.now())
	waitFor(t, l, idA, retrying)
	l.retryRejected(l.kernels[idA]) // before the pause is over
	l.mu.Lock()
	early := l.kernels[idA].retrying
	l.mu.Unlock()
	if early || c.podThere(t, idA+"-2") {
		t.Error("it is tried at once")
	}
	now.Add(int64(podstatus.RejectionPause + time.Second))
	k := waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.Reason == "it waits for the scheduler" })
	if len(k.Sessions) != 1 || k.State != api.Starting {
		t.Errorf("it is %+v", k)
	}
	eventually(t, "the first pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	second := c.pod(t, idA+"-2")
	if second.Annotations[podspec.AnnotationRejected] != "UnexpectedAdmissionError" ||
		second.Annotations[podspec.AnnotationClaimed] != podspec.Unclaimed {
		t.Errorf("annotations %v", second.Annotations)
	}
	l.mu.Lock()
	tracked := l.kernels[idA].start != nil
	l.mu.Unlock()
	if !tracked {
		t.Error("the start is no longer tracked")
	}

	c.rejects(t, idA+"-2", l.timing.now())
	waitFor(t, l, idA, isDeadWith("nodes refused it twice: "+rejection))
	now.Add(int64(podstatus.RejectionPause + time.Second))
	l.retryRejected(l.kernels[idA])
	if c.podThere(t, idA+"-3") {
		t.Error("there is a third pod")
	}
}

// Two gateways create one second pod, and both show the kernel as starting.
func TestRetry_TwoGateways(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	a, b := openTest(t, c, fastReaper(&now)), openTest(t, c, fastReaper(&now))
	if _, _, err := a.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	c.rejects(t, idA+"-1", a.timing.now())
	for _, l := range []*Launcher{a, b} {
		waitFor(t, l, idA, retrying)
	}
	now.Add(int64(podstatus.RejectionPause + time.Second))
	for _, l := range []*Launcher{a, b} {
		waitFor(t, l, idA, func(k launcher.Kernel) bool {
			return k.State == api.Starting && k.Reason == "it waits for the scheduler"
		})
	}
	eventually(t, "the first pod is removed", func() bool { return !c.podThere(t, idA+"-1") })
	for _, a := range c.Actions() {
		if d, ok := a.(k8stesting.DeleteAction); ok && d.GetName() == idA+"-2" {
			t.Error("the second pod is removed")
		}
	}
}

// A kernel that is stopped while its second pod is created is gone.
func TestRetry_Stopped(t *testing.T) {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	// They run while the cluster creates the second pod's secret, and so holds the fake's lock.
	for name, stop := range map[string]func(c *testCluster, l *Launcher) error{
		"by another gateway": func(c *testCluster, _ *Launcher) error { return c.Tracker().Delete(pods, "ns", idA+"-1") },
		"by this one": func(_ *testCluster, l *Launcher) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.beginStopLocked(l.kernels[idA], "enough", "", true)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			var now atomic.Int64
			l := openTest(t, c, func(o *Options, tm *timing) {
				fastReaper(&now)(o, tm)
				tm.maintenance = time.Hour // the test does the round
			})
			if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
				t.Fatal(err)
			}
			c.rejects(t, idA+"-1", l.timing.now())
			waitFor(t, l, idA, retrying)
			now.Add(int64(podstatus.RejectionPause + time.Second))
			var created atomic.Bool
			c.PrependReactor("create", "secrets", func(a k8stesting.Action) (bool, runtime.Object, error) {
				made, ok := a.(k8stesting.CreateAction).GetObject().(*corev1.Secret)
				if ok && made.Name == podspec.SecretName(idA+"-2") && created.CompareAndSwap(false, true) {
					if err := stop(c, l); err != nil {
						t.Error(err)
					}
				}
				return false, nil, nil
			})
			l.mu.Lock()
			k := l.kernels[idA]
			l.mu.Unlock()
			l.retryRejected(k)
			eventually(t, "both pods are gone", func() bool {
				return created.Load() && !c.podThere(t, idA+"-1") && !c.podThere(t, idA+"-2")
			})
			eventually(t, "the kernel is gone", func() bool {
				_, err := l.Kernel(t.Context(), idA)
				return errors.Is(err, launcher.ErrNotFound)
			})
		})
	}
}

// A second pod that the cluster does not allow ends the start, and so does a gateway that comes too late.
func TestRetry_Fails(t *testing.T) {
	t.Run("quota", func(t *testing.T) {
		c := newTestCluster(t)
		var now atomic.Int64
		l := openTest(t, c, fastReaper(&now))
		if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
			t.Fatal(err)
		}
		c.rejects(t, idA+"-1", l.timing.now())
		waitFor(t, l, idA, retrying)
		c.refuse("create", "pods", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
			errors.New("exceeded quota: team, requested: pods=1, used: pods=3, limited: pods=3")))
		now.Add(int64(podstatus.RejectionPause + time.Second))
		waitFor(t, l, idA, isDeadWith(`the quota "team" of its namespace does not allow it`))
	})
	t.Run("too late", func(t *testing.T) {
		c := newTestCluster(t)
		var now atomic.Int64
		l := openTest(t, c, fastReaper(&now))
		if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
			t.Fatal(err)
		}
		c.rejects(t, idA+"-1", l.timing.now().Add(-2*time.Minute))
		waitFor(t, l, idA, isDeadWith("its node refused it: "+rejection))
		if c.podThere(t, idA+"-2") {
			t.Error("there is a second pod")
		}
	})
	t.Run("the cluster does not answer for a minute", func(t *testing.T) {
		c := newTestCluster(t)
		var now atomic.Int64
		l := openTest(t, c, fastReaper(&now))
		if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
			t.Fatal(err)
		}
		c.rejects(t, idA+"-1", l.timing.now())
		waitFor(t, l, idA, retrying)
		c.refuse("create", "pods", apierrors.NewInternalError(errors.New("etcdserver: leader changed")))
		now.Add(int64(2 * podstatus.RejectionPause))
		waitFor(t, l, idA, retrying)
		now.Add(int64(time.Minute))
		waitFor(t, l, idA, isDeadWith("its node refused it: "+rejection))
	})
}
