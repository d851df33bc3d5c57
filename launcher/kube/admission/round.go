package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// decisionsAtOnce bounds the decisions that wait for the API server at the same time.
const decisionsAtOnce = 16

// errNotHeld says that the lease does not last long enough for a decision.
var errNotHeld = errors.New("the lease is about to end")

// round decides once about each waiting candidate, in the order of their creation. Decisions are sent at the same time,
// since a start that is admitted counts from then on, whatever the answer. There is one decision about each pod in a
// round. The round stops when a pod has changed before its decision arrived: the next round decides about it first.
type round struct {
	t      *Term
	others count
	exact  bool // all answers are part of others
	fresh  bool // the pods were listed in this round, or at most relistPause before it

	turns chan struct{}  // capacity decisionsAtOnce: one for each decision that is being sent
	sent  sync.WaitGroup // decisions that are being sent

	mu       sync.Mutex
	changed  bool    // a pod has changed before its decision arrived
	answered []error // from an API server that answers: the others are decided about
	unknown  error   // any other error: the round stops
}

func (t *Term) newRound() *round {
	return &round{t: t, turns: make(chan struct{}, decisionsAtOnce), fresh: t.o.Now().Sub(t.relisted) < relistPause}
}

// results returns how the decisions ended. They must have been awaited.
func (r *round) results() (changed bool, answered, unknown error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed, errors.Join(r.answered...), r.unknown
}

// stops reports whether no further decision is taken in this round.
func (r *round) stops() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed || r.unknown != nil
}

// decide sends all decisions, and does not wait for the last ones.
func (r *round) decide(ctx context.Context) error {
	waiting := r.t.undecided()
	if len(waiting) == 0 {
		return nil // each change of a pod begins a round, and a count of thousands takes milliseconds
	}
	r.recount()
	for _, c := range waiting {
		r.turns <- struct{}{}
		sending, err := r.decideAbout(ctx, c.pod.UID)
		if !sending {
			<-r.turns
		}
		if err != nil || r.stops() {
			return err
		}
	}
	return nil
}

// decideAbout decides about one start. It reports whether the decision is being sent.
func (r *round) decideAbout(ctx context.Context, uid types.UID) (sending bool, err error) {
	for !r.stops() {
		pod, again, waits := r.t.start(uid)
		if !waits {
			return false, nil // it was ended, or decided about
		}
		start := r.t.o.Cluster.Held([]Pod{pod})[0]
		refused := r.t.o.Limits.Decide(start, r.others.without(start.ID)).Refused
		if again {
			refused = nil
		}
		if refused != nil {
			if settled, err := r.settle(ctx); err != nil {
				return false, err
			} else if !settled {
				continue // it may be admitted by now
			}
		}
		return r.carryOut(ctx, start, pod.Pod, refused)
	}
	return false, nil
}

// settle makes the count exact before a start is refused: answers may be missing, and some pods may have ended
// unnoticed. It reports whether the count was exact before.
func (r *round) settle(ctx context.Context) (settled bool, err error) {
	if r.exact && r.fresh {
		return true, nil
	}
	r.sent.Wait()
	if !r.fresh {
		if err := r.t.relist(ctx); err != nil {
			return false, err
		}
		r.fresh = true
	}
	r.recount()
	return false, nil
}

// recount counts all kernels that count at present.
func (r *round) recount() {
	held := r.t.o.Cluster.Held(r.t.counted())
	r.others = count{at: make(map[string]int, len(held))}
	for _, h := range held {
		r.others.add(h)
	}
	r.exact = true
}

// carryOut sends the decision to let a pod be scheduled, or to refuse it. It reports whether it is being sent.
func (r *round) carryOut(ctx context.Context, start launcher.Held, pod *corev1.Pod,
	refused *launcher.LimitError) (sending bool, err error) {
	t := r.t
	patch, err := DecisionPatch(pod, refused, t.o.Cluster.Now())
	if err != nil {
		return false, err
	}
	if ctx.Err() != nil || !t.Holds() {
		return false, errNotHeld
	}
	if refused == nil {
		if !t.setAdmitted(pod, true) {
			r.finish(false, nil)
			return false, nil
		}
		r.others.add(start)
		r.exact = false
	}
	r.sent.Go(func() {
		defer func() { <-r.turns }()
		r.finish(t.send(ctx, pod, patch, refused))
	})
	return true, nil
}

// finish records how a decision ended.
func (r *round) finish(settled bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.changed = r.changed || !settled
	case apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		r.answered = append(r.answered, err)
	default:
		r.unknown = errors.Join(r.unknown, err)
	}
}

// send sends a decision. It reports whether the decision is settled; if not, the pod has changed in between. After an
// error, the result is unknown. The lease is checked last: the decision may have waited.
func (t *Term) send(ctx context.Context, pod *corev1.Pod, patch []byte,
	refused *launcher.LimitError) (settled bool, err error) {
	if ctx.Err() != nil || !t.Holds() {
		t.setAdmitted(pod, false)
		return false, errNotHeld
	}
	err = t.o.Cluster.Patch(ctx, pod, patch)
	switch {
	case err == nil:
		if refused != nil {
			t.o.Log.Info("kernel is not started", logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Limit, refused.Limit)
		}
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		_, err := t.reread(ctx, pod)
		return false, err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // it was rejected
		t.setAdmitted(pod, false)
	}
	return false, fmt.Errorf("pod %s: %w", pod.Name, err)
}

// DecisionPatch is the patch that carries out a decision about exactly this version of a pod.
func DecisionPatch(pod *corev1.Pod, refused *launcher.LimitError, now time.Time) ([]byte, error) {
	if refused != nil {
		end, err := json.Marshal(api.Ending{KernelID: pod.Labels[podspec.LabelKernel], Reason: refused.Reason, At: now.UTC()})
		if err != nil {
			return nil, err
		}
		return patchOf(pod, map[string]string{podspec.AnnotationEnding: string(end), podspec.AnnotationLimit: refused.Limit})
	}
	if pod.Annotations[podspec.AnnotationClaim] != "" {
		return patchOf(pod, map[string]string{podspec.AnnotationClaim: podspec.ClaimDecided})
	}
	left := slices.DeleteFunc(slices.Clone(pod.Spec.SchedulingGates),
		func(g corev1.PodSchedulingGate) bool { return g.Name == podspec.GateLimits })
	return json.Marshal(map[string]any{"spec": map[string]any{"schedulingGates": left}, "metadata": metadataOf(pod,
		map[string]string{podspec.AnnotationAdmitted: now.UTC().Format(time.RFC3339Nano)})})
}

// patchOf is a patch of annotations of exactly this version of a pod.
func patchOf(pod *corev1.Pod, annotations map[string]string) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": metadataOf(pod, annotations)})
}

func metadataOf(pod *corev1.Pod, annotations map[string]string) map[string]any {
	return map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": annotations}
}

// count holds the kernels that count for limits. A kernel counts once, even while its previous pod is ending.
type count struct {
	held []launcher.Held
	at   map[string]int // index in held, by kernel
}

func (c *count) add(h launcher.Held) {
	i, twice := c.at[h.ID]
	if !twice {
		c.at[h.ID] = len(c.held)
		c.held = append(c.held, h)
		return
	}
	h.GPUs = max(h.GPUs, c.held[i].GPUs)
	c.held[i] = h
}

// without returns the kernels except one. Callers do not change the slice.
func (c *count) without(id string) []launcher.Held {
	if i, ok := c.at[id]; ok {
		return slices.Delete(slices.Clone(c.held), i, i+1)
	}
	return slices.Clip(c.held)
}
