package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// If there are limits, a kernel's pod is created with a scheduling gate, which keeps it from every node at no cost. A
// warm kernel that a start has taken has an annotation instead: nobody can use it before it is assigned. One gateway,
// the holder of a lease, decides about such pods in the order of their creation. It removes the gate, or it writes the
// reason of the refusal into an annotation. So one gateway sees everything that counts, and no two gateways decide from
// the same count. The holder may be frozen at any point, and continue after another gateway has taken the lease. For
// that case the following holds:
//
//   - A decision is a patch of one version of a pod. A gateway that takes the lease lists all pods from the quorum and
//     gives every gated pod a new version before it decides anything. So an earlier holder's decision about these pods
//     is either visible in the list, or is rejected.
//   - The earlier holder does not decide about pods that are created later: between reading a pod and deciding, it
//     checks whether it still holds the lease.
//   - A pod counts from the moment at which its admission is sent, whatever the answer. It counts until it is known to
//     be gone or to have ended. So at worst one pod too many is counted. Before a start is refused, all sent decisions
//     are awaited, and the pods are listed again. One list serves all refusals of a second: a kernel whose end no watch
//     and no other gateway has reported counts for a second longer.
const (
	admissionLease = "ekg-admission"

	maxGonePods    = 1 << 14                // remembered pods that are gone: events about them may come late
	abandonedAfter = time.Minute            // age from which a waiting pod counts as abandoned by all gateways
	decisionRetry  = 500 * time.Millisecond // pause after a decision that could not be carried out
	relistPause    = time.Second            // for which a list of all pods serves refusals
)

// leadership is the time during which this gateway holds the lease.
type leadership struct {
	// Fixed.
	id      string // gated pods get it as annotationLeader
	lease   *leaseClock
	changed chan struct{} // capacity 1: pods has changed

	relisted time.Time // when the last successful relist began; owned by the goroutine that decides

	// Guarded by Launcher.mu.
	pods map[types.UID]*candidate
	gone *lru.Cache[types.UID, bool]
}

// candidate is a pod that counts, or that may count later.
type candidate struct {
	pod      *corev1.Pod // the newest version known
	rec      podspec.Record
	order    uint64 // the first known version: grows in the order of creation
	admitted bool   // the admission of this version was sent, and its result is not known
}

// decideAboutLimits takes part in the election of the gateway that decides about starts. It begins at once if there are
// limits, else when pods still wait for gateways with limits that are gone.
func (l *Launcher) decideAboutLimits() {
	for !launcher.HasLimits(l.opts.Limits) && !l.seesAbandoned() {
		if goroutines.Sleep(l.ctx, l.timing.maintenance) != nil {
			return
		}
	}
	t := l.timing.admission
	lease := &leaseClock{Interface: l.leaseLock(admissionLease), lasts: t.duration - t.duration/5}
	l.elect(lease, t, func(ctx context.Context) { l.decideUntil(ctx, lease) })
}

// seesAbandoned reports whether a pod waits for a decision that gateways with limits would have taken long ago.
func (l *Launcher) seesAbandoned() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels {
		if k.end == nil && podstatus.IsUndecided(k.pod) && l.clusterNow().Sub(k.pod.CreationTimestamp.Time) > abandonedAfter {
			return true
		}
	}
	return false
}

// counts reports whether the candidate counts for limits.
func (c *candidate) counts() bool {
	return (c.admitted || !podstatus.IsGated(c.pod)) && !podstatus.HasEnded(c.pod) && !podspec.IsDiscarded(c.pod)
}

// updatePodLocked records a version of a pod. Versions may come in any order. The leadership may be nil.
func (t *leadership) updatePodLocked(pod *corev1.Pod, rec podspec.Record) {
	if t == nil || t.gone.Contains(pod.UID) {
		return
	}
	c := t.pods[pod.UID]
	switch {
	case c == nil:
		place, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			place = 0 // ordered by its time alone
		}
		t.pods[pod.UID] = &candidate{pod: pod, rec: rec, order: place}
	case c.pod.ResourceVersion == pod.ResourceVersion || older(pod, c.pod):
		return
	default:
		// A decision about the older version is visible in this one, or will be rejected.
		c.pod, c.rec, c.admitted = pod, rec, false
	}
	t.wake()
}

// removePodLocked records that a pod is gone. The leadership may be nil.
func (t *leadership) removePodLocked(uid types.UID) {
	if t == nil {
		return
	}
	t.gone.Add(uid, true)
	if t.pods[uid] != nil {
		delete(t.pods, uid)
		t.wake()
	}
}

func (t *leadership) wake() {
	goroutines.Wake(t.changed)
}

// decideUntil decides about starts until ctx ends, which happens when the lease is lost.
func (l *Launcher) decideUntil(ctx context.Context, lease *leaseClock) {
	gone, err := lru.New[types.UID, bool](maxGonePods)
	if err != nil {
		panic("kube: " + err.Error()) // the size is a constant
	}
	t := &leadership{
		id:      uuid.NewString(),
		lease:   lease,
		changed: make(chan struct{}, 1),
		pods:    map[types.UID]*candidate{},
		gone:    gone,
	}
	l.mu.Lock()
	l.leadership = t
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.leadership == t {
			l.leadership = nil
		}
	}()
	l.log.Info("this gateway decides about limits")
	for err := l.beginLeading(ctx, t); err != nil; err = l.beginLeading(ctx, t) {
		if ctx.Err() == nil {
			l.log.Warn("pods cannot be listed for decisions about limits; this is tried again", logkey.Err, err)
		}
		if goroutines.Sleep(ctx, decisionRetry) != nil {
			return
		}
	}
	for {
		if err := l.decide(ctx, t); err != nil && ctx.Err() == nil {
			l.log.Warn("starts could not be decided about; this is tried again", logkey.Err, err)
			if goroutines.Sleep(ctx, decisionRetry) != nil {
				return
			}
			continue
		}
		select {
		case <-t.changed:
		case <-ctx.Done():
			return
		}
	}
}

// beginLeading lists all pods, and gives those that wait for a decision a new version. So an earlier leader, which
// knows the old version, can no longer decide about them.
func (l *Launcher) beginLeading(ctx context.Context, t *leadership) error {
	if err := l.relist(ctx, t); err != nil {
		return err
	}
	var (
		sent  sync.WaitGroup
		turns = make(chan struct{}, decisionsAtOnce)
		mu    sync.Mutex
		errs  []error
	)
	for _, c := range l.undecided(t) {
		turns <- struct{}{}
		sent.Go(func() {
			defer func() { <-turns }()
			if err := l.renew(ctx, t, c.pod); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	sent.Wait()
	return errors.Join(errs...)
}

// renew gives a pod that waits for a decision a new version.
func (l *Launcher) renew(ctx context.Context, t *leadership, pod *corev1.Pod) error {
	for pod != nil && podstatus.IsUndecided(pod) && pod.Annotations[annotationLeader] != t.id {
		err := l.annotate(ctx, pod, pod.ResourceVersion, map[string]string{annotationLeader: t.id})
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		if pod, err = l.reread(ctx, t, pod); err != nil {
			return err
		}
	}
	return nil
}

// relist reads all pods from the quorum and records them.
func (l *Launcher) relist(ctx context.Context, t *leadership) error {
	began := l.timing.now()
	for _, ns := range l.watched {
		if l.access.denial(ns) != "" {
			continue
		}
		l.mu.Lock()
		missing := map[types.UID]bool{} // known before the request; later pods are not taken for removed
		for uid, c := range t.pods {
			missing[uid] = l.watchOf(c.pod.Namespace) == ns
		}
		l.mu.Unlock()
		pods, err := l.listPods(ctx, ns, selectManaged)
		if err != nil {
			return err
		}
		for i := range pods.Items {
			delete(missing, pods.Items[i].UID)
			l.updatePod(&pods.Items[i])
		}
		l.mu.Lock()
		for uid, here := range missing {
			if here {
				t.removePodLocked(uid)
			}
		}
		l.mu.Unlock()
	}
	t.relisted = began
	return nil
}

// reread returns the newest version of a pod, nil if it is gone.
func (l *Launcher) reread(ctx context.Context, t *leadership, pod *corev1.Pod) (*corev1.Pod, error) {
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	now, err := l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		l.mu.Lock()
		defer l.mu.Unlock()
		t.removePodLocked(pod.UID)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	l.updatePod(now)
	return now, nil
}

// undecided returns copies of the candidates that wait for a decision, in the order of their creation.
func (l *Launcher) undecided(t *leadership) (all []candidate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range t.pods {
		if podstatus.IsUndecided(c.pod) {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		// the time is in whole seconds
		return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time), cmp.Compare(a.order, b.order))
	})
	return all
}

// decide decides about all waiting candidates. The error says why some decisions could not be carried out.
func (l *Launcher) decide(ctx context.Context, t *leadership) error {
	for {
		r := newRound(l, t)
		err := r.decide(ctx)
		r.sent.Wait()
		changed, answered, unknown := r.results()
		if err := errors.Join(err, unknown); err != nil || !changed {
			return errors.Join(err, answered)
		}
	}
}

// decisionPatch is the patch that carries out a decision about exactly this version of a pod.
func decisionPatch(pod *corev1.Pod, refused *launcher.LimitError, now time.Time) ([]byte, error) {
	metadata := map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion}
	patch := map[string]any{"metadata": metadata}
	if refused == nil {
		left := slices.DeleteFunc(slices.Clone(pod.Spec.SchedulingGates),
			func(g corev1.PodSchedulingGate) bool { return g.Name == podspec.GateLimits })
		metadata["annotations"] = map[string]string{podspec.AnnotationAdmitted: now.UTC().Format(time.RFC3339Nano)}
		if pod.Annotations[podspec.AnnotationClaim] != "" {
			metadata["annotations"] = map[string]string{podspec.AnnotationClaim: podspec.ClaimDecided}
			return json.Marshal(patch)
		}
		patch["spec"] = map[string]any{"schedulingGates": left}
		return json.Marshal(patch)
	}
	end, err := json.Marshal(api.Ending{KernelID: pod.Labels[podspec.LabelKernel], Reason: refused.Reason, At: now.UTC()})
	if err != nil {
		return nil, err
	}
	metadata["annotations"] = map[string]string{
		podspec.AnnotationEnding: string(end),
		podspec.AnnotationLimit:  refused.Limit,
	}
	return json.Marshal(patch)
}

// addGate makes a new pod wait for a decision if there are limits.
func (l *Launcher) addGate(pod *corev1.Pod) {
	if launcher.HasLimits(l.opts.Limits) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: podspec.GateLimits})
	}
}

// awaitDecision waits for the decision about a kernel's pod, at most for timing.decision. The error is a
// *launcher.LimitError.
func (l *Launcher) awaitDecision(ctx context.Context, k *kernel) error {
	ctx, cancel := context.WithTimeout(ctx, l.timing.decision)
	defer cancel()
	var end *storedEnding
	l.follower.Await(ctx, &k.supervisor, func() bool {
		end = k.end
		return end != nil || k.removed || !podstatus.IsUndecided(k.pod)
	})
	if end != nil && end.limit != "" {
		return &launcher.LimitError{Limit: end.limit, Reason: end.Reason}
	}
	return nil
}

// refusedUnclaimed reports whether a pod is a refused start whose kernel's id no client has received, except with the
// refusal.
func refusedUnclaimed(pod *corev1.Pod) bool {
	return pod.Annotations[podspec.AnnotationLimit] != "" && pod.Annotations[annotationClaimed] == unclaimed
}

// Restarting does nothing: a pod counts while its containers live, whatever its supervisor does with the kernel.
func (l *Launcher) Restarting(context.Context, string) (done func(), err error) {
	return func() {}, nil
}
