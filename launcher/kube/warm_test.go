package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/election"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/warmpods"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// warmGateways opens gateways that keep so many warm kernels.
func warmGateways(t *testing.T, c *testCluster, now *atomic.Int64, wanted *atomic.Int64, n int) (all []*Launcher) {
	t.Helper()
	for range n {
		all = append(all, openTest(t, c, func(o *Options, tm *timing) {
			fastReaper(now)(o, tm)
			tm.firstRedial, tm.lastRedial = 10*time.Millisecond, 10*time.Millisecond
			o.Warm = func() []launcher.Warm {
				if wanted.Load() == 0 {
					return nil
				}
				return []launcher.Warm{{Start: testRequest(uuid.Nil.String()), Count: int(wanted.Load())}}
			}
		}))
	}
	return all
}

// warmPods returns the pods of warm kernels.
func (c *testCluster) warmPods(t *testing.T) (all []corev1.Pod) {
	t.Helper()
	list, err := c.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{
		LabelSelector: podspec.LabelManagedBy + "=" + podspec.ManagerWarm})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// runWarm waits for so many warm pods, and runs them.
func (c *testCluster) runWarm(t *testing.T, f *fakeSupervisors, n int, all []*Launcher) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d warm kernels", n), func() bool { return len(c.warmPods(t)) == n })
	run := func() {
		for i, pod := range c.warmPods(t) {
			ran := runningPod(t, 100+i, testRequest(idOf(i)))
			c.setPod(t, pod.Name, func(p *corev1.Pod) { p.Status = ran.Status })
		}
	}
	for _, pod := range c.warmPods(t) {
		f.add(t, &pod)
	}
	looks := 0
	for _, l := range all {
		eventually(t, "the gateway knows that they run", func() bool {
			if looks%500 == 0 { // again: the fake reports no change between a list and the watch that follows it
				run()
			}
			looks++
			running := 0
			for _, pod := range l.warm.Pods() {
				if warmpods.Runs(pod) {
					running++
				}
			}
			return running == n
		})
	}
}

// Several gateways take warm kernels at the same time: each is taken once, and has the owner of the start that got it.
// Before, no gateway lists them.
func TestWarm_OneOwner(t *testing.T) {
	c, f := newRunning(t, 0)
	var now, wanted atomic.Int64
	wanted.Store(4)
	all := warmGateways(t, c, &now, &wanted, 3)
	c.runWarm(t, f, 4, all)
	if listed, err := all[1].Kernels(t.Context()); err != nil || len(listed) != 0 {
		t.Fatalf("warm kernels are listed: %v %v", listed, err)
	}
	for _, pod := range c.warmPods(t) {
		if k, err := all[2].Kernel(t.Context(), pod.Labels[podspec.LabelKernel]); err == nil {
			t.Errorf("a warm kernel is found by its id: %+v", k)
		}
	}
	var mu sync.Mutex
	owners := map[string]string{}
	var starts sync.WaitGroup
	for i := range 9 {
		starts.Go(func() {
			req := testRequest(uuid.NewString())
			req.AnyID, req.Owner = true, fmt.Sprintf("user-%d", i)
			k, created, err := all[i%len(all)].Start(t.Context(), req)
			if err != nil || !created || k.Owner != req.Owner {
				t.Errorf("start of %s: %+v, created %v, %v", req.Owner, k, created, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if before := owners[k.ID]; before != "" {
				t.Errorf("kernel %s is of %s and %s", k.ID, before, req.Owner)
			}
			owners[k.ID] = req.Owner
		})
	}
	starts.Wait()
	taken := int64(0)
	for _, l := range all {
		taken += l.Measure().WarmClaims[launcher.WarmClaim{SpecName: "python3", Result: launcher.ClaimTaken}]
	}
	if taken != 4 {
		t.Errorf("%d warm kernels were taken", taken)
	}
	assigned := map[string]string{}
	f.mu.Lock()
	for _, s := range f.all {
		s.mu.Lock()
		if s.assigned.ID != "" {
			assigned[s.id] = s.assigned.Owner
		}
		s.mu.Unlock()
	}
	f.mu.Unlock()
	if len(assigned) != 4 {
		t.Errorf("%d kernels were assigned", len(assigned))
	}
	for id, owner := range assigned {
		if owners[id] != owner {
			t.Errorf("kernel %s of %s was assigned to %s", id, owners[id], owner)
		}
	}
	wanted.Store(0)
	eventually(t, "no warm kernel is left", func() bool { return len(c.warmPods(t)) == 0 })
}

// A warm kernel that was taken gets no owner before limits have decided about the start. Without a decision in time it
// is ended, and the start is an ordinary one, which waits for the decision.
func TestWarm_Undecided(t *testing.T) {
	c, f := newRunning(t, 0)
	c.otherLeads(t)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		o.Limits = &testLimits{all: 1, each: 1}
		tm.decision = 50 * time.Millisecond
		tm.admission = election.Timing{Duration: time.Hour, Renew: 30 * time.Minute, Retry: 20 * time.Minute}
		o.Warm = func() []launcher.Warm {
			return []launcher.Warm{{Start: testRequest(uuid.Nil.String()), Count: 1}}
		}
	})
	c.runWarm(t, f, 1, []*Launcher{l})
	warm := c.warmPods(t)[0].Name
	req := testRequest(uuid.NewString())
	req.AnyID, req.Owner = true, "ann"
	k, created, err := l.Start(t.Context(), req)
	if err != nil || !created || k.ID != req.ID || k.Reason != "it waits for limits to admit it" {
		t.Errorf("%+v, created %v, %v", k, created, err)
	}
	f.mu.Lock()
	s := f.all[warm]
	f.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.assigned.ID != "" {
		t.Errorf("the warm kernel was assigned to %s", s.assigned.Owner)
	}
	eventually(t, "the warm kernel is ended", func() bool { return !c.podThere(t, warm) })
}

// A start that limits refuse leaves the warm kernel to others.
func TestWarm_Refused(t *testing.T) {
	c, f := newRunning(t, 0)
	var now atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		real := tm.lease
		fastAdmission(&testLimits{all: 2, each: 1})(o, tm)
		tm.lease = real
		tm.firstRedial, tm.lastRedial = 10*time.Millisecond, 10*time.Millisecond
		o.Warm = func() []launcher.Warm {
			return []launcher.Warm{{Start: testRequest(uuid.Nil.String()), Count: 1}}
		}
	})
	c.runWarm(t, f, 1, []*Launcher{l})
	warm := c.warmPods(t)[0].Name
	start := func(owner string, anyID bool) (launcher.Kernel, error) {
		req := testRequest(uuid.NewString())
		req.AnyID, req.Owner = anyID, owner
		k, _, err := l.Start(t.Context(), req)
		return k, err
	}
	if _, err := start("ann", false); err != nil { // an id of her own: an ordinary start
		t.Fatal(err)
	}
	var refused *launcher.LimitError
	if _, err := start("ann", true); !errors.As(err, &refused) || refused.Limit != "test" {
		t.Fatalf("the second kernel of ann: %v", err)
	}
	if all := c.warmPods(t); len(all) != 1 || all[0].Name != warm {
		t.Fatalf("the warm kernel is gone: %d", len(all))
	}
	if k, err := start("bob", true); err != nil || podspec.PodName(k.ID, 1) != warm {
		t.Errorf("bob did not get the warm kernel: %+v, %v", k, err)
	}
}

// A kernel that was taken by a gateway which died before it assigned the kernel is ended.
func TestWarm_HalfTaken(t *testing.T) {
	c, f := newRunning(t, 0)
	var now, wanted atomic.Int64
	wanted.Store(1)
	all := warmGateways(t, c, &now, &wanted, 1)
	c.runWarm(t, f, 1, all)
	pod := all[0].warm.Pods()[0]
	id := pod.Labels[podspec.LabelKernel]
	var claim []byte
	c.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchActionImpl)
		if claim != nil || !strings.Contains(string(patch.Patch), podspec.AnnotationClaim) {
			return false, nil, nil
		}
		claim = slices.Clone(patch.Patch)
		if _, _, err := c.patchPod(patch); err != nil {
			t.Error(err)
		}
		return true, nil, errors.New("the gateway dies")
	})
	req := testRequest(uuid.NewString())
	req.AnyID = true
	if k, _, err := all[0].Start(t.Context(), req); err == nil {
		t.Errorf("a start without an answer has %+v", k)
	}
	// A second start has the same version of the pod.
	if _, err := c.CoreV1().Pods("ns").Patch(t.Context(), pod.Name, types.MergePatchType, claim,
		metav1.PatchOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the second claim: %v", err)
	}
	eventually(t, "its supervisor says that it has no owner", func() bool {
		f.mu.Lock()
		s := f.all[pod.Name]
		f.mu.Unlock()
		s.set(func(st *api.Status) { st.Warm = true })
		l := all[0]
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.kernels[id]
		return k != nil && k.supervisor.HasStatus && k.supervisor.Status.Warm
	})
	now.Add(int64(warmFinish) + int64(time.Second))
	eventually(t, "it is ended", func() bool { return !c.podThere(t, pod.Name) })
}

// A warm kernel that ends while its secret is created is ended, and another one replaces it. The gateway must not take
// the answer to its own request for newer than what the watch has reported.
func TestWarm_EndsEarly(t *testing.T) {
	c, _ := newRunning(t, 0)
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	var now, wanted atomic.Int64
	var l *Launcher
	var ended string // the first pod
	reported := make(chan struct{})
	c.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		list, err := c.Tracker().List(pods, corev1.SchemeGroupVersion.WithKind("Pod"), "ns")
		if err != nil || ended != "" {
			return false, nil, err
		}
		pod := list.(*corev1.PodList).Items[0].DeepCopy()
		pod.Status.Phase = corev1.PodFailed
		ended = pod.Name
		looks := 0
		eventually(t, "the watch has reported its end", func() bool {
			if looks%500 == 0 { // again: the fake reports no change between a list and the watch that follows it
				pod.ResourceVersion = strconv.FormatInt(c.version.Add(1), 10)
				if err := c.Tracker().Update(pods, pod, "ns"); err != nil {
					t.Error(err)
				}
			}
			looks++
			known := l.warm.Pods()
			return len(known) == 1 && known[0].ResourceVersion == pod.ResourceVersion
		})
		close(reported)
		return false, nil, nil
	})
	l = warmGateways(t, c, &now, &wanted, 1)[0]
	wanted.Store(1)
	<-reported
	eventually(t, "it is ended", func() bool { return !c.podThere(t, ended) })
	now.Add(int64(2 * time.Minute)) // failures do not hold the next one back
	eventually(t, "another one replaces it", func() bool { return len(c.warmPods(t)) == 1 })
}

// linger makes a deleted pod stay until its kubelet has ended it, which gone does.
func (c *testCluster) linger(t *testing.T) (gone func(name string)) {
	t.Helper()
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	c.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		o, err := c.Tracker().Get(pods, a.GetNamespace(), a.(k8stesting.DeleteActionImpl).Name)
		if err != nil {
			return true, nil, err
		}
		pod := o.(*corev1.Pod).DeepCopy()
		if pod.DeletionTimestamp == nil {
			pod.DeletionTimestamp = new(metav1.Now())
			pod.ResourceVersion = strconv.FormatInt(c.version.Add(1), 10)
			err = c.Tracker().Update(pods, pod, pod.Namespace)
		}
		return true, nil, err
	})
	return func(name string) {
		if err := c.Tracker().Delete(pods, "ns", name); err != nil {
			t.Error(err)
		}
	}
}

// A warm kernel that was taken and could not be given to its owner counts as a warm one until its pod is gone: the
// start of its owner is not refused, and no other pod replaces it. So there are never more pods than warm kernels are
// wanted and limits allow.
func TestWarm_Discarded(t *testing.T) {
	c, f := newRunning(t, 0)
	gone := c.linger(t)
	var now, rounds atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		fastReaper(&now)(o, tm)
		real := tm.lease
		fastAdmission(&testLimits{all: 1, each: 1})(o, tm)
		tm.lease, tm.maintenance = real, 5*time.Millisecond
		tm.firstRedial, tm.lastRedial = 10*time.Millisecond, 10*time.Millisecond
		o.Warm = func() []launcher.Warm {
			rounds.Add(1)
			return []launcher.Warm{{Start: testRequest(uuid.Nil.String()), Count: 1}}
		}
	})
	c.runWarm(t, f, 1, []*Launcher{l})
	warm := c.warmPods(t)[0].Name
	f.mu.Lock()
	s := f.all[warm]
	f.mu.Unlock()
	s.mu.Lock()
	s.assigned.ID = "another's" // it refuses any other
	s.mu.Unlock()
	s.set(func(st *api.Status) { st.Warm = true })
	req := testRequest(uuid.NewString())
	req.AnyID = true
	if k, created, err := l.Start(t.Context(), req); err != nil || !created || k.ID != req.ID {
		t.Errorf("%+v, created %v, %v", k, created, err)
	}
	if !c.podThere(t, warm) {
		t.Fatal("the pod is gone")
	}
	now.Add(int64(2 * time.Minute)) // failures do not hold the next one back
	from := rounds.Load()
	eventually(t, "the reaper has looked", func() bool { return rounds.Load() > from+3 })
	if n := len(c.warmPods(t)); n != 0 {
		t.Errorf("%d pods replace the one that is still there", n)
	}
	gone(warm)
	eventually(t, "another one replaces it", func() bool { return len(c.warmPods(t)) == 1 })
	// The same holds for one that is replaced.
	replaced := c.warmPods(t)[0].Name
	c.setPod(t, replaced, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	eventually(t, "it is ended", func() bool {
		pod, err := c.CoreV1().Pods("ns").Get(t.Context(), replaced, metav1.GetOptions{})
		return err == nil && pod.DeletionTimestamp != nil
	})
	now.Add(int64(2 * time.Minute))
	from = rounds.Load()
	eventually(t, "the reaper has looked again", func() bool { return rounds.Load() > from+3 })
	if n := len(c.warmPods(t)); n != 1 {
		t.Errorf("there are %d pods", n)
	}
	gone(replaced)
	eventually(t, "another one replaces it, too", func() bool {
		all := c.warmPods(t)
		return len(all) == 1 && all[0].Name != replaced
	})
}
