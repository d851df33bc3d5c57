package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
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
	l      *Launcher
	t      *leadership
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

func newRound(l *Launcher, t *leadership) *round {
	return &round{l: l, t: t, turns: make(chan struct{}, decisionsAtOnce),
		fresh: l.timing.now().Sub(t.relisted) < relistPause}
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
	waiting := r.l.undecided(r.t)
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
		start, pod, again := r.start(uid)
		if pod == nil {
			return false, nil // it was ended, or decided about
		}
		refused := r.l.opts.Limits.Decide(start, r.others.without(start.ID)).Refused
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
		return r.carryOut(ctx, start, pod, refused)
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
		if err := r.l.relist(ctx, r.t); err != nil {
			return false, err
		}
		r.fresh = true
	}
	r.recount()
	return false, nil
}

// start returns a start, its pod if it is undecided, and whether its admission was sent before.
func (r *round) start(uid types.UID) (start launcher.Held, pod *corev1.Pod, again bool) {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	c := r.t.pods[uid]
	if c == nil || !podstatus.IsUndecided(c.pod) {
		return start, nil, false
	}
	return r.l.heldLocked(c), c.pod, c.admitted
}

// recount counts all kernels that count at present.
func (r *round) recount() {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.others = count{at: make(map[string]int, len(r.t.pods))}
	for _, c := range r.t.pods {
		if c.counts() {
			r.others.add(r.l.heldLocked(c))
		}
	}
	r.exact = true
}

// carryOut sends the decision to let a pod be scheduled, or to refuse it. It reports whether it is being sent.
func (r *round) carryOut(ctx context.Context, start launcher.Held, pod *corev1.Pod,
	refused *launcher.LimitError) (sending bool, err error) {
	l, t := r.l, r.t
	patch, err := decisionPatch(pod, refused, l.clusterNow())
	if err != nil {
		return false, err
	}
	if ctx.Err() != nil || !t.lease.holds() {
		return false, errNotHeld
	}
	if refused == nil {
		if !l.setAdmitted(t, pod, true) {
			r.finish(false, nil)
			return false, nil
		}
		r.others.add(start)
		r.exact = false
	}
	r.sent.Go(func() {
		defer func() { <-r.turns }()
		r.finish(l.sendDecision(ctx, t, pod, patch, refused))
	})
	return true, nil
}

// setAdmitted records in a candidate whether its admission was sent. It reports false if it has another version by now.
func (l *Launcher) setAdmitted(t *leadership, pod *corev1.Pod, admitted bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := t.pods[pod.UID]
	if c == nil || c.pod != pod {
		return false
	}
	c.admitted = admitted
	return true
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

// sendDecision sends a decision. It reports whether the decision is settled; if not, the pod has changed in between.
// After an error, the result is unknown. The lease is checked last: the decision may have waited.
func (l *Launcher) sendDecision(ctx context.Context, t *leadership, pod *corev1.Pod, patch []byte,
	refused *launcher.LimitError) (settled bool, err error) {
	if ctx.Err() != nil || !t.lease.holds() {
		l.setAdmitted(t, pod, false)
		return false, errNotHeld
	}
	asking, cancel := l.apiContext(ctx)
	changed, err := l.client.CoreV1().Pods(pod.Namespace).Patch(
		asking, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	cancel()
	switch {
	case err == nil:
		l.updatePod(changed)
		if refused != nil {
			l.log.Info("kernel is not started", logkey.Kernel, pod.Labels[podspec.LabelKernel], logkey.Limit, refused.Limit)
		}
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		_, err := l.reread(ctx, t, pod)
		return false, err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // it was rejected
		l.setAdmitted(t, pod, false)
	}
	return false, fmt.Errorf("pod %s: %w", pod.Name, err)
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

// heldLocked returns the candidate's kernel in the form in which limits count kernels.
func (l *Launcher) heldLocked(c *candidate) launcher.Held {
	h := launcher.Held{
		ID:           c.rec.ID,
		SpecName:     c.rec.SpecName,
		Owner:        c.rec.Owner,
		Groups:       c.rec.Groups,
		GPUs:         podspec.GPUs(c.pod),
		State:        api.Starting,
		LastActivity: c.rec.Created,
		Ending:       c.pod.DeletionTimestamp != nil,
	}
	if k := l.kernels[c.rec.ID]; k != nil && k.pod.UID == c.pod.UID {
		k.supervisor.HeldLocked(&h)
		h.Ending = h.Ending || k.end != nil || k.stop != nil || h.State == api.Dead
	}
	return h
}
