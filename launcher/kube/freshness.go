package kube

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// freshness knows when the informers were last proved to hold what the cluster holds.
type freshness struct {
	mu     sync.Mutex // held during a proof: other callers wait for its result
	last   time.Time
	failed time.Time // time of the last failed proof

	failing atomic.Bool // the last proof has failed
	proving atomic.Bool // a proof is made in the background

	beat atomic.Int64 // when this process last had a processor, in nanoseconds since began

	marksLock sync.Mutex
	marks     map[*staleMark]bool // guarded by marksLock; while there are any, every list is proved
}

// maxChanged is how many pods a proof reads one by one. If more have changed, one list of all is cheaper.
const maxChanged = 16

// staleMark is a reason to distrust the informers' state.
type staleMark struct{ _ byte }

// markStale makes the next lists prove their freshness. It ends when settled is called, or when a proof succeeds that
// began after markStale.
func (f *freshness) markStale() (settled func()) {
	d := new(staleMark)
	f.marksLock.Lock()
	defer f.marksLock.Unlock()
	if f.marks == nil {
		f.marks = map[*staleMark]bool{}
	}
	f.marks[d] = true
	return func() { f.clear([]*staleMark{d}) }
}

func (f *freshness) staleMarks() []*staleMark {
	f.marksLock.Lock()
	defer f.marksLock.Unlock()
	return slices.Collect(maps.Keys(f.marks))
}

func (f *freshness) clear(some []*staleMark) {
	f.marksLock.Lock()
	defer f.marksLock.Unlock()
	for _, d := range some {
		delete(f.marks, d)
	}
}

// doubted reports whether there is a reason to distrust the informers' state.
func (f *freshness) doubted() bool {
	f.marksLock.Lock()
	defer f.marksLock.Unlock()
	return len(f.marks) > 0
}

// isProved reports whether a proof is younger than limit and was not doubted since. It waits for a proof that is being
// made.
func (f *freshness) isProved(now time.Time, limit time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Sub(f.last) < limit && !f.doubted()
}

func (f *freshness) proved(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = now
}

const (
	beatPause = 500 * time.Millisecond
	// maxBeat is the longest time between two beats of a process that runs. It is less than replicas.answerTime: until
	// then, a change waits for the replica that is to be notified.
	maxBeat = 1500 * time.Millisecond
)

// began is a time of the monotonic clock, which goes on while a process is frozen.
var began = time.Now()

// checkBeat notices that this process was frozen: its machine, its virtual machine or its container was paused. Until
// its watches have brought what happened meanwhile, what it knows is old. Such a process distrusts its memory.
func (f *freshness) checkBeat() {
	now := int64(time.Since(began))
	if last := f.beat.Swap(now); now-last > int64(maxBeat) && last != 0 {
		f.markStale()
	}
}

// keepBeat calls checkBeat until ctx ends.
func (f *freshness) keepBeat(ctx context.Context) {
	for goroutines.Sleep(ctx, beatPause) == nil {
		f.checkBeat()
	}
}

// proveFresh makes sure that the list of kernels is at most a few seconds old. A watch may have failed silently, so the
// pods in the cluster are compared with the known ones. Without stale marks that happens at most once in some seconds,
// however many callers and kernels there are. With a stale mark each call does it, except right after a failure. The
// error is ErrUnavailable: a list that lacks kernels is worse than none.
func (l *Launcher) proveFresh(ctx context.Context) error {
	l.freshness.checkBeat() // keepBeat may not have had its turn since the pause
	l.freshness.mu.Lock()
	defer l.freshness.mu.Unlock()
	doubts := l.freshness.staleMarks()
	switch now := l.timing.now(); {
	case len(doubts) == 0 && now.Sub(l.freshness.last) < l.timing.fresh:
		return nil
	case now.Sub(l.freshness.failed) < proofPause:
		return errNoAnswer // otherwise each waiting caller would try, one after the other
	}
	limited, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	known := l.knownPods() // taken before the request: a pod that is created meanwhile does not seem removed
	var there []corev1.Pod
	listed := map[string]bool{}
	for _, ns := range l.namespaces.Readable() {
		pods, err := l.readChanged(limited, ns, known)
		if err != nil {
			l.freshness.failed = l.timing.now()
			l.freshness.failing.Store(true)
			if ctx.Err() == nil {
				err = errNoAnswer // instead of the limit's own error
			}
			return err
		}
		there, listed[ns] = append(there, pods...), true
	}
	for i := range there {
		l.handlePod(&there[i], l.updatePod)
	}
	for _, pod := range known {
		if listed[l.namespaces.WatchOf(pod.Namespace)] {
			l.podRemoved(pod)
		}
	}
	l.freshness.last = l.timing.now()
	l.freshness.failing.Store(false)
	l.freshness.clear(doubts)
	l.answers.kick()
	return nil
}

// readChanged returns a namespace's pods of which the cluster has a newer version than memory, or which memory lacks.
// It removes from known the pods that the cluster has. The list has the pods' metadata only, so that the API server
// does not send what has not changed.
func (l *Launcher) readChanged(ctx context.Context, ns string, known map[types.UID]*corev1.Pod) ([]corev1.Pod, error) {
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	listed, err := l.opts.Cluster.PodsMetadata(asking, ns, metav1.ListOptions{LabelSelector: podspec.SelectManaged})
	if err != nil {
		return nil, l.unavailable(ctx, "list of pods in "+ns, err)
	}
	var changed []*corev1.Pod
	for i := range listed {
		there := &corev1.Pod{ObjectMeta: listed[i]}
		if !l.namespaces.Serves(there) {
			continue
		}
		pod := known[there.UID]
		if pod == nil || pod.ResourceVersion != there.ResourceVersion && !podstatus.Older(there, pod) {
			changed = append(changed, there)
		}
		delete(known, there.UID)
	}
	if len(changed) > maxChanged {
		pods, err := l.listPods(ctx, ns, podspec.SelectManaged)
		if err != nil {
			return nil, err
		}
		for i := range pods.Items {
			delete(known, pods.Items[i].UID)
		}
		return pods.Items, nil
	}
	var pods []corev1.Pod
	for _, there := range changed {
		pod, err := l.getPod(ctx, there.Namespace, there.Name)
		if err != nil {
			return nil, err
		}
		if pod != nil { // else it was deleted meanwhile, and is no kernel's any more
			pods = append(pods, *pod)
		}
	}
	return pods, nil
}

// knownPods returns the pods of all kernels that are not known to be removed.
func (l *Launcher) knownPods() map[types.UID]*corev1.Pod {
	known := map[types.UID]*corev1.Pod{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.kernels {
		if !k.removed {
			known[k.pod.UID] = k.pod
		}
	}
	return known
}

// ensureComplete makes sure that a list of kernels lacks none: by the API server, or without it by the replicas. While
// the API server does not answer, lists do not wait for it.
func (l *Launcher) ensureComplete(ctx context.Context) error {
	if l.replicas == nil {
		return l.proveFresh(ctx)
	}
	if l.freshness.failing.Load() && l.replicas.Complete(ctx) == nil {
		l.proveInBackground()
		return nil
	}
	err := l.proveFresh(ctx)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if cerr := l.replicas.Complete(ctx); cerr != nil {
		l.log.Info("kernels cannot be listed without the API server", logkey.Err, cerr)
		return err
	}
	return nil
}

// proveInBackground asks the API server whether it answers again, unless another goroutine does.
func (l *Launcher) proveInBackground() {
	if !l.freshness.proving.CompareAndSwap(false, true) {
		return
	}
	if !l.goroutines.Go(func() {
		defer l.freshness.proving.Store(false)
		if err := l.proveFresh(l.ctx); err != nil {
			l.log.Debug("the API server does not answer yet", logkey.Err, err)
		}
	}) {
		l.freshness.proving.Store(false)
	}
}
