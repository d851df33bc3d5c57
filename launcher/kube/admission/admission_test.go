package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// cluster is a Cluster of pods in memory.
type cluster struct {
	term *Term
	deaf bool // what is read is not given to term

	now, most atomic.Int64 // patches that are being sent

	mu      sync.Mutex
	pods    map[types.UID]*corev1.Pod
	version int
	answer  func(pod *corev1.Pod, patch string) (carryOut bool, err error) // nil: all patches are carried out
}

var pods = schema.GroupResource{Resource: "pods"}

// upTo admits so many kernels.
type upTo int

func (n upTo) Set() bool { return true }

func (n upTo) Decide(_ launcher.Held, held []launcher.Held) (v launcher.Verdict) {
	if len(held) >= int(n) {
		v.Refused = &launcher.LimitError{Limit: "test", Reason: fmt.Sprintf("there are %d", len(held))}
	}
	return v
}

// newCluster returns a cluster with waiting pods a, b and so on, and a term that knows them once it has begun.
func newCluster(limits upTo, waiting int) (*cluster, *atomic.Bool) {
	c, holds := &cluster{pods: map[types.UID]*corev1.Pod{}}, &atomic.Bool{}
	holds.Store(true)
	c.term = NewTerm(Options{Cluster: c, Limits: limits, Holds: holds.Load, Now: time.Now,
		Log: slog.New(slog.DiscardHandler)})
	for i := range waiting {
		pod := &corev1.Pod{}
		pod.Name, pod.Namespace, pod.UID = nameOf(i), "ns", types.UID(nameOf(i))
		pod.Labels = map[string]string{podspec.LabelKernel: pod.Name}
		pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: podspec.GateLimits}}
		c.version++
		pod.ResourceVersion = strconv.Itoa(c.version)
		c.pods[pod.UID] = pod
	}
	return c, holds
}

func nameOf(i int) string { return fmt.Sprintf("%c%d", 'a'+i%26, i) }

func (c *cluster) heard(pod *corev1.Pod) {
	if !c.deaf {
		c.term.Update(Pod{Pod: pod, Record: podspec.Record{ID: pod.Name}})
	}
}

func (c *cluster) List(context.Context) (all []corev1.Pod, listed func(string) bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range c.pods {
		c.heard(pod)
		all = append(all, *pod)
	}
	return all, func(string) bool { return true }, nil
}

func (c *cluster) Read(_ context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.pods[pod.UID]
	if now != nil {
		c.heard(now)
	}
	return now, nil
}

func (c *cluster) Patch(_ context.Context, pod *corev1.Pod, patch []byte) error {
	n := c.now.Add(1)
	defer c.now.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); {
		most = c.most.Load()
	}
	time.Sleep(time.Millisecond) // in a bubble: all others are waiting by then
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answer != nil {
		if carryOut, err := c.answer(pod, string(patch)); !carryOut {
			return err
		} else if err != nil {
			return errors.Join(c.patchLocked(pod, patch, false), err)
		}
	}
	return c.patchLocked(pod, patch, true)
}

// patchLocked is the API server's merge of a patch.
func (c *cluster) patchLocked(pod *corev1.Pod, patch []byte, heard bool) error {
	var p struct {
		Metadata metav1.ObjectMeta
		Spec     *struct{ SchedulingGates []corev1.PodSchedulingGate }
	}
	now := c.pods[pod.UID]
	if err := json.Unmarshal(patch, &p); err != nil {
		return err
	} else if now == nil {
		return apierrors.NewNotFound(pods, pod.Name)
	} else if p.Metadata.ResourceVersion != now.ResourceVersion || p.Metadata.UID != now.UID {
		return apierrors.NewConflict(pods, pod.Name, errors.New("it has changed"))
	}
	next := now.DeepCopy()
	for name, value := range p.Metadata.Annotations {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, name, value)
	}
	if p.Spec != nil {
		next.Spec.SchedulingGates = p.Spec.SchedulingGates
	}
	c.version++
	next.ResourceVersion = strconv.Itoa(c.version)
	c.pods[pod.UID] = next
	if heard {
		c.heard(next)
	}
	return nil
}

func (c *cluster) Held(pods []Pod) (all []launcher.Held) {
	for _, p := range pods {
		all = append(all, launcher.Held{ID: p.Record.ID})
	}
	return all
}

func (c *cluster) Now() time.Time { return time.Now() }

// state says of a pod whether it waits, was admitted or was refused.
func (c *cluster) state(i int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch pod := c.pods[types.UID(nameOf(i))]; {
	case podstatus.IsUndecided(pod):
		return "waits"
	case podstatus.IsGated(pod):
		return "refused"
	}
	return "admitted"
}

func isAdmission(patch string) bool { return strings.Contains(patch, "schedulingGates") }

// TestTerm_AnswerThatIsLost: an admission without an answer counts until its result is known.
func TestTerm_AnswerThatIsLost(t *testing.T) {
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
			c, _ := newCluster(1, 2)
			once := false
			c.answer = func(_ *corev1.Pod, patch string) (bool, error) {
				if !isAdmission(patch) || once {
					return true, nil
				}
				once = true
				return lost.done, lost.err
			}
			if err := c.term.begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.term.decide(t.Context()); err == nil {
				t.Error("nothing was lost")
			}
			if err := c.term.decide(t.Context()); err != nil {
				t.Error(err)
			}
			if a, b := c.state(0), c.state(1); a != "admitted" || b != "refused" {
				t.Errorf("%s, %s", a, b)
			}
		})
	}
}

// TestTerm_LeaseEndsBeforeTheDecision: a gateway whose lease may have ended decides nothing.
func TestTerm_LeaseEndsBeforeTheDecision(t *testing.T) {
	c, holds := newCluster(1, 1)
	holds.Store(false)
	if err := errors.Join(c.term.begin(t.Context()), c.term.decide(t.Context())); !errors.Is(err, errNotHeld) {
		t.Errorf("%v", err)
	}
	if now := c.state(0); now != "waits" {
		t.Errorf("it is %s", now)
	}
	holds.Store(true)
	c.answer = func(_ *corev1.Pod, patch string) (bool, error) {
		holds.Store(!isAdmission(patch)) // it is sent, and then the lease ends
		return true, nil
	}
	if err := c.term.decide(t.Context()); err != nil || c.state(0) != "admitted" {
		t.Errorf("with the lease: %s, %v", c.state(0), err)
	}
}

// TestTerm_ListsAgainBeforeRefusing: the end of a kernel that no watch has reported is seen before a start is refused.
func TestTerm_ListsAgainBeforeRefusing(t *testing.T) {
	c, _ := newCluster(1, 2)
	for _, pod := range c.pods {
		if pod.Name == nameOf(0) {
			pod = pod.DeepCopy()
			pod.Spec.SchedulingGates = nil // it was admitted, and its pod has gone since
		}
		c.heard(pod)
	}
	delete(c.pods, types.UID(nameOf(0)))
	c.deaf = true
	if err := c.term.decide(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := c.state(1); now != "admitted" {
		t.Errorf("it is %s", now)
	}
}

// TestTerm_Parallel: decisions are sent at the same time, at most so many. The first starts are admitted and the others
// refused, in the order of their creation, although the first decision has to be repeated.
func TestTerm_Parallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const starts, admitted = 3 * decisionsAtOnce, 2*decisionsAtOnce + 3
		c, _ := newCluster(admitted, starts)
		if err := c.term.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.most.Swap(0); got < 2 || got > decisionsAtOnce {
			t.Errorf("%d pods get a new version at the same time", got)
		}
		once := false
		c.answer = func(pod *corev1.Pod, patch string) (bool, error) {
			if !isAdmission(patch) || once {
				return true, nil
			}
			once = true
			return false, apierrors.NewConflict(pods, pod.Name, errors.New("it has changed"))
		}
		if err := c.term.decide(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := c.most.Load(); got < 2 || got > decisionsAtOnce {
			t.Errorf("%d decisions are sent at the same time", got)
		}
		for i := range starts {
			if now := c.state(i); (now == "admitted") != (i < admitted) || now == "waits" {
				t.Errorf("start %d of %d: %s", i, starts, now)
			}
		}
	})
}

// BenchmarkTerm_Rounds measures what a term does after the change of one of many pods while no start waits.
func BenchmarkTerm_Rounds(b *testing.B) {
	c, _ := newCluster(10_000, 10_000)
	for _, pod := range c.pods {
		pod.Spec.SchedulingGates = nil
		c.heard(pod)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := c.term.decide(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
