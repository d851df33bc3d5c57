package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	updateTime   = 5 * time.Second  // for an update to be sent to a supervisor
	endUpdateAge = 30 * time.Second // age up to which the end of a kernel's container is sent to its supervisor
	proofTime    = 3 * time.Second  // for the cluster to prove that a list of kernels is fresh
	proofPause   = 2 * time.Second  // after a failed proof, before the next one
)

// selectPodEvents selects the events of pods.
const selectPodEvents = "involvedObject.kind=Pod"

// startInformers watches pods and their events in every namespace. It returns when all existing objects have been
// recorded.
func (l *Launcher) startInformers(ctx context.Context) error {
	var synced []cache.InformerSynced
	for _, ns := range l.namespaces.Watched() {
		pods := cache.NewSharedIndexInformer(persistent(l, &watchKey{ns, "pods"}, l.client.CoreV1().Pods(ns),
			func(o *metav1.ListOptions) { o.LabelSelector = podspec.SelectManaged }), &corev1.Pod{}, l.timing.resync, nil)
		events := cache.NewSharedIndexInformer(persistent(l, &watchKey{ns, "events"}, l.client.CoreV1().Events(ns),
			func(o *metav1.ListOptions) { o.FieldSelector = selectPodEvents }), &corev1.Event{}, l.timing.resync, nil)
		entered, err := l.addHandlers(ns, pods, events)
		if err != nil {
			return err
		}
		l.informers = append(l.informers, pods)
		settled := l.namespaces.Track(ns, entered)
		if ns == l.namespaces.WatchOf(l.opts.Pods.Namespace) {
			synced = append(synced, entered...) // without access to its own namespace, a gateway does not become ready
		} else {
			synced = append(synced, settled)
		}
		for _, informer := range []cache.SharedIndexInformer{pods, events} {
			l.goroutines.Go(func() { informer.Run(l.ctx.Done()) })
		}
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		err := context.Cause(ctx)
		if why := l.namespaces.Denial(l.opts.Pods.Namespace); why != "" {
			err = errors.New(why)
		}
		return fmt.Errorf("the cluster's pods could not be listed: %w", err)
	}
	l.freshness.proved(l.timing.now())
	return nil
}

// listWatcher is a client of one resource.
type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// persistent lists and then watches with a client of one resource, and repeats requests that are not answered. Whether
// they work is recorded under a key that is not nil, so the gateway can say why kernels cannot be listed.
func persistent[L runtime.Object](
	l *Launcher, key *watchKey, client listWatcher[L], choose func(*metav1.ListOptions),
) cache.ListerWatcher {
	return gpuview.ListThenWatch{ListWatch: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			return untilAnswered(ctx, l, func() (L, error) {
				list, err := client.List(ctx, o)
				l.trackWatch(key, false, err)
				return list, err
			})
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			return untilAnswered(ctx, l, func() (watch.Interface, error) {
				w, err := client.Watch(ctx, o)
				l.trackWatch(key, true, err)
				return w, err
			})
		},
	}}
}

// watchKey names what an informer watches.
type watchKey struct{ namespace, resource string }

// trackWatch records whether a list or watch request works. Informers do not report failures: while the API server
// refuses connections they retry silently, up to a minute apart. Only a watch that works clears the record of a
// failure.
func (l *Launcher) trackWatch(key *watchKey, mends bool, err error) {
	if key == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.brokenWatches[*key] = true
	} else if mends {
		delete(l.brokenWatches, *key)
	}
}

// addHandlers makes the launcher record what two informers report. synced report whether their first lists have been
// recorded.
func (l *Launcher) addHandlers(ns string,
	pods, events cache.SharedIndexInformer) (synced []cache.InformerSynced, err error) {
	complain := func(_ context.Context, _ *cache.Reflector, err error) {
		if l.namespaces.Deny(ns, err) {
			l.log.Error("this gateway may not list pods in a namespace", logkey.Namespace, ns, logkey.Err,
				l.namespaces.Denial(ns))
			return
		}
		l.log.Warn("the cluster's pods cannot be watched; this is tried again", logkey.Namespace, ns, logkey.Err, err)
	}
	p, err1 := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { l.handlePod(o, l.updatePod) },
		UpdateFunc: func(_, o any) { l.handlePod(o, l.updatePod) },
		DeleteFunc: func(o any) { l.handlePod(o, l.podRemoved) },
	})
	e, err2 := events.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.handleEvent,
		UpdateFunc: func(_, o any) { l.handleEvent(o) },
	})
	if err := errors.Join(err1, err2,
		pods.SetWatchErrorHandlerWithContext(complain), events.SetWatchErrorHandlerWithContext(complain),
		pods.SetTransform(podbuild.TrimmedObject), events.SetTransform(l.events.Trim)); err != nil {
		return nil, err
	}
	return []cache.InformerSynced{p.HasSynced, e.HasSynced}, nil
}

func (l *Launcher) handlePod(o any, enter func(*corev1.Pod)) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok {
		enter(pod)
		l.actOnPod(pod)
		if l.reaping.Load() {
			l.warm.Notice(pod)
		}
	}
}

// handleEvent keeps an event of a kernel's pod.
func (l *Launcher) handleEvent(o any) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return
	}
	id := l.events.KernelOf(e)
	if id == "" {
		return
	}
	l.mu.Lock()
	var pod *corev1.Pod
	if k := l.kernels[id]; k != nil && k.pod.UID == e.InvolvedObject.UID && !k.removed {
		pod = k.pod
		k.supervisor.ChangedLocked()
	}
	l.events.Add(e, pod != nil)
	l.mu.Unlock()
	if pod != nil {
		l.actOnPod(pod)
	}
}

// actOnPod reacts to a change of a pod: a kernel that will never run is ended, and a supervisor receives what its
// kernel waits for.
func (l *Launcher) actOnPod(pod *corev1.Pod) {
	events := l.events.Of(pod.UID)
	why, pull := podstatus.Explain(pod, events, l.clusterNow()), podstatus.Pull(pod, events)
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	if k == nil || k.pod.UID != pod.UID || k.end != nil || k.removed {
		return
	}
	if why.Class == podstatus.ClassNever && k.isUnstartedLocked() {
		if k.stop == nil {
			l.beginStopLocked(k, why.Text, "", false)
		}
		return
	}
	// The end of the kernel's container is sent first: the supervisor waits for it, to show it in the cell.
	if end := podstatus.KernelEnd(pod); k.supervisor.Streaming && end.Class == podstatus.ClassDied &&
		!end.Since.Equal(k.sentEnd) &&
		l.clusterNow().Sub(end.Since) < endUpdateAge {
		k.sentEnd, why = end.Since, end
	}
	pulled := pull != nil && !pull.At.Equal(k.sentPull) && (why.Class == "" || why.Class == podstatus.ClassWaiting)
	if k.supervisor.Streaming && (pulled || why.Class != k.sentReason.Class || why.Text != k.sentReason.Text) {
		version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
		if err != nil {
			return // no version can be made from it
		}
		// Newer updates have greater versions, whichever gateway sends them. An event changes the reason without a new
		// version of the pod.
		if version <<= 8; version <= k.sentVersion {
			version = k.sentVersion + 1
		}
		k.sentReason, k.sentVersion = why, version
		if pull != nil {
			k.sentPull = pull.At
		}
		l.queueUpdateLocked(k, pod, api.Waiting{Class: string(why.Class), Text: why.Text, Version: version, Pulled: pull})
	}
}

// isUnstartedLocked reports whether the kernel's program has certainly not answered in this pod. A program that runs
// may have answered. Only its supervisor knows, and this gateway may be unable to reach that.
func (k *kernel) isUnstartedLocked() bool {
	switch {
	case k.supervisor.HasStatus && k.supervisor.Status.State != api.Starting:
		return false
	case k.supervisor.Streaming:
		return true
	}
	st := podstatus.ContainerStatus(k.pod, podspec.ContainerKernel)
	return st == nil || st.State.Running == nil && st.State.Terminated == nil && st.RestartCount == 0
}

// waitingUpdate is an update that has to be sent to the supervisor in a pod.
type waitingUpdate struct {
	pod     *corev1.Pod
	waiting api.Waiting
}

// queueUpdateLocked sends a supervisor what its kernel waits for, or how its container ended. Updates are sent one
// after the other: the supervisor ignores older versions, so an end could be lost if the container is restarted at
// once. An update that is out of date before it is sent is dropped, unless it is an end.
func (l *Launcher) queueUpdateLocked(k *kernel, pod *corev1.Pod, said api.Waiting) {
	if said.Class == "" {
		said.Class = api.WaitingClass // there is nothing to wait for
	}
	if last := len(k.unsent) - 1; last > 0 && k.unsent[last].waiting.Class != api.DiedClass {
		k.unsent = k.unsent[:last]
	}
	if k.unsent = append(k.unsent, waitingUpdate{pod, said}); len(k.unsent) == 1 &&
		!l.goroutines.Go(func() { l.sendUpdates(k) }) {
		k.unsent = nil // the launcher is closed
	}
}

// sendUpdates sends the queued updates.
func (l *Launcher) sendUpdates(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; len(k.unsent) > 0; k.unsent = k.unsent[1:] {
		n := k.unsent[0]
		l.mu.Unlock()
		client, err := l.supervisors.Client(n.pod)
		if err == nil {
			ctx, cancel := context.WithTimeout(l.ctx, updateTime)
			err = client.SetWaiting(ctx, n.waiting)
			cancel()
		}
		if err != nil && l.ctx.Err() == nil {
			l.log.Debug("an update could not be sent to a supervisor", logkey.Kernel, k.id, logkey.Err, err)
		}
		l.mu.Lock()
		if err != nil && n.waiting.Pulled != nil && k.pod.UID == n.pod.UID {
			k.sentPull = time.Time{} // the next update has it again
		}
	}
}

// followed adapts a kernel to follow.Kernel.
type followed struct {
	l *Launcher
	k *kernel
}

// ensureFollowedLocked starts to follow the supervisor of a kernel that has an address and has not ended.
func (l *Launcher) ensureFollowedLocked(k *kernel) {
	if k.end == nil && !k.removed && k.pod.Status.PodIP != "" {
		l.follower.FollowLocked(&k.supervisor, followed{l, k})
	}
}

// ID returns the kernel's id.
func (f followed) ID() string { return f.k.id }

// Client returns a client of the supervisor in the kernel's present pod.
func (f followed) Client() (*api.Client, error) {
	f.l.mu.Lock()
	pod := f.k.pod
	f.l.mu.Unlock()
	return f.l.supervisors.Client(pod)
}

// Rest waits for the pause, or until the pod's containers change.
func (f followed) Rest(pause time.Duration) (again bool) {
	l, k := f.l, f.k
	l.mu.Lock()
	before := k.pod
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.ctx, pause)
	defer cancel()
	l.follower.Await(ctx, &k.supervisor, func() bool {
		return k.end != nil ||
			k.pod != before && !slices.EqualFunc(k.pod.Status.ContainerStatuses, before.Status.ContainerStatuses, sameState)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.end == nil && !k.removed
}

// sameState reports whether a container has neither been started nor ended in between.
func sameState(a, b corev1.ContainerStatus) bool {
	return a.ContainerID == b.ContainerID && (a.State.Running == nil) == (b.State.Running == nil)
}

// Receive records a status and reacts to it.
func (f followed) Receive(_ api.Status, enterLocked func() (follow.Supervisor, bool)) {
	l, k := f.l, f.k
	l.mu.Lock()
	before, ok := enterLocked()
	if !ok {
		l.mu.Unlock()
		return
	}
	l.reportStartLocked(k)
	if !before.Streaming {
		k.sentReason, k.sentPull = podstatus.Reason{}, time.Time{} // a restarted supervisor has received nothing
	}
	pod := k.pod
	l.mu.Unlock()
	if !before.Streaming {
		l.actOnPod(pod)
	}
}

// catchUp lists pods while a watch has failed: kernels that start would stay unknown until the watch works again.
func (l *Launcher) catchUp(ctx context.Context) {
	l.mu.Lock()
	missing := slices.Collect(maps.Keys(l.brokenWatches))
	l.mu.Unlock()
	if !slices.ContainsFunc(missing, func(w watchKey) bool { return l.namespaces.Denial(w.namespace) == "" }) {
		return
	}
	if err := l.proveFresh(ctx); err != nil {
		l.log.Debug("the cluster's pods could not be listed", logkey.Err, err)
	}
}

// listPods lists pods in the cluster, without recording them.
func (l *Launcher) listPods(ctx context.Context, ns, selector string) (*corev1.PodList, error) {
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	pods, err := l.client.CoreV1().Pods(ns).List(asking, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, l.unavailable(ctx, "list of pods in "+ns, err)
	}
	return pods, nil
}
