package kube

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestMaintain: maintain finishes what another gateway has left unfinished.
func TestMaintain(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) {
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.maintenance = time.Hour // the test calls maintainKernel
	})
	start := func(id string, env map[string]string) *kernel {
		req := testRequest(id)
		req.Env = env
		if err := req.ParseEnv(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		k, err := l.lookUp(id)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := start(idA, nil)
	c.setPod(t, idA+"-1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodPending })
	waitFor(t, l, idA, func(launcher.Kernel) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return k.pod.Status.Phase == corev1.PodPending
	})
	secrets := c.CoreV1().Secrets("ns")
	if err := secrets.Delete(t.Context(), "ekg-"+idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(6 * time.Second))
	l.maintainKernel(t.Context(), k)
	if _, err := secrets.Get(t.Context(), "ekg-"+idA+"-1", metav1.GetOptions{}); err != nil {
		t.Errorf("a missing secret was not made: %v", err)
	}
	before := c.requests()
	l.maintainKernel(t.Context(), k)
	if n := c.requests() - before; n != 0 {
		t.Errorf("a kernel that waits costs %d requests", n)
	}
	// The secret is deleted, and the kubelet misses it.
	if err := secrets.Delete(t.Context(), "ekg-"+idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(10 * time.Second))
	missed := corev1.Event{
		Reason:  "FailedMount",
		Message: fmt.Sprintf(`MountVolume.SetUp failed for volume "secret" : secret "ekg-%s-1" not found`, idA),
	}
	missed.InvolvedObject = corev1.ObjectReference{Name: idA + "-1", UID: c.pod(t, idA+"-1").UID}
	missed.LastTimestamp = metav1.NewTime(time.Unix(0, now.Load()))
	l.handleEvent(&missed)
	l.maintainKernel(t.Context(), k)
	if _, err := secrets.Get(t.Context(), "ekg-"+idA+"-1", metav1.GetOptions{}); err != nil {
		t.Errorf("a secret that is missed was not made again: %v", err)
	}
	before = c.requests()
	l.maintainKernel(t.Context(), k)
	if n := c.requests() - before; n != 0 {
		t.Errorf("a secret that was made again costs %d requests", n)
	}
	patient := start(idB, map[string]string{"KERNEL_LAUNCH_TIMEOUT": "7200"})
	now.Add(int64(31 * time.Minute))
	l.maintainKernel(t.Context(), k)
	l.maintainKernel(t.Context(), patient)
	shown := waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if shown.Reason != "its start made no progress for 30m0s: it waits for the scheduler" {
		t.Errorf("%+v", shown)
	}
	if k, err := l.Kernel(t.Context(), idB); err != nil || k.State != api.Starting {
		t.Errorf("a start that may take longer: %+v, %v", k, err)
	}
}

// TestMaintain_UnreachableKernel: a gateway that cannot reach a supervisor does not end its kernel, however old it is.
// A kernel of which the supervisor reports no answer is ended.
func TestMaintain_UnreachableKernel(t *testing.T) {
	c, f := newRunning(t, 2)
	old := metav1.NewTime(time.Now().Add(-2 * time.Hour))
	for n := range 2 {
		c.setPod(t, idOf(n)+"-1", func(pod *corev1.Pod) {
			pod.CreationTimestamp = old
			for i := range pod.Status.ContainerStatuses {
				pod.Status.ContainerStatuses[i].State.Running.StartedAt = old
			}
		})
	}
	f.mu.Lock()
	delete(f.all, idOf(0)+"-1") // it cannot be dialled
	f.mu.Unlock()
	f.of(idOf(1)).set(func(st *api.Status) { st.State = api.Starting })
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.maintenance = time.Hour })
	waitFor(t, l, idOf(1), func(k launcher.Kernel) bool { return !k.Stale })
	for n := range 2 {
		k, err := l.lookUp(idOf(n))
		if err != nil {
			t.Fatal(err)
		}
		l.maintainKernel(t.Context(), k)
	}
	if k, err := l.Kernel(t.Context(), idOf(0)); err != nil || k.State == api.Dead {
		t.Errorf("a kernel that cannot be reached: %+v, %v", k, err)
	}
	waitFor(t, l, idOf(1), func(k launcher.Kernel) bool { return k.State == api.Dead })
}

// TestMaintain_EarlierKeys: a pod in a user's namespace waits, and an earlier release has written its record. It gets
// no secret from this gateway. Its start ends like any other that makes no progress.
func TestMaintain_EarlierKeys(t *testing.T) {
	c := newTestCluster(t)
	var now atomic.Int64
	now.Store(time.Now().UnixNano())
	change := withNamespaces(t, namespacePolicy)
	l := openTest(t, c, func(o *Options, tm *timing) {
		change(o, tm)
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
		tm.maintenance = time.Hour // the test calls maintainKernel
	})
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	k, err := l.lookUp(idA)
	if err != nil {
		t.Fatal(err)
	}
	pods := c.CoreV1().Pods("kernels-ann")
	pod, err := pods.Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod = pod.DeepCopy()
	pod.Status.Phase, pod.Annotations[podspec.Domain+"key-version"] = corev1.PodPending, "1"
	if _, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l, idA, func(launcher.Kernel) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return k.pod.Status.Phase == corev1.PodPending
	})
	now.Add(int64(31 * time.Minute))
	l.maintainKernel(t.Context(), k)
	l.maintainKernel(t.Context(), k)
	shown := waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	if !strings.Contains(shown.Reason, "no progress") {
		t.Errorf("%+v", shown)
	}
}
