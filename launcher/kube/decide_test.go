package kube

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// leads makes a launcher hold a lease that lasts, and decide when the test says so.
func leads(t *testing.T, l *Launcher) *leadership {
	t.Helper()
	lease := &leaseClock{Interface: &fakeLock{}, lasts: time.Hour}
	if err := lease.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "this"}); err != nil {
		t.Fatal(err)
	}
	gone, err := lru.New[types.UID, bool](8)
	if err != nil {
		t.Fatal(err)
	}
	now := &leadership{
		id:      "now",
		lease:   lease,
		changed: make(chan struct{}, 1),
		pods:    map[types.UID]*candidate{},
		gone:    gone,
	}
	l.mu.Lock()
	l.leadership = now
	l.mu.Unlock()
	return now
}

// An admission without an answer counts until its result is known.
func TestAdmission_AnswerThatIsLost(t *testing.T) {
	timeout := apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	for name, lost := range map[string]struct {
		done bool
		err  error
	}{
		"it was not done":                     {false, timeout},
		"it was done":                         {true, timeout},
		"it was done, and the answer is lost": {true, errors.New("connection reset by peer")},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			c.otherLeads(t)
			var once atomic.Bool
			c.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
				patch, ok := a.(k8stesting.PatchActionImpl)
				if !ok || !strings.Contains(string(patch.Patch), "schedulingGates") || once.Swap(true) {
					return false, nil, nil
				}
				if lost.done {
					if _, _, err := c.patchPod(patch); err != nil {
						t.Error(err)
					}
				}
				return true, nil, lost.err
			})
			limits := &testLimits{all: 1, each: 1}
			l, _ := openWithoutLease(t, c, limits)
			for _, id := range []string{idA, idB} {
				if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
					t.Fatal(err)
				}
			}
			now := leads(t, l)
			if err := l.beginLeading(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			if err := l.decide(t.Context(), now); err == nil {
				t.Error("nothing was lost")
			}
			if err := l.decide(t.Context(), now); err != nil {
				t.Error(err)
			}
			if a, b := c.pod(t, idA+"-1"), c.pod(t, idB+"-1"); podstatus.IsGated(a) || !podstatus.IsGated(b) ||
				podstatus.IsUndecided(b) {
				t.Errorf("%v, %v: %+v", podstatus.IsGated(a), podstatus.IsGated(b), c.census())
			}
		})
	}
}

// A gateway whose lease may have ended decides nothing.
func TestAdmission_LeaseEndsBeforeTheDecision(t *testing.T) {
	c := newTestCluster(t)
	c.otherLeads(t)
	l, _ := openWithoutLease(t, c, &testLimits{all: 1, each: 1})
	if _, _, err := l.Start(t.Context(), testRequest(idA)); err != nil {
		t.Fatal(err)
	}
	late := leads(t, l)
	lease := late.lease
	if err := lease.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err == nil {
		t.Fatal("what was never read is given back")
	}
	if err := errors.Join(l.beginLeading(t.Context(), late), l.decide(t.Context(), late)); !errors.Is(err, errNotHeld) {
		t.Errorf("%v", err)
	}
	if !podstatus.IsUndecided(c.pod(t, idA+"-1")) {
		t.Error("it was decided about")
	}
	own := resourcelock.LeaderElectionRecord{HolderIdentity: "this"}
	if err := errors.Join(lease.Update(t.Context(), own), l.decide(t.Context(), late)); err != nil ||
		podstatus.IsUndecided(c.pod(t, idA+"-1")) {
		t.Errorf("with the lease: %v", err)
	}
}

// Before a start is refused, the pods are listed again.
func TestAdmission_ListsAgainBeforeRefusing(t *testing.T) {
	c := newTestCluster(t)
	c.otherLeads(t)
	l, _ := openWithoutLease(t, c, &testLimits{all: 1, each: 1})
	for _, id := range []string{idA, idB} {
		if _, _, err := l.Start(t.Context(), testRequest(id)); err != nil {
			t.Fatal(err)
		}
	}
	deaf := leads(t, l)
	l.mu.Lock()
	l.leadership = nil // no events from informers
	l.mu.Unlock()
	for _, id := range []string{idA, idB} {
		pod := c.pod(t, id+"-1")
		rec, err := podspec.ReadRecord(pod)
		if err != nil {
			t.Fatal(err)
		}
		if id == idA {
			pod.Spec.SchedulingGates = nil // it was admitted, and its pod has gone since
			if err := c.CoreV1().Pods("ns").Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		deaf.updatePodLocked(pod, rec)
	}
	if err := l.decide(t.Context(), deaf); err != nil {
		t.Fatal(err)
	}
	if pod := c.pod(t, idB+"-1"); podstatus.IsGated(pod) {
		t.Errorf("it was refused: %v", pod.Annotations)
	}
}

// One list of all pods serves many refusals.
func TestAdmission_RefusalsShareAList(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, fastAdmission(&testLimits{all: 1, each: 1}))
	startTest(t, l, numberedID(0))
	before := len(c.podLists())
	began := time.Now()
	const refusals = 50
	for n := 1; n <= refusals; n++ {
		if _, _, err := l.Start(t.Context(), testRequest(numberedID(n))); !errors.As(err, new(*launcher.LimitError)) {
			t.Fatalf("start %d: %v", n, err)
		}
	}
	most := 2 + int(time.Since(began)/relistPause)
	if n := len(c.podLists()) - before; n > most {
		t.Errorf("%d refusals have listed all pods %d times, want at most %d", refusals, n, most)
	}
}

// parallelClient counts the patches of pods that are sent at the same time. Each takes some time.
type parallelClient struct {
	kubernetes.Interface
	now, most *atomic.Int64
}

func (c parallelClient) CoreV1() coreclient.CoreV1Interface {
	return parallelCore{c.Interface.CoreV1(), c}
}

type parallelCore struct {
	coreclient.CoreV1Interface
	c parallelClient
}

func (c parallelCore) Pods(ns string) coreclient.PodInterface {
	return parallelPods{c.CoreV1Interface.Pods(ns), c.c}
}

type parallelPods struct {
	coreclient.PodInterface
	c parallelClient
}

func (p parallelPods) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, o metav1.PatchOptions,
	sub ...string) (*corev1.Pod, error) {
	n := p.c.now.Add(1)
	defer p.c.now.Add(-1)
	for most := p.c.most.Load(); n > most && !p.c.most.CompareAndSwap(most, n); {
		most = p.c.most.Load()
	}
	time.Sleep(20 * time.Millisecond)
	return p.PodInterface.Patch(ctx, name, pt, data, o, sub...)
}

// Decisions are sent at the same time, at most so many. The first starts are admitted and the others refused, in the
// order of their creation, although the first decision has to be repeated.
func TestAdmission_Parallel(t *testing.T) {
	const starts, admitted = 3 * decisionsAtOnce, 2*decisionsAtOnce + 3
	c := newTestCluster(t)
	c.otherLeads(t)
	var now, most atomic.Int64
	l := openTest(t, c, func(o *Options, tm *timing) {
		o.Limits = &testLimits{all: admitted, each: admitted}
		client := parallelClient{c.Clientset, &now, &most}
		o.Cluster = &Cluster{client: client, leases: c.Clientset, Namespace: "ns"}
		tm.decision = time.Millisecond
		tm.admission = leaseTiming{duration: time.Hour, renew: 30 * time.Minute, retry: 20 * time.Minute}
	})
	for n := range starts {
		if _, _, err := l.Start(t.Context(), testRequest(idOf(n))); err != nil {
			t.Fatal(err)
		}
	}
	term := leads(t, l)
	if err := l.beginLeading(t.Context(), term); err != nil {
		t.Fatal(err)
	}
	if got := most.Swap(0); got < 2 || got > decisionsAtOnce {
		t.Errorf("%d pods get a new version at the same time", got)
	}
	var once atomic.Bool
	c.PrependReactor("patch", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		patch := a.(k8stesting.PatchActionImpl)
		if !strings.Contains(string(patch.Patch), "schedulingGates") || once.Swap(true) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewConflict(schema.GroupResource{}, patch.Name, errors.New("it has changed"))
	})
	if err := l.decide(t.Context(), term); err != nil {
		t.Fatal(err)
	}
	if got := most.Load(); got < 2 || got > decisionsAtOnce {
		t.Errorf("%d decisions are sent at the same time", got)
	}
	for n := range starts {
		pod := c.pod(t, idOf(n)+"-1")
		if podstatus.IsUndecided(pod) || podstatus.IsGated(pod) != (n >= admitted) {
			t.Errorf("start %d of %d: gated %v, undecided %v", n, starts, podstatus.IsGated(pod), podstatus.IsUndecided(pod))
		}
	}
}
