package kube

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestProveFresh_ReadsChanges: a proof lists the pods' metadata, and reads only the pods that have changed. If many
// have changed, it lists all. Pods that are gone are noticed.
func TestProveFresh_ReadsChanges(t *testing.T) {
	c := newTestCluster(t)
	silent := c.silence()
	other := openTest(t, c, nil)
	silent.Store(true) // so this one learns by proofs only
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	l := openTest(t, c, func(_ *Options, tm *timing) { tm.now = func() time.Time { return time.Unix(0, now.Load()) } })
	prove := func(what string, kernels int, want ...string) {
		t.Helper()
		now.Add(int64(l.timing.fresh))
		before := len(c.podRequests())
		all, err := l.Kernels(t.Context())
		if err != nil || len(all) != kernels {
			t.Errorf("%s: %d kernels, want %d; %v", what, len(all), kernels, err)
		}
		if got := c.podRequests()[before:]; !slices.Equal(got, want) {
			t.Errorf("%s: requests %v, want %v", what, got, want)
		}
	}
	prove("without kernels", 0, "list")
	startTest(t, other, numberedID(0))
	startTest(t, other, numberedID(1))
	prove("two are new", 2, "list", "get", "get")
	prove("nothing has changed", 2, "list")
	c.setPod(t, numberedID(0)+"-1", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	prove("one has ended", 2, "list", "get")
	if k, err := l.Kernel(t.Context(), numberedID(0)); err != nil || k.State != api.Dead {
		t.Errorf("it is %+v, %v", k, err)
	}
	for n := range maxChanged + 1 {
		startTest(t, other, numberedID(10+n))
	}
	prove("many are new", 2+maxChanged+1, "list", "list")
	if err := other.Stop(t.Context(), numberedID(1), "not needed"); err != nil {
		t.Fatal(err)
	}
	if err := l.refresh(t.Context(), numberedID(10)); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(l.timing.fresh))
	if _, err := l.Kernels(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k, err := l.Kernel(t.Context(), numberedID(1)); err == nil && k.State != api.Dead {
		t.Errorf("one that was stopped is %+v", k)
	}
}

// TestProveFresh_LateEvents: a list shows a gateway that a pod is gone, before its watch says that the kernel was
// stopped. Then the kernel does not stay dead.
func TestProveFresh_LateEvents(t *testing.T) {
	for name, event := range map[string]func(*Launcher, *corev1.Pod){
		"of a change":  (*Launcher).updatePod,
		"of a removal": (*Launcher).podRemoved,
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			silent := c.silence()
			other := openTest(t, c, nil)
			silent.Store(true)
			l := openTest(t, c, func(_ *Options, tm *timing) { tm.fresh = time.Nanosecond })
			startTest(t, other, idA)
			if all, err := l.Kernels(t.Context()); err != nil || len(all) != 1 {
				t.Fatalf("%v, %v", all, err)
			}
			last := c.pod(t, idA+"-1").DeepCopy()
			for key, value := range endingAnnotation(last, endings.Ending{Reason: "not needed", At: time.Now(), Stopped: true}) {
				last.Annotations[key] = value
			}
			last.ResourceVersion = "999999"
			if err := c.CoreV1().Pods("ns").Delete(t.Context(), last.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if all, err := l.Kernels(t.Context()); err != nil || len(all) != 1 || all[0].State != api.Dead {
				t.Fatalf("without the event: %v, %v", all, err)
			}
			event(l, last)
			var gone *launcher.GoneError
			if _, err := l.Kernel(t.Context(), idA); !errors.As(err, &gone) || gone.Reason != "not needed" {
				t.Errorf("with the event: %v", err)
			}
			if all, err := l.Kernels(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("with the event: %v, %v", all, err)
			}
		})
	}
}

// TestProveFresh_Frozen: after a pause of the whole process, a list is proved, however short ago the last proof was.
func TestProveFresh_Frozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f freshness
		f.checkBeat()
		for range 3 {
			time.Sleep(maxBeat)
			f.checkBeat()
		}
		if f.doubted() {
			t.Error("beats in time are taken for a pause")
		}
		time.Sleep(maxBeat + 1)
		f.checkBeat()
		if !f.doubted() {
			t.Error("the pause is not noticed")
		}
	})
}
