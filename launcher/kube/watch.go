package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

const (
	maxPodEvents     = 16               // newest events that are remembered of a pod
	maxEventPods     = 4096             // pods of which events are remembered before they themselves are known
	unsupportedPause = 30 * time.Second // between two looks at a supervisor of another protocol version, whose end is to be noticed
	tellTime         = 5 * time.Second  // for a supervisor to be told why its kernel waits
	tellEnd          = 30 * time.Second // after the end of a kernel's container that its supervisor is told how it came
	proofTime        = 3 * time.Second  // for the cluster to prove that a list of kernels is fresh
	proofPause       = 2 * time.Second  // after it did not, before it is asked again
)

// managed selects the objects of all kernels.
const managed = LabelManagedBy + "=" + Manager

// ofKindPod selects the events of pods.
const ofKindPod = "involvedObject.kind=Pod"

// startInformers watches pods and their events in every namespace, and returns when all that there is has been entered.
func (l *Launcher) startInformers(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, ns := range l.namespaces {
		pods := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.LabelSelector = managed
				return heeded(l, watched{ns, "pods"}, false, func() (*corev1.PodList, error) { return l.client.CoreV1().Pods(ns).List(ctx, o) })
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = managed
				return heeded(l, watched{ns, "pods"}, true, func() (watch.Interface, error) { return l.client.CoreV1().Pods(ns).Watch(ctx, o) })
			},
		}}, &corev1.Pod{}, l.timing.resync, nil)
		events := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = ofKindPod
				return heeded(l, watched{ns, "events"}, false, func() (*corev1.EventList, error) { return l.client.CoreV1().Events(ns).List(ctx, o) })
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = ofKindPod
				return heeded(l, watched{ns, "events"}, true, func() (watch.Interface, error) { return l.client.CoreV1().Events(ns).Watch(ctx, o) })
			},
		}}, &corev1.Event{}, l.timing.resync, nil)
		entered, err := l.follow(ns, pods, events)
		if err != nil {
			return err
		}
		l.informers = append(l.informers, pods)
		settled := l.rights.expect(ns, entered)
		if ns == l.opts.Pods.Namespace {
			synced = append(synced, entered...) // a gateway of no use waits for its rights
		} else {
			synced = append(synced, settled)
		}
		for _, informer := range []cache.SharedIndexInformer{pods, events} {
			l.own(func() { informer.Run(l.ctx.Done()) })
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		err := context.Cause(ctx)
		if why := l.rights.refusal(l.opts.Pods.Namespace); why != "" {
			err = errors.New(why)
		}
		return fmt.Errorf("the cluster's pods could not be listed: %w", err)
	}
	l.freshness.proved(l.timing.now())
	return nil
}

// listThenWatch has an informer list before it watches. One that gets the list through its watch tells nobody when the API server refuses
// connections, and nobody could say then why kernels cannot be listed.
type listThenWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how client-go asks.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// watched is what an informer watches.
type watched struct{ namespace, what string }

// heeded lists what is watched, or begins the watch, and notes whether it works. An informer does not tell: while the API server
// refuses connections it tries again without a word, after up to a minute. Once a list has failed only a watch mends it.
func heeded[T any](l *Launcher, w watched, mends bool, ask func() (T, error)) (T, error) {
	got, err := ask()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.unwatched[w] = true
	} else if mends {
		delete(l.unwatched, w)
	}
	return got, err
}

// follow has what two informers tell entered. Synced are what says that their first list has been.
func (l *Launcher) follow(ns string, pods, events cache.SharedIndexInformer) (synced []cache.InformerSynced, err error) {
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		if l.rights.forbidden(ns, err) {
			l.log.Error("no kernel can be in a namespace", "namespace", ns, "err", l.rights.refusal(ns))
			return
		}
		l.log.Warn("the cluster's pods cannot be watched; this is tried again", "namespace", ns, "err", err)
	}
	p, err1 := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.podNews(o, l.enterPod) },
		UpdateFunc: func(_, o any) { l.podNews(o, l.enterPod) },
		DeleteFunc: func(o any) { l.podNews(o, l.enterRemoved) },
	})
	e, err2 := events.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.eventNews,
		UpdateFunc: func(_, o any) { l.eventNews(o) },
	})
	if err := errors.Join(err1, err2, pods.SetWatchErrorHandlerWithContext(complain), events.SetWatchErrorHandlerWithContext(complain),
		pods.SetTransform(slim), events.SetTransform(slim)); err != nil {
		return nil, err
	}
	return []cache.InformerSynced{p.HasSynced, e.HasSynced}, nil
}

// slim drops what nobody reads and what is large.
func slim(o any) (any, error) {
	if object, err := meta.Accessor(o); err == nil { // else it is a note that something is gone
		object.SetManagedFields(nil)
	}
	return o, nil
}

func (l *Launcher) podNews(o any, enter func(*corev1.Pod)) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok {
		enter(pod)
		l.act(pod)
	}
}

// eventNews remembers an event of a kernel's pod. Those of other pods are told apart by their names.
func (l *Launcher) eventNews(o any) {
	e, ok := o.(*corev1.Event)
	if !ok || len(e.InvolvedObject.Name) < 36 || !launcher.ValidID(e.InvolvedObject.Name[:36]) {
		return
	}
	uid, id := e.InvolvedObject.UID, e.InvolvedObject.Name[:36]
	l.mu.Lock()
	newest, known := l.events[uid]
	if !known && len(l.events) >= maxEventPods+len(l.kernels) {
		l.mu.Unlock()
		return
	}
	same := func(x corev1.Event) bool { return x.UID == e.UID }
	newest = append(slices.DeleteFunc(slices.Clone(newest), same), *e) // a new list: readers have the old one
	l.events[uid] = newest[max(0, len(newest)-maxPodEvents):]
	var pod *corev1.Pod
	if k := l.kernels[id]; k != nil && k.pod.UID == uid {
		pod = k.pod
		k.touch()
	}
	l.mu.Unlock()
	if pod != nil {
		l.act(pod)
	}
}

// eventsOf returns the newest events of a pod, oldest first.
func (l *Launcher) eventsOf(pod *corev1.Pod) []corev1.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[pod.UID]
}

// act does what news of a pod ask for: a kernel that will never be up is ended, and a supervisor is told what its kernel
// waits for.
func (l *Launcher) act(pod *corev1.Pod) {
	why := podReason(pod, l.eventsOf(pod), l.timing.now())
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[LabelKernel]]
	if k == nil || k.pod.UID != pod.UID || k.end != nil || k.removed {
		return
	}
	if why.class == classNever && !k.wasUp() {
		if k.stop == nil {
			l.beginStopLocked(k, why.text, "", false)
		}
		return
	}
	// How the kernel's container ended comes first: its supervisor waits for that to tell the cell.
	if end := kernelEnd(pod); k.streaming && end.class == classDied && !end.since.Equal(k.toldEnd) && l.timing.now().Sub(end.since) < tellEnd {
		k.toldEnd, why = end.since, end
	}
	if k.streaming && (why.class != k.told.class || why.text != k.told.text) {
		version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			return // no version of ours either
		}
		// What is newer has a greater number, whichever gateway tells it; events bring news without a new version of the pod.
		if version <<= 8; version <= k.toldVersion {
			version = k.toldVersion + 1
		}
		k.told, k.toldVersion = why, version
		l.tellLocked(k, pod, why, version)
	}
}

// wasUp reports whether the kernel's program has answered in this pod. Launcher.mu is held.
func (k *kernel) wasUp() bool {
	return k.heard && k.status.State != string(launcher.Starting)
}

// news is what the supervisor in a pod is to be told.
type news struct {
	pod  *corev1.Pod
	said supervisor.Waiting
}

// tellLocked has a supervisor told what its kernel waits for, or how its container ended: one thing after the other, since it ignores
// what is older than what it has heard, and an end would be lost where the container is back at once. What is out of date before it is
// told is left out, but for ends. Launcher.mu is held.
func (l *Launcher) tellLocked(k *kernel, pod *corev1.Pod, why reason, version uint64) {
	said := supervisor.Waiting{Class: string(why.class), Text: why.text, Version: version}
	if said.Class == "" {
		said.Class = supervisor.WaitingClass // nothing to be waited for any more
	}
	if last := len(k.untold) - 1; last > 0 && k.untold[last].said.Class != supervisor.DiedClass {
		k.untold = k.untold[:last]
	}
	if k.untold = append(k.untold, news{pod, said}); len(k.untold) == 1 && !l.ownLocked(func() { l.tell(k) }) {
		k.untold = nil // the launcher is closed
	}
}

// tell tells what is untold, until there is nothing.
func (l *Launcher) tell(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; len(k.untold) > 0; k.untold = k.untold[1:] {
		n := k.untold[0]
		l.mu.Unlock()
		client, err := l.supervisor(n.pod)
		if err == nil {
			ctx, cancel := context.WithTimeout(l.ctx, tellTime)
			err = client.SetWaiting(ctx, n.said)
			cancel()
		}
		if err != nil && l.ctx.Err() == nil {
			l.log.Debug("a supervisor could not be told what its kernel waits for", "kernel", k.id, "err", err)
		}
		l.mu.Lock()
	}
}

// watcher stands for the one goroutine that follows a pod's supervisor. A kernel's watcher field names the present one; any
// other ends as soon as it looks.
type watcher struct {
	// Guarded by Launcher.mu.
	failed bool // at least one attempt has not led to a status
}

// ensureWatchLocked starts to follow a kernel whose pod has an address, unless it has ended. Launcher.mu is held.
func (l *Launcher) ensureWatchLocked(k *kernel) {
	if k.watcher != nil || k.end != nil || k.removed || k.pod.Status.PodIP == "" {
		return
	}
	w := new(watcher)
	if l.ownLocked(func() { l.watch(k, w) }) {
		k.watcher = w
	}
}

// watch follows a kernel until it has ended or the launcher closes.
func (l *Launcher) watch(k *kernel, w *watcher) {
	pause, limit := l.timing.firstRedial, l.timing.lastRedial
	for {
		heard, err := l.stream(k, w)
		if l.ctx.Err() != nil {
			return
		}
		unsupported := l.streamEnded(k, w, err)
		if heard {
			pause = l.timing.firstRedial
		}
		wait := pause + time.Duration(rand.Int64N(int64(pause/4)+1))
		if unsupported {
			wait = unsupportedPause
		}
		if !l.rest(k, w, wait) {
			return
		}
		pause = min(2*pause, limit)
	}
}

// rest waits before the next attempt; a change of the pod shortens it. It reports whether there is to be one.
func (l *Launcher) rest(k *kernel, w *watcher, wait time.Duration) bool {
	l.mu.Lock()
	before := k.pod
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, wait)
	defer cancel()
	l.await(ctx, k, func() bool {
		return k.watcher != w || k.end != nil || k.pod != before && !slices.EqualFunc(k.pod.Status.ContainerStatuses, before.Status.ContainerStatuses, sameState)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.watcher != w || l.ctx.Err() != nil {
		return false
	}
	if k.end != nil || k.removed {
		k.watcher = nil
		return false
	}
	return true
}

// sameState reports whether a container has not been started or ended meanwhile.
func sameState(a, b corev1.ContainerStatus) bool {
	return a.ContainerID == b.ContainerID && (a.State.Running == nil) == (b.State.Running == nil)
}

// stream opens the status stream and follows it to its end.
func (l *Launcher) stream(k *kernel, w *watcher) (heard bool, err error) {
	select {
	case l.opening <- struct{}{}:
	case <-l.ctx.Done():
		return false, context.Cause(l.ctx)
	}
	// A stream counts as open from its first line; until then it keeps its place among those being opened.
	opened := sync.OnceFunc(func() { <-l.opening })
	defer opened()
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	client, err := l.supervisor(pod)
	if err != nil {
		return false, err
	}
	err = client.Watch(l.ctx, func(st supervisor.Status) {
		opened()
		heard = true
		l.hear(k, w, st)
	})
	return heard, err
}

// hear enters a status.
func (l *Launcher) hear(k *kernel, w *watcher, st supervisor.Status) {
	l.mu.Lock()
	if k.watcher != w {
		l.mu.Unlock()
		return
	}
	first := !k.streaming
	k.status, k.heard, k.streaming, k.unsupported = st, true, true, ""
	l.tally.Add(k.counted, st.Counts)
	k.counted = st.Counts
	l.observe(k)
	if first {
		k.told = reason{} // a supervisor that was started again knows nothing
	}
	pod := k.pod
	k.touch()
	l.mu.Unlock()
	if first {
		l.act(pod)
	}
}

// streamEnded marks what is known as old. It reports whether the supervisor speaks another protocol.
func (l *Launcher) streamEnded(k *kernel, w *watcher, err error) bool {
	var version *supervisor.VersionError
	unsupported := errors.As(err, &version)
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.watcher != w {
		return unsupported
	}
	was, first := k.streaming, unsupported && k.unsupported == ""
	k.streaming, w.failed = false, true
	if unsupported {
		k.unsupported = err.Error()
	}
	k.touch()
	switch {
	case first:
		l.log.Error("kernel is left alone", "kernel", k.id, "err", err)
	case was:
		l.log.Debug("status stream ended", "kernel", k.id, "err", err)
	}
	return unsupported
}

// freshness is when what the informers hold was last known to be what the cluster has.
type freshness struct {
	mu     sync.Mutex // held while it is proved anew: who comes meanwhile waits for the result
	last   time.Time
	failed time.Time // when it could not be proved

	doubting sync.Mutex
	doubts   map[*doubt]bool // guarded by doubting; until they are settled the next list is proved
}

// doubt is a reason to think that what the informers hold is old.
type doubt struct{ _ byte }

// doubt has lists proved from now on. settled ends that; a list that has begun later and was proved does so, too.
func (f *freshness) doubt() (settled func()) {
	d := new(doubt)
	f.doubting.Lock()
	defer f.doubting.Unlock()
	if f.doubts == nil {
		f.doubts = map[*doubt]bool{}
	}
	f.doubts[d] = true
	return func() { f.settle([]*doubt{d}) }
}

func (f *freshness) doubted() []*doubt {
	f.doubting.Lock()
	defer f.doubting.Unlock()
	return slices.Collect(maps.Keys(f.doubts))
}

func (f *freshness) settle(some []*doubt) {
	f.doubting.Lock()
	defer f.doubting.Unlock()
	for _, d := range some {
		delete(f.doubts, d)
	}
}

func (f *freshness) proved(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = now
}

// proveFresh makes sure that the list of kernels is not older than a few seconds. A watch may be dead without anybody's having
// noticed; so the names that the cluster has are compared with those that are known, at most once in so many seconds however
// many ask and however many kernels there are, and where there is reason to doubt. The error is ErrUnavailable: better no list than one that lacks kernels.
func (l *Launcher) proveFresh(ctx context.Context) error {
	l.freshness.mu.Lock()
	defer l.freshness.mu.Unlock()
	doubts := l.freshness.doubted()
	switch now := l.timing.now(); {
	case len(doubts) == 0 && now.Sub(l.freshness.last) < l.timing.fresh:
		return nil
	case now.Sub(l.freshness.failed) < proofPause:
		return errNoAnswer // or those that wait would wait in turn
	}
	limited, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	var there []corev1.Pod
	for _, ns := range l.namespaces {
		if l.rights.refusal(ns) != "" {
			continue
		}
		pods, err := l.listPods(limited, ns, managed)
		if err != nil {
			l.freshness.failed = l.timing.now()
			if ctx.Err() == nil {
				err = errNoAnswer // and not that the limit is over
			}
			return err
		}
		there = append(there, pods.Items...)
	}
	uids := map[types.UID]bool{}
	for i := range there {
		uids[there[i].UID] = true
		l.podNews(&there[i], l.enterPod)
	}
	l.mu.Lock()
	var removed []*corev1.Pod
	for _, k := range l.kernels {
		// A pod that was made meanwhile is not in the list.
		if !k.removed && !uids[k.pod.UID] && l.timing.now().Sub(k.pod.CreationTimestamp.Time) > l.timing.fresh {
			removed = append(removed, k.pod)
		}
	}
	l.mu.Unlock()
	for _, pod := range removed {
		l.enterRemoved(pod)
	}
	l.freshness.last = l.timing.now()
	l.freshness.settle(doubts)
	return nil
}

// catchUp looks for itself where there is no watch: kernels that start would not be heard of until it is tried again.
func (l *Launcher) catchUp(ctx context.Context) {
	l.mu.Lock()
	missing := slices.Collect(maps.Keys(l.unwatched))
	l.mu.Unlock()
	if !slices.ContainsFunc(missing, func(w watched) bool { return l.rights.refusal(w.namespace) == "" }) {
		return
	}
	if err := l.proveFresh(ctx); err != nil {
		l.log.Debug("the cluster's pods could not be listed", "err", err)
	}
}

// listPods asks the cluster for pods, and enters nothing.
func (l *Launcher) listPods(ctx context.Context, ns, selector string) (*corev1.PodList, error) {
	asking, cancel := l.asking(ctx)
	defer cancel()
	pods, err := l.client.CoreV1().Pods(ns).List(asking, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, l.unavailable(ctx, "list of pods in "+ns, err)
	}
	return pods, nil
}
