package kube

import (
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestMaintain_Kueue: the time that a pod waits in a queue of Kueue does not count against the start limit. A gateway
// that has started since then gives the pod the whole limit again.
func TestMaintain_Kueue(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	open := func() *Launcher {
		return openTest(t, c, func(_ *Options, tm *timing) {
			tm.now = func() time.Time { return time.Unix(0, now.Load()) }
			tm.maintenance = time.Hour // the test calls maintainKernel
		})
	}
	l := open()
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	gate := func(gates ...corev1.PodSchedulingGate) {
		c.setPod(t, idA+"-1", func(pod *corev1.Pod) {
			pod.CreationTimestamp = metav1.NewTime(time.Unix(0, now.Load()))
			if pod.Spec.SchedulingGates = gates; len(gates) == 0 {
				pod.CreationTimestamp = metav1.NewTime(time.Unix(0, now.Load()).Add(-48 * time.Hour))
			}
			pod.Labels["kueue.x-k8s.io/managed"] = "true"
		})
	}
	maintained := func(l *Launcher, queued bool) launcher.Kernel {
		t.Helper()
		var k *kernel
		waitFor(t, l, idA, func(launcher.Kernel) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			k = l.kernels[idA]
			return podstatus.IsQueued(k.pod) == queued && k.pod.Labels["kueue.x-k8s.io/managed"] != ""
		})
		l.maintainKernel(t.Context(), k)
		d, err := l.Kernel(t.Context(), idA)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	gate(corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"})
	now.Add(int64(48 * time.Hour))
	if k := maintained(l, true); k.State != api.Starting {
		t.Errorf("it waits in the queue: %+v", k)
	}
	gate()
	if k := maintained(l, false); k.State != api.Starting {
		t.Errorf("it was admitted just now: %+v", k)
	}
	now.Add(int64(29 * time.Minute))
	if k := maintained(l, false); k.State != api.Starting {
		t.Errorf("it was admitted 29 minutes ago: %+v", k)
	}
	other := open()
	now.Add(int64(2 * time.Minute))
	if k := maintained(other, false); k.State != api.Starting {
		t.Errorf("for a gateway that has started since then: %+v", k)
	}
	maintained(l, false)
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
}
