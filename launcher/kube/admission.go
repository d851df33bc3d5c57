package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Where there are limits, a kernel's pod is made with a scheduling gate, which costs nothing: no node takes it. One gateway of
// all, the holder of a lease, decides about such pods in the order in which they were made: it removes the gate, or leaves in an
// annotation why it does not. So all that counts is seen by one, and never two decide from the same count. What must hold
// although the holder may be frozen at any point, and go on when another has long taken its place:
//
//   - A decision is a patch of the version of the pod that it is about. Whoever takes the lease lists all pods from the quorum
//     and gives every gated one a new version before it decides anything: what an earlier holder has decided about them
//     either is in what was read, or is refused.
//   - About a pod that was made after that, the earlier holder decides nothing: between having read a pod and deciding, it
//     looks whether its lease still holds.
//   - A pod counts from the moment at which its admission is sent, whatever is heard of that, and until it is known that it
//     is gone or has ended. So at worst one too many is counted; and before somebody is refused the pods are listed anew.
const (
	admissionLease = "ekg-admission"

	// gateLimits keeps a pod from being scheduled until it is decided whether there may be one more.
	gateLimits = domain + "limits"

	goneRemembered = 1 << 14                // pods that are gone, of which late news may come
	leftTime       = time.Minute            // after which nobody is about to decide about a pod
	decideRetry    = 500 * time.Millisecond // after the cluster did not do what was decided
)

// term is the time for which this gateway holds the lease.
type term struct {
	// Fixed.
	id    string // new versions of gated pods have it in annotationTerm
	lease *leaseClock
	news  chan struct{} // capacity 1: pods has changed

	// Guarded by Launcher.mu.
	pods map[types.UID]*candidate
	gone *lru.Cache[types.UID, bool]
}

// candidate is a pod that counts, or may come to.
type candidate struct {
	pod      *corev1.Pod // the newest version known
	rec      record
	place    uint64 // in the order of creation: the first version known
	admitted bool   // it was decided so about this version of the pod, and what has become of that is not known
}

// admitting takes part in the election of who decides, as soon as there are limits, or some that there were have left pods behind.
func (l *Launcher) admitting() {
	for !launcher.Counts(l.opts.Limits) && !l.leftBehind() {
		if sleep(l.ctx, l.timing.tend) != nil {
			return
		}
	}
	t := l.timing.admission
	lease := &leaseClock{Interface: l.leaseLock(admissionLease), lasts: t.duration - t.duration/5}
	l.elect(lease, t, func(ctx context.Context) { l.admitUntil(ctx, lease) })
}

// leftBehind reports whether a pod waits for a decision that gateways with limits would have taken long ago: they are gone.
func (l *Launcher) leftBehind() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels {
		if k.end == nil && undecided(k.pod) && l.timing.now().Sub(k.pod.CreationTimestamp.Time) > leftTime {
			return true
		}
	}
	return false
}

// gated reports whether a pod waits for a decision about limits, or has waited for one in vain.
func gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gateLimits })
}

// undecided reports whether nobody has decided about a gated pod yet, nor ended it.
func undecided(pod *corev1.Pod) bool {
	return gated(pod) && pod.DeletionTimestamp == nil && pod.Annotations[annotationEnding] == "" && !hasFinished(pod)
}

func hasFinished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// counts reports whether the candidate is one of those that there may be only so many of.
func (c *candidate) counts() bool { return (c.admitted || !gated(c.pod)) && !hasFinished(c.pod) }

// enter notes news of a pod, in any order. The term may be nil. Launcher.mu is held.
func (t *term) enter(pod *corev1.Pod, rec record) {
	if t == nil || t.gone.Contains(pod.UID) {
		return
	}
	c := t.pods[pod.UID]
	switch {
	case c == nil:
		place, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			place = 0 // by its time alone
		}
		t.pods[pod.UID] = &candidate{pod: pod, rec: rec, place: place}
	case c.pod.ResourceVersion == pod.ResourceVersion || older(pod, c.pod):
		return
	default:
		// The version that was decided about is no more: the decision has been carried out, and shows, or never will be.
		c.pod, c.rec, c.admitted = pod, rec, false
	}
	t.wake()
}

// remove notes that a pod is gone. The term may be nil. Launcher.mu is held.
func (t *term) remove(uid types.UID) {
	if t == nil {
		return
	}
	t.gone.Add(uid, true)
	if t.pods[uid] != nil {
		delete(t.pods, uid)
		t.wake()
	}
}

func (t *term) wake() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}

// admitUntil decides about starts until ctx ends, which it does when the lease is lost.
func (l *Launcher) admitUntil(ctx context.Context, lease *leaseClock) {
	gone, err := lru.New[types.UID, bool](goneRemembered)
	if err != nil {
		panic("kube: " + err.Error()) // the size is a constant
	}
	t := &term{id: uuid.NewString(), lease: lease, news: make(chan struct{}, 1), pods: map[types.UID]*candidate{}, gone: gone}
	l.mu.Lock()
	l.term = t
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.term == t {
			l.term = nil
		}
	}()
	l.log.Info("this gateway decides about limits")
	for err := l.beginTerm(ctx, t); err != nil; err = l.beginTerm(ctx, t) {
		if ctx.Err() == nil {
			l.log.Warn("nothing is decided about limits yet; this is tried again", "err", err)
		}
		if sleep(ctx, decideRetry) != nil {
			return
		}
	}
	for {
		if err := l.decide(ctx, t); err != nil && ctx.Err() == nil {
			l.log.Warn("starts could not be decided about; this is tried again", "err", err)
			if sleep(ctx, decideRetry) != nil {
				return
			}
			continue
		}
		select {
		case <-t.news:
		case <-ctx.Done():
			return
		}
	}
}

// beginTerm learns of all pods, and takes those that wait for a decision out of the hands of whoever has decided before.
func (l *Launcher) beginTerm(ctx context.Context, t *term) error {
	if err := l.listAnew(ctx, t); err != nil {
		return err
	}
	for _, c := range l.queue(t) {
		for pod := c.pod; undecided(pod) && pod.Annotations[annotationTerm] != t.id; {
			err := l.annotate(ctx, pod, pod.ResourceVersion, map[string]string{annotationTerm: t.id})
			if err == nil {
				break
			}
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return fmt.Errorf("pod %s: %w", pod.Name, err)
			}
			if pod, err = l.readAgain(ctx, t, pod); err != nil {
				return err
			}
			if pod == nil {
				break
			}
		}
	}
	return nil
}

// listAnew learns what pods there are from the quorum.
func (l *Launcher) listAnew(ctx context.Context, t *term) error {
	for _, ns := range l.namespaces {
		if l.rights.refusal(ns) != "" {
			continue
		}
		l.mu.Lock()
		missing := map[types.UID]bool{} // of those known before the list: what is made meanwhile is not missed
		for uid, c := range t.pods {
			missing[uid] = c.pod.Namespace == ns
		}
		l.mu.Unlock()
		pods, err := l.listPods(ctx, ns, managed)
		if err != nil {
			return err
		}
		for i := range pods.Items {
			delete(missing, pods.Items[i].UID)
			l.enterPod(&pods.Items[i])
		}
		l.mu.Lock()
		for uid, here := range missing {
			if here {
				t.remove(uid)
			}
		}
		l.mu.Unlock()
	}
	return nil
}

// readAgain returns the newest version of a pod, nil if it is gone.
func (l *Launcher) readAgain(ctx context.Context, t *term, pod *corev1.Pod) (*corev1.Pod, error) {
	asking, cancel := l.asking(ctx)
	defer cancel()
	now, err := l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		l.mu.Lock()
		defer l.mu.Unlock()
		t.remove(pod.UID)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	l.enterPod(now)
	return now, nil
}

// queue returns copies of the candidates that wait for a decision, in the order in which they were made.
func (l *Launcher) queue(t *term) (all []candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range t.pods {
		if undecided(c.pod) {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time), cmp.Compare(a.place, b.place)) // the time is in whole seconds
	})
	return all
}

// errNotHeld says that the lease does not last long enough for a decision.
var errNotHeld = errors.New("the lease is about to end")

// decide decides about all that wait. The error says why some of it could not be done now.
func (l *Launcher) decide(ctx context.Context, t *term) error {
	fresh := false
	var failed []error
	for _, c := range l.queue(t) {
		for decided := false; !decided; {
			start, others, pod, again := l.count(t, c.pod.UID)
			if pod == nil {
				break // somebody has ended it
			}
			var refused *launcher.LimitError
			if err := l.opts.Limits.Admit(start, others); err != nil && !again {
				if !errors.As(err, &refused) {
					return fmt.Errorf("limits: %w", err)
				}
				if !fresh { // what has ended since may not have been heard of
					if err := l.listAnew(ctx, t); err != nil {
						return err
					}
					fresh = true
					continue
				}
			}
			var err error
			if decided, err = l.carryOut(ctx, t, pod, refused); apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
				failed = append(failed, err) // the cluster answers: it may take the others
				break
			} else if err != nil {
				return err
			}
		}
	}
	return errors.Join(failed...)
}

// count returns a start, if it is still to be decided about, and all others that count. A kernel counts once, also while its
// last pod is still ending. Again says that its admission was decided already.
func (l *Launcher) count(t *term, uid types.UID) (start launcher.Held, others []launcher.Held, pod *corev1.Pod, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := t.pods[uid]
	if c == nil || !undecided(c.pod) {
		return start, nil, nil, false
	}
	start = l.held(c)
	byID := map[string]launcher.Held{}
	for _, other := range t.pods {
		if !other.counts() || other.rec.id == c.rec.id {
			continue
		}
		h := l.held(other)
		if twice, ok := byID[h.ID]; ok {
			h.GPUs = max(h.GPUs, twice.GPUs)
		}
		byID[h.ID] = h
	}
	for _, h := range byID {
		others = append(others, h)
	}
	return start, others, c.pod, c.admitted
}

// held is a candidate as limits count it. Launcher.mu is held.
func (l *Launcher) held(c *candidate) launcher.Held {
	h := launcher.Held{ID: c.rec.id, SpecName: c.rec.spec, Owner: c.rec.owner, Groups: c.rec.groups, GPUs: gpuCountOf(c.pod),
		State: launcher.Starting, LastActivity: c.rec.created, Ending: c.pod.DeletionTimestamp != nil}
	if k := l.kernels[c.rec.id]; k != nil && k.pod.UID == c.pod.UID {
		if k.heard {
			h.State = launcher.StateOf(k.status.State)
			if k.status.LastActivity.After(h.LastActivity) {
				h.LastActivity = k.status.LastActivity.UTC()
			}
		}
		h.Ending = h.Ending || k.end != nil || k.stop != nil || h.State == launcher.Dead
	}
	return h
}

// carryOut lets a pod be scheduled, or refuses it. It reports whether that is settled: if not, the pod has changed meanwhile. An
// error leaves open what has become of it.
func (l *Launcher) carryOut(ctx context.Context, t *term, pod *corev1.Pod, refused *launcher.LimitError) (settled bool, err error) {
	patch, err := decision(pod, refused, l.timing.now())
	if err != nil {
		return false, err
	}
	if ctx.Err() != nil || !t.lease.holds() {
		return false, errNotHeld
	}
	if refused == nil {
		l.mu.Lock()
		c := t.pods[pod.UID]
		if c == nil || c.pod != pod {
			l.mu.Unlock()
			return false, nil
		}
		c.admitted = true
		l.mu.Unlock()
	}
	asking, cancel := l.asking(ctx)
	changed, err := l.client.CoreV1().Pods(pod.Namespace).Patch(asking, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	cancel()
	switch {
	case err == nil:
		l.enterPod(changed)
		if refused != nil {
			l.log.Info("kernel is not started", "kernel", pod.Labels[LabelKernel], "limit", refused.Limit)
		}
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		_, err := l.readAgain(ctx, t, pod)
		return false, err
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err): // it has not been done
		l.mu.Lock()
		if c := t.pods[pod.UID]; c != nil && c.pod == pod {
			c.admitted = false
		}
		l.mu.Unlock()
	}
	return false, fmt.Errorf("pod %s: %w", pod.Name, err)
}

// decision is the patch of exactly this version of a pod that carries a decision out.
func decision(pod *corev1.Pod, refused *launcher.LimitError, now time.Time) ([]byte, error) {
	metadata := map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}
	patch := map[string]any{"metadata": metadata}
	if refused == nil {
		left := slices.DeleteFunc(slices.Clone(pod.Spec.SchedulingGates), func(g corev1.PodSchedulingGate) bool { return g.Name == gateLimits })
		metadata["annotations"] = map[string]string{annotationAdmitted: now.UTC().Format(time.RFC3339Nano)}
		patch["spec"] = map[string]any{"schedulingGates": left}
		return json.Marshal(patch)
	}
	end, err := json.Marshal(supervisor.Ending{KernelID: pod.Labels[LabelKernel], Reason: refused.Reason, At: now.UTC()})
	if err != nil {
		return nil, err
	}
	metadata["annotations"] = map[string]string{annotationEnding: string(end), annotationLimit: refused.Limit}
	return json.Marshal(patch)
}

// addGate has a new pod wait for a decision if there are limits.
func (l *Launcher) addGate(pod *corev1.Pod) {
	if launcher.Counts(l.opts.Limits) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gateLimits})
	}
}

// awaitDecision waits until it is decided about a kernel's pod, for as long as somebody may wait for an answer. The error is a
// *launcher.LimitError.
func (l *Launcher) awaitDecision(ctx context.Context, k *kernel) error {
	ctx, cancel := context.WithTimeout(ctx, l.timing.decision)
	defer cancel()
	var end *ending
	l.await(ctx, k, func() bool {
		end = k.end
		return end != nil || k.removed || !undecided(k.pod)
	})
	if end != nil && end.limit != "" {
		return &launcher.LimitError{Limit: end.limit, Reason: end.Reason}
	}
	return nil
}

// isForgotten is forgotten for a kernel's present pod.
func (l *Launcher) isForgotten(k *kernel) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return forgotten(k.pod)
}

// forgotten reports whether a pod is a start that was refused, and of which its client has at most heard that.
func forgotten(pod *corev1.Pod) bool {
	return pod.Annotations[annotationLimit] != "" && pod.Annotations[annotationClaimed] == unclaimed
}

// Restarting does nothing: a pod counts as long as its containers live, whatever its supervisor does with the kernel.
func (l *Launcher) Restarting(context.Context, string) (done func(), err error) {
	return func() {}, nil
}
