package kube

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

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
