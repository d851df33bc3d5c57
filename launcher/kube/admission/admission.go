// Package admission decides which kernels of a cluster start, where there are limits.
//
// A kernel's pod is then created with a scheduling gate, which keeps it from every node at no cost. A warm kernel that
// a start has taken has an annotation instead: it cannot be used before it is assigned. One gateway decides about such
// pods, in the order of their creation. It is the gateway that holds a lease. It removes the gate, or writes the reason
// of the refusal into an annotation. So one gateway sees everything that counts.
//
// A Term is the time for which this gateway holds the lease. The gateway may be frozen at any moment. It may go on
// after another gateway has taken the lease. Three rules keep the limits then:
//
//   - A decision is a patch of one version of a pod. A new Term lists all pods from the quorum. It gives every waiting
//     pod a new version before it decides anything. So a decision of an earlier Term about these pods is in the list,
//     or the API server rejects it.
//   - A Term checks that its lease lasts after it has read a pod, and before it decides about the pod. So an earlier
//     Term does not decide about pods that are created later.
//   - A pod counts from the moment at which its admission is sent, whatever the answer. It counts until it is known to
//     be gone or to have ended. So at worst one pod too many is counted.
//
// Before a start is refused, all sent decisions are awaited, and the pods are listed again. One list serves all
// refusals of a second. A kernel whose end is not reported by a watch or another gateway counts for a second longer.
//
// Begin with Term.Lead. The goroutines that send decisions end before it returns. Term.mu is taken last: no method of
// Cluster is called while it is held.
package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// AnnotationTerm is the annotation of a waiting pod with the id of the Term that gave it a new version last.
const AnnotationTerm = podspec.Domain + "term"

const (
	maxGone       = 1 << 14                // remembered pods that are gone: events about them may come late
	decisionRetry = 500 * time.Millisecond // pause after a decision that could not be carried out
	relistPause   = time.Second            // for which a list of all pods serves refusals
)

// Cluster is what a Term needs of the launcher. Its methods may be called concurrently. Each calls Term.Update with the
// versions of pods that it has read, before it returns.
type Cluster interface {
	// List reads all pods of kernels from the quorum. listed reports whether it has read those of a namespace.
	List(ctx context.Context) (pods []corev1.Pod, listed func(namespace string) bool, err error)
	// Read reads the newest version of a pod. It returns nil if the pod is gone.
	Read(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error)
	// Patch changes a pod by a merge patch.
	Patch(ctx context.Context, pod *corev1.Pod, patch []byte) error
	// Held returns the kernels of pods in the form in which limits count them, in the same order.
	Held(pods []Pod) []launcher.Held
	// Now is the time by the cluster's clock.
	Now() time.Time
}

// Pod is a version of the pod of a kernel.
type Pod struct {
	*corev1.Pod
	Record podspec.Record
}

// Counts reports whether a pod counts for limits. sent says that its admission was sent.
func (p Pod) Counts(sent bool) bool {
	return (sent || !podstatus.IsGated(p.Pod)) && !podstatus.HasEnded(p.Pod) && !podspec.IsDiscarded(p.Pod)
}

// Options are what a Term decides with. All are needed.
type Options struct {
	Cluster Cluster
	Limits  launcher.Limits
	Holds   func() bool      // reports whether no other gateway can have the lease at this moment
	Now     func() time.Time // the clock of this process
	Log     *slog.Logger
}

// Term is the time for which this gateway holds the lease. Update, Remove and Holds may be called concurrently with all
// methods. A nil Term holds no lease, and Update and Remove leave it alone.
type Term struct {
	// Fixed.
	o       Options
	id      string
	changed chan struct{} // capacity 1: pods has changed

	relisted time.Time // when the last successful relist began; owned by the goroutine that decides

	mu   sync.Mutex
	pods map[types.UID]*candidate
	gone *lru.Cache[types.UID, bool]
}

// candidate is a pod that counts, or that may count later.
type candidate struct {
	pod      Pod    // the newest version known
	order    uint64 // the first known version: grows in the order of creation
	admitted bool   // the admission of this version was sent, and its result is not known
}

// NewTerm returns a Term that knows no pod. It must be given all versions of pods from now on.
func NewTerm(o Options) *Term {
	gone, err := lru.New[types.UID, bool](maxGone)
	if err != nil {
		panic("admission: " + err.Error()) // the size is a constant
	}
	return &Term{o: o, id: uuid.NewString(), changed: make(chan struct{}, 1), pods: map[types.UID]*candidate{}, gone: gone}
}

// Holds reports whether this gateway holds the lease.
func (t *Term) Holds() bool { return t != nil && t.o.Holds() }

// Update records a version of a pod. Versions may come in any order.
func (t *Term) Update(pod Pod) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone.Contains(pod.UID) {
		return
	}
	c := t.pods[pod.UID]
	switch {
	case c == nil:
		place, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			place = 0 // ordered by its time alone
		}
		t.pods[pod.UID] = &candidate{pod: pod, order: place}
	case c.pod.ResourceVersion == pod.ResourceVersion || podstatus.Older(pod.Pod, c.pod.Pod):
		return
	default:
		// A decision about the older version is visible in this one, or will be rejected.
		c.pod, c.admitted = pod, false
	}
	goroutines.Wake(t.changed)
}

// Remove records that a pod is gone.
func (t *Term) Remove(uid types.UID) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone.Add(uid, true)
	if t.pods[uid] != nil {
		delete(t.pods, uid)
		goroutines.Wake(t.changed)
	}
}

// Lead decides about starts until ctx ends, which happens when the lease is lost.
func (t *Term) Lead(ctx context.Context) {
	for err := t.begin(ctx); err != nil; err = t.begin(ctx) {
		if ctx.Err() == nil {
			t.o.Log.Warn("pods cannot be listed for decisions about limits; this is tried again", logkey.Err, err)
		}
		if goroutines.Sleep(ctx, decisionRetry) != nil {
			return
		}
	}
	for {
		if err := t.decide(ctx); err != nil && ctx.Err() == nil {
			t.o.Log.Warn("starts could not be decided about; this is tried again", logkey.Err, err)
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

// begin lists all pods, and gives those that wait for a decision a new version. So an earlier Term, which knows the old
// version, can no longer decide about them.
func (t *Term) begin(ctx context.Context) error {
	if err := t.relist(ctx); err != nil {
		return err
	}
	var (
		sent  sync.WaitGroup
		turns = make(chan struct{}, decisionsAtOnce)
		mu    sync.Mutex
		errs  []error
	)
	for _, c := range t.undecided() {
		turns <- struct{}{}
		sent.Go(func() {
			defer func() { <-turns }()
			if err := t.renew(ctx, c.pod.Pod); err != nil {
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
func (t *Term) renew(ctx context.Context, pod *corev1.Pod) error {
	for pod != nil && podstatus.IsUndecided(pod) && pod.Annotations[AnnotationTerm] != t.id {
		patch, err := patchOf(pod, map[string]string{AnnotationTerm: t.id})
		if err != nil {
			return err
		}
		if err = t.o.Cluster.Patch(ctx, pod, patch); err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		if pod, err = t.reread(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// relist reads all pods from the quorum and records them.
func (t *Term) relist(ctx context.Context) error {
	began := t.o.Now()
	t.mu.Lock()
	missing := map[types.UID]string{} // namespaces; later pods are not taken for removed
	for uid, c := range t.pods {
		missing[uid] = c.pod.Namespace
	}
	t.mu.Unlock()
	pods, listed, err := t.o.Cluster.List(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		delete(missing, pods[i].UID)
	}
	for uid, namespace := range missing {
		if listed(namespace) {
			t.Remove(uid)
		}
	}
	t.relisted = began
	return nil
}

// reread returns the newest version of a pod, nil if it is gone.
func (t *Term) reread(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := t.o.Cluster.Read(ctx, pod)
	switch {
	case err != nil:
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	case now == nil:
		t.Remove(pod.UID)
	}
	return now, nil
}

// undecided returns copies of the candidates that wait for a decision, in the order of their creation.
func (t *Term) undecided() (all []candidate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.pods {
		if podstatus.IsUndecided(c.pod.Pod) {
			all = append(all, *c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		// the time is in whole seconds
		return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time), cmp.Compare(a.order, b.order))
	})
	return all
}

// counted returns the pods that count.
func (t *Term) counted() []Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Pod, 0, len(t.pods))
	for _, c := range t.pods {
		if c.pod.Counts(c.admitted) {
			all = append(all, c.pod)
		}
	}
	return all
}

// start returns a candidate if it is undecided, and whether its admission was sent before.
func (t *Term) start(uid types.UID) (pod Pod, again, waits bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.pods[uid]
	if c == nil || !podstatus.IsUndecided(c.pod.Pod) {
		return pod, false, false
	}
	return c.pod, c.admitted, true
}

// setAdmitted records in a candidate whether its admission was sent. It reports false if it has another version by now.
func (t *Term) setAdmitted(pod *corev1.Pod, admitted bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.pods[pod.UID]
	if c == nil || c.pod.Pod != pod {
		return false
	}
	c.admitted = admitted
	return true
}

// decide decides about all waiting pods. The error says why some decisions could not be carried out.
func (t *Term) decide(ctx context.Context) error {
	for {
		r := t.newRound()
		err := r.decide(ctx)
		r.sent.Wait()
		changed, answered, unknown := r.results()
		if err := errors.Join(err, unknown); err != nil || !changed {
			return errors.Join(err, answered)
		}
	}
}
