package kube

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// recorder is an Observer that records the reported events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (h *recorder) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf(format, args...))
}

func (h *recorder) KernelUp(spec string, phases []launcher.Phase) {
	text := "up " + spec
	for _, p := range phases {
		text += fmt.Sprintf(" %s=%v", p.Name, p.Took)
	}
	h.add("%s", text)
}
func (h *recorder) GPUWaited(flavor string, took time.Duration)       { h.add("waited %q %v", flavor, took) }
func (h *recorder) KernelFailed(spec string, why launcher.Failure)    { h.add("failed %s %s", spec, why) }
func (h *recorder) ClusterRequest(string, string, int, time.Duration) {}
func (h *recorder) ClusterWait(string, time.Duration)                 {}

func (h *recorder) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.events, "; ")
}

// A gateway reports the starts that it has begun, each once: up, failed, or neither if the kernel was stopped. Counts
// of supervisors and times of GPUs stay when kernels are gone.
func TestMeasure(t *testing.T) {
	c := newTestCluster(t)
	now := atomic.Int64{}
	now.Store(time.Now().UnixNano())
	h, other := new(recorder), new(recorder)
	l := openTest(t, c, func(o *Options, tm *timing) {
		o.Observer = h
		tm.now = func() time.Time { return time.Unix(0, now.Load()) }
	})
	openTest(t, c, func(o *Options, _ *timing) { o.Observer = other })
	begin := func(id string) *kernel {
		t.Helper()
		req := testRequest(id)
		req.Env = map[string]string{"KERNEL_GPUS": "1"}
		if _, _, err := l.Start(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.kernels[id]
		return k
	}
	var busy time.Duration // of the GPUs
	say := func(k *kernel, state api.State, lost int64) {
		status := api.Status{
			State:  state,
			GPUUse: api.GPUUse{Measured: busy, Busy: busy},
			Counts: api.Counts{Since: time.Unix(0, now.Load()).Add(time.Second), LogLost: lost},
		}
		enterLocked := func() (follow.Supervisor, bool) { return l.follower.EnterLocked(&k.supervisor, status), true }
		followed{l, k}.Receive(status, enterLocked)
	}
	up := begin(idA)
	say(up, api.Starting, 0)
	c.setPod(t, idA+"-1", func(p *corev1.Pod) {
		p.Spec.NodeName = "n"
		p.Status.Conditions = []corev1.PodCondition{
			{
				Type:               corev1.PodScheduled,
				Status:             corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(time.Unix(0, now.Load())),
			},
		}
	})
	eventually(t, "the pod's node is known", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return up.pod.Spec.NodeName != ""
	})
	if got := h.all(); got != "" {
		t.Errorf("before it is up: %s", got)
	}
	say(up, api.Idle, 5)
	say(up, api.Busy, 7)
	say(up, api.Idle, 7)
	if got := h.all(); !strings.HasPrefix(got, "up python3 admission=") || strings.Count(got, "up ") != 1 {
		t.Errorf("reported %s", got)
	}
	l.Measure()
	now.Add(int64(time.Minute))
	busy = 20 * time.Second
	say(up, api.Idle, 0)
	m := l.Measure()
	python3 := launcher.GPULabels{SpecName: "python3"}
	if m.GPUBusy[python3] != 20 {
		t.Errorf("busy for %g s", m.GPUBusy[python3])
	}
	busy = 30 * time.Second
	say(up, api.Idle, 0)
	if len(m.Kernels) != 1 || m.LogLost != 7 || m.GPUs[python3] != 1 || m.GPUSeconds[python3] < 59 ||
		m.GPUSeconds[python3] > 61 {
		t.Errorf("measured %+v", m)
	}
	now.Add(int64(30 * time.Second)) // until its end, without a call of Measure
	if err := c.CoreV1().Pods("ns").Delete(t.Context(), idA+"-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == api.Dead })
	now.Add(int64(time.Minute))
	after := l.Measure()
	if busy := after.GPUBusy[python3]; busy != 30 {
		t.Errorf("after its end it was busy for %g s", busy)
	}
	if after.LogLost != 7 || after.GPUs[python3] != 0 || after.GPUSeconds[python3] != m.GPUSeconds[python3]+30 {
		t.Errorf("after its end: %+v", after)
	}

	h.events = nil
	say(begin(idB), api.Dead, 0)
	stopped := begin("cccccccc-0000-4000-8000-000000000003")
	l.mu.Lock()
	l.endLocked(stopped, &endings.Ending{Reason: "it was shut down on request", Stopped: true})
	l.mu.Unlock()
	if got := h.all(); got != "failed python3 unscheduled" {
		t.Errorf("a kernel that fails, and one that is stopped: %s", got)
	}
	if got := other.all(); got != "" {
		t.Errorf("a gateway that has started nothing reported %s", got)
	}
}
