package kube

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// gpuRequest is a plain start of a kernelspec whose kernels get a GPU.
func gpuRequest(id, spec string) launcher.Request {
	req := testRequest(id)
	req.Spec.Name, req.Spec.Metadata = spec, []byte(`{"ekg": {"resources": {"limits": {"nvidia.com/gpu": "1"}}}}`)
	return req
}

// warmWithGPU lets a gateway keep so many warm kernels with a GPU. asked is called when it looks how many.
func warmWithGPU(o *Options, count int, asked func()) {
	o.Pods.Policy = wish.DefaultPolicy()
	o.Pods.Policy.Kernelspecs.WarmGPUs = true
	o.Warm = func() []launcher.Warm {
		asked()
		return []launcher.Warm{{Start: gpuRequest(uuid.Nil.String(), "python3"), Count: count}}
	}
}

// A warm kernel holds the only GPU. It is ended for a kernel that waits, at once, and no other is created before that
// kernel has a node. A warm pod that waits for a node itself is ended, too. Their GPUs are not held by kernels.
func TestWarm_GivesWay(t *testing.T) {
	c, f := newRunning(t, 0)
	gone := c.linger(t)
	var now, rounds atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		warmWithGPU(o, 2, func() { rounds.Add(1) })
	})
	c.runWarm(t, f, 2, []*Launcher{l})
	var holds, waits string
	for i, pod := range c.warmPods(t) {
		if i == 0 {
			holds = pod.Name
			c.setPod(t, pod.Name, func(p *corev1.Pod) { p.Spec.NodeName = "node-1" })
			continue
		}
		waits = pod.Name
		c.setPod(t, pod.Name, func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} })
	}
	eventually(t, "the warm kernel holds the GPU", func() bool {
		view, err := l.ViewGPUs(t.Context())
		return err == nil && len(view.Nodes) == 1 && view.Nodes[0].Pools[0].HeldWarm() == 1 &&
			view.Nodes[0].Pools[0].Held() == 0 && view.Nodes[0].Pools[0].Warm[0].SpecName == "python3"
	})
	k, _, err := l.Start(t.Context(), gpuRequest(uuid.NewString(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	c.setPod(t, podspec.PodName(k.ID, 1), func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Now(),
			Message: "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}}
	})
	eventually(t, "both are ended", func() bool {
		ends := 0
		for _, pod := range c.warmPods(t) {
			if pod.DeletionTimestamp != nil {
				ends++
			}
		}
		return ends == 2
	})
	gone(holds)
	gone(waits)
	from := rounds.Load()
	eventually(t, "the reaper has looked", func() bool { return rounds.Load() > from+3 })
	m := l.Measure()
	if n := len(c.warmPods(t)); n != 0 || m.Warm["python3"].Reason != launcher.WaitsForGPU {
		t.Errorf("%d are created beside it, %+v", n, m.Warm)
	}
	if m.WarmGaveWay["python3"] != 1 {
		t.Errorf("%v gave way", m.WarmGaveWay)
	}
	c.setPod(t, podspec.PodName(k.ID, 1), func(p *corev1.Pod) {
		p.Spec.NodeName = "node-1"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	})
	eventually(t, "the next ones are created", func() bool { return len(c.warmPods(t)) == 2 })
}

// A quota does not allow the pod of a start, because it counts a warm kernel. That gives way, and the start goes on.
func TestWarm_GivesWayToQuota(t *testing.T) {
	c, f := newRunning(t, 0)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		tm.now = time.Now
		warmWithGPU(o, 1, func() {})
	})
	c.runWarm(t, f, 1, []*Launcher{l})
	c.PrependReactor("create", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
		all, err := c.Tracker().List(corev1.SchemeGroupVersion.WithResource("pods"),
			corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
		if err != nil || len(all.(*corev1.PodList).Items) == 0 {
			return false, nil, err
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("exceeded quota: team, "+
			"requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"))
	})
	id := uuid.NewString()
	if k, created, err := l.Start(t.Context(), gpuRequest(id, "other")); err != nil || !created || k.ID != id {
		t.Fatalf("%+v, %v, %v", k, created, err)
	}
	if n := l.Measure().WarmGaveWay["python3"]; n != 1 {
		t.Errorf("%d gave way", n)
	}
	if _, _, err := l.Start(t.Context(), gpuRequest(uuid.NewString(), "other")); !isOverQuota(err) {
		t.Errorf("without a warm kernel: %v", err)
	}
}

// isOverQuota reports whether a start was refused because of a quota.
func isOverQuota(err error) bool {
	failed := (*launcher.FailedError)(nil)
	return errors.As(err, &failed) && failed.Class == launcher.FailedQuota
}

// A pod has waited for long when a warm kernel is ended for it. Then the scheduler has time to use that room. No other
// one is ended meanwhile, also when the first is gone.
func TestWarm_GivesWayOnce(t *testing.T) {
	c, f := newRunning(t, 0)
	gone := c.linger(t)
	var now, rounds atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		warmWithGPU(o, 2, func() { rounds.Add(1) })
	})
	c.runWarm(t, f, 2, []*Launcher{l})
	for i, pod := range c.warmPods(t) {
		c.setPod(t, pod.Name, func(p *corev1.Pod) { p.Spec.NodeName = "node-" + strconv.Itoa(i) })
	}
	eventually(t, "the gateway knows their nodes", func() bool {
		return !slices.ContainsFunc(l.warm.Pods(), func(p *corev1.Pod) bool {
			return !strings.HasPrefix(p.Spec.NodeName, "node-")
		})
	})
	k, _, err := l.Start(t.Context(), gpuRequest(uuid.NewString(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	c.setPod(t, podspec.PodName(k.ID, 1), func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Minute)),
			Message: "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."}}
	})
	ends := func() (names []string) {
		for _, pod := range c.warmPods(t) {
			if pod.DeletionTimestamp != nil {
				names = append(names, pod.Name)
			}
		}
		return names
	}
	eventually(t, "one is ended", func() bool { return len(ends()) > 0 })
	look := func() {
		from := rounds.Load()
		eventually(t, "the reaper has looked", func() bool { return rounds.Load() > from+3 })
	}
	look()
	first := ends()
	if len(first) != 1 {
		t.Fatalf("%v are ended", first)
	}
	gone(first[0])
	eventually(t, "the gateway knows that it is gone", func() bool { return len(l.warm.Pods()) == 1 })
	look()
	if more := ends(); len(more) != 0 {
		t.Fatalf("%v are ended, too", more)
	}
	now.Add(int64(gpuview.StaleRoom))
	eventually(t, "that room does not help, and the other is ended", func() bool { return len(ends()) == 1 })
}

// A quota that the end of warm kernels cannot satisfy leaves them.
func TestWarm_KeptForQuota(t *testing.T) {
	c, f := newRunning(t, 0)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		warmWithGPU(o, 1, func() {})
	})
	c.runWarm(t, f, 1, []*Launcher{l})
	var refused atomic.Pointer[[2]string] // the resource, and why
	refused.Store(&[2]string{})
	for _, of := range []string{"pods", "secrets"} {
		c.PrependReactor("create", of, func(k8stesting.Action) (bool, runtime.Object, error) {
			r := refused.Load()
			err := errors.New("exceeded quota: team, " + r[1])
			return of == r[0], nil, apierrors.NewForbidden(corev1.Resource(of), "x", err)
		})
	}
	const gpu = "requests.nvidia.com/gpu"
	for _, c := range []struct{ of, requested, used, limited string }{
		{"pods", "limits.memory=16Gi," + gpu + "=1", "limits.memory=0," + gpu + "=1", "limits.memory=8Gi," + gpu + "=1"},
		{"pods", gpu + "=1", gpu + "=3", gpu + "=2"},
		{"pods", "services=1", "services=1", "services=1"},
		{"secrets", "secrets=1", "secrets=1", "secrets=1"},
		{"secrets", "pods=1", "pods=1", "pods=1"},
	} {
		reason := "requested: " + c.requested + ", used: " + c.used + ", limited: " + c.limited
		refused.Store(&[2]string{c.of, reason})
		if _, _, err := l.Start(t.Context(), gpuRequest(uuid.NewString(), "other")); !isOverQuota(err) {
			t.Errorf("%s: %v", reason, err)
		}
		if n := l.Measure().WarmGaveWay["python3"]; n != 0 {
			t.Fatalf("%s: %d gave way", reason, n)
		}
	}
}
