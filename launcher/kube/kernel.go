package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// kernel is one kernel as this launcher knows it: its newest pod, and what that pod's supervisor has said.
type kernel struct {
	// Fixed.
	id       string
	changing chan struct{} // capacity 1: held by whoever changes the kernel's notes

	// Guarded by Launcher.mu.
	pod         *corev1.Pod       // the newest version known of the newest generation; it is replaced, never changed
	rec         record            // of pod
	complete    time.Time         // when its secret was known to be there
	removed     bool              // the pod is no longer in the cluster
	status      supervisor.Status // the last one heard
	heard       bool              // there is one, of this pod
	streaming   bool              // it is being kept up to date
	unsupported string            // not "": the supervisor lives and speaks another protocol, told in a sentence
	end         *ending           // not nil: the kernel has ended
	claimed     bool              // a client is known to know of it
	watcher     *watcher
	stop        *stop             // in progress
	told        reason            // what the supervisor was told last
	toldVersion uint64            // under this number
	toldEnd     time.Time         // of the container whose end it was told last
	untold      []news            // what it is to be told, in order; the first one is being told
	start       *start            // not over yet; nil: it is, or another gateway has begun it
	gpusUntil   time.Time         // up to which the time that its pod holds GPUs is added up
	counted     supervisor.Counts // the last ones heard of any of its supervisors
	changed     chan struct{}
}

const maxReason = 4 << 10 // characters of the reason of an end, which a supervisor has bounded already

func newKernel(id string) *kernel {
	return &kernel{id: id, changing: make(chan struct{}, 1), changed: make(chan struct{})}
}

// touch wakes whoever waits for a change. Launcher.mu is held.
func (k *kernel) touch() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// enterPod enters what a pod is at present: news from an informer, an answer of the API server, in any order.
func (l *Launcher) enterPod(pod *corev1.Pod) {
	rec, err := readRecord(pod)
	if err != nil {
		l.log.Warn("pod is nobody's kernel and is left alone", "namespace", pod.Namespace, "pod", pod.Name, "err", err)
		return
	}
	end := endOf(pod, l.timing.now())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term.enter(pod, rec)
	k := l.kernels[rec.id]
	if gone, ok := l.endings.known.Get(rec.id); k == nil && ok && gone.pod == pod.UID {
		return
	}
	switch {
	case k == nil && end != nil && (end.Stopped || l.overdue(end)):
		l.noteEnd(rec, pod, end)
		return
	case k == nil:
		k = newKernel(rec.id)
		l.kernels[rec.id] = k
	case k.pod.UID == pod.UID:
		if k.removed || older(pod, k.pod) {
			return
		}
	case !succeeds(pod, rec, k):
		return
	default:
		l.holdGPUs(k, l.timing.now())
		k.forgetPod()
	}
	k.pod, k.rec = pod, rec
	if end != nil && (k.end == nil || end.Stopped) {
		l.enterEnd(k, end)
	}
	if k.end != nil && k.end.Stopped {
		l.enterGone(k) // the reaper removes what is left of its pod
	}
	k.touch()
	l.ensureWatchLocked(k)
}

// succeeds reports whether another pod takes the place of the kernel's present one: the next generation, or one made anew
// under the same name. Of two namespaces' pods the older one stays. Launcher.mu is held.
func succeeds(pod *corev1.Pod, rec record, k *kernel) bool {
	switch {
	case rec.generation != k.rec.generation:
		return rec.generation > k.rec.generation
	case pod.Namespace == k.pod.Namespace:
		return !older(pod, k.pod)
	}
	return k.removed || pod.CreationTimestamp.Before(&k.pod.CreationTimestamp)
}

// forgetPod prepares for the next pod. Launcher.mu is held.
func (k *kernel) forgetPod() {
	k.watcher, k.complete, k.claimed = nil, time.Time{}, false // the watcher ends when it looks
	k.removed, k.heard, k.streaming, k.unsupported, k.end, k.told, k.toldVersion, k.toldEnd = false, false, false, "", nil, reason{}, 0, time.Time{}
	k.status, k.start = supervisor.Status{}, nil
}

// older reports whether one version of a pod is older than another: resource versions are numbers that grow, as Kubernetes
// guarantees since 1.35 and etcd has always had it.
func older(a, b *corev1.Pod) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX == nil && errY == nil && x < y
}

// enterRemoved enters that a pod is no longer in the cluster.
func (l *Launcher) enterRemoved(pod *corev1.Pod) {
	why := podReason(pod, l.eventsOf(pod), l.timing.now())
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.events, pod.UID)
	l.term.remove(pod.UID)
	k := l.kernels[pod.Labels[LabelKernel]]
	if k == nil || k.pod.UID != pod.UID || k.removed {
		return
	}
	if !older(pod, k.pod) {
		k.pod = pod
	}
	l.holdGPUs(k, l.timing.now())
	k.removed, k.streaming = true, false
	end := k.end
	if end == nil {
		end = endOf(pod, l.timing.now())
	}
	if end == nil {
		end = &ending{Reason: "its pod was deleted", At: l.timing.now().UTC()}
		if why.class == classDied {
			end.Reason = why.text
		}
	}
	if k.stop != nil {
		end = &ending{Reason: k.stop.reason, At: end.At, Stopped: true, Culled: end.Culled, CulledFor: end.CulledFor}
	}
	l.enterEnd(k, end)
	if end.Stopped || forgotten(k.pod) {
		l.enterGone(k)
	}
	k.touch()
}

// enterGone forgets a kernel but for its end. Launcher.mu is held.
func (l *Launcher) enterGone(k *kernel) {
	l.holdGPUs(k, l.timing.now())
	if l.kernels[k.id] == k {
		delete(l.kernels, k.id)
	}
	k.watcher = nil
}

// overdue reports whether a dead kernel has been shown for long enough.
func (l *Launcher) overdue(end *ending) bool {
	return l.timing.now().Sub(end.At) >= l.opts.DeadLinger
}

// endOf returns how the kernel of a pod has ended, nil if it has not.
func endOf(pod *corev1.Pod, now time.Time) *ending {
	if noted, ok := endingOf(pod, pod.Annotations[annotationEnding]); ok {
		end := endingTold(noted)
		end.limit = pod.Annotations[annotationLimit]
		return end
	}
	st := containerStatus(pod, containerSupervisor)
	if st != nil && st.State.Terminated != nil && (hasFinished(pod) || st.State.Terminated.ExitCode == 0) { // else it is started again, and adopts its kernel
		if told, ok := endingOf(pod, st.State.Terminated.Message); ok {
			end := endingTold(told)
			if told.Reason == supervisor.SignalReason { // the cluster's wish, not the owner's
				end.Reason, end.Stopped = deletedWhy(pod, now), false
			}
			return end
		}
	}
	if !hasFinished(pod) {
		return nil
	}
	end := &ending{Reason: "its pod has ended", At: now.UTC()}
	if why := podReason(pod, nil, now); why.class == classDied || why.class == classNever {
		end.Reason = why.text
		if !why.since.IsZero() {
			end.At = why.since.UTC()
		}
	}
	return end
}

// deletedWhy says why a pod was deleted that no gateway has deleted.
func deletedWhy(pod *corev1.Pod, now time.Time) string {
	e := explanation{pod: pod, now: now}
	if why := e.taken(); why.text != "" {
		return why.text
	}
	return "its pod was deleted"
}

func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == name {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// find returns the kernel of an id. One that is not known is looked for in the cluster before it is said not to exist: another
// gateway may have made it this moment.
func (l *Launcher) find(ctx context.Context, id string) (*kernel, error) {
	if !launcher.ValidID(id) {
		return nil, launcher.ErrNotFound // and it gets into no selector
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if k, err := l.lookUp(id); k != nil || err != nil {
		return k, err
	}
	if err := l.ask(ctx, id); err != nil {
		return nil, err
	}
	k, err := l.lookUp(id)
	if k == nil && err == nil {
		err = l.goneError(id)
	}
	return k, err
}

// lookUp returns what is known without asking: nil if that is nothing.
func (l *Launcher) lookUp(id string) (*kernel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	k := l.kernels[id]
	if k != nil && k.end != nil && k.removed && l.overdue(k.end) {
		l.enterGone(k)
		return nil, l.goneErrorLocked(id)
	}
	return k, nil
}

// ask enters the pods of one kernel as the cluster has them.
func (l *Launcher) ask(ctx context.Context, id string) error {
	l.mu.Lock()
	var known *corev1.Pod // before the cluster is asked: what is made meanwhile is not missed
	if k := l.kernels[id]; k != nil && !k.removed {
		known = k.pod
	}
	l.mu.Unlock()
	for _, ns := range l.namespaces {
		if l.rights.refusal(ns) != "" {
			continue
		}
		pods, err := l.listPods(ctx, ns, LabelKernel+"="+id)
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if known != nil && pods.Items[i].UID == known.UID {
				known = nil
			}
			l.enterPod(&pods.Items[i])
		}
	}
	if known != nil {
		l.enterRemoved(known)
	}
	return nil
}

// goneError tells that a kernel does not exist, and why if that is known.
func (l *Launcher) goneError(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.goneErrorLocked(id)
}

func (l *Launcher) goneErrorLocked(id string) error {
	if end, ok := l.endings.known.Get(id); ok {
		return &launcher.GoneError{ID: id, Owner: end.Owner, Reason: end.Reason, At: end.At}
	}
	return launcher.ErrNotFound
}

// Kernel returns one kernel.
func (l *Launcher) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitWord(ctx, k, l.timing.firstWord)
	return l.describe(k)
}

// Kernels returns all kernels by creation.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	if err := l.proveFresh(ctx); err != nil {
		return nil, err
	}
	if l.ctx.Err() != nil {
		return nil, errClosed
	}
	known := l.known()
	deadline := l.timing.now().Add(l.timing.firstWord)
	all := make([]launcher.Kernel, 0, len(known))
	for _, k := range known {
		l.awaitWord(ctx, k, deadline.Sub(l.timing.now()))
		d, err := l.describe(k)
		if errors.Is(err, launcher.ErrNotFound) {
			continue // it went just now
		}
		if err != nil {
			return nil, err
		}
		if d.Limit != "" && l.isForgotten(k) {
			continue // its client is told so at this moment
		}
		all = append(all, d)
	}
	slices.SortFunc(all, launcher.ByCreation)
	return all, nil
}

// known returns the kernels in memory.
func (l *Launcher) known() []*kernel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.kernels))
}

// Wait returns the kernel as soon as cond holds for it.
func (l *Launcher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	for {
		changed := l.changes(k) // before the look, so that nothing is missed
		d, err := l.describe(k)
		if err != nil || cond(d) {
			return d, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, ctx.Err()
		case <-l.ctx.Done():
			return d, errClosed
		}
	}
}

// changes returns a channel that is closed at the next change.
func (l *Launcher) changes(k *kernel) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return k.changed
}

// awaitWord waits for the first status of a supervisor that should answer at once, for limit at most.
func (l *Launcher) awaitWord(ctx context.Context, k *kernel, limit time.Duration) {
	if limit <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l.await(ctx, k, func() bool {
		st := containerStatus(k.pod, containerSupervisor)
		return k.heard || k.unsupported != "" || k.end != nil || st == nil || st.State.Running == nil || k.watcher == nil || k.watcher.failed
	})
}

// await waits until cond, which is called with Launcher.mu held, is true. It reports whether it is.
func (l *Launcher) await(ctx context.Context, k *kernel, cond func() bool) bool {
	for {
		l.mu.Lock()
		ok, changed := cond(), k.changed
		l.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-l.ctx.Done():
			return false
		}
	}
}

// describe gives what is known of a kernel to the outside.
func (l *Launcher) describe(k *kernel) (launcher.Kernel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernels[k.id] != k {
		return launcher.Kernel{}, l.goneErrorLocked(k.id)
	}
	notes, err := readNotes(k.pod)
	if err != nil {
		l.log.Warn("notes of a kernel cannot be read", "kernel", k.id, "err", err)
	}
	d := launcher.Kernel{ID: k.id, SpecName: k.rec.spec, Owner: k.rec.owner, Groups: k.rec.groups, Created: k.rec.created,
		State: launcher.Starting, LastActivity: k.rec.created, Stale: !k.streaming, Notes: notes}
	if k.heard {
		d.State, d.Reason = launcher.StateOf(k.status.State), k.status.Reason
		d.Connections, d.LogBytes = k.status.Connections, k.status.LogBytes
		d.CullAt, d.KeepUntil = k.status.CullAt, k.status.KeepUntil
		if k.status.LastActivity.After(d.LastActivity) {
			d.LastActivity = k.status.LastActivity.UTC()
		}
	}
	switch {
	case k.end != nil:
		d.State, d.Reason, d.Limit, d.Stale, d.Connections, d.LogBytes = launcher.Dead, k.end.Reason, k.end.limit, false, 0, 0
		d.CullAt, d.KeepUntil = time.Time{}, time.Time{}
	case k.unsupported != "":
		// Busy is the one state in which nobody takes a kernel for unused.
		d.State, d.Reason, d.Stale = launcher.Busy, k.unsupported, true
	case d.State == launcher.Dead && d.Reason == supervisor.SignalReason:
		d.Reason = deletedWhy(k.pod, l.timing.now())
	case d.State == launcher.Starting || d.State == launcher.Restarting:
		// Kernels that are up need no explanation, and a list has hundreds of them.
		if why := podReason(k.pod, l.events[k.pod.UID], l.timing.now()); why.text != "" && why.class != classDied {
			d.Reason = why.text
		}
		if d.Reason == "" && !k.heard {
			d.Reason = "its supervisor has not answered this gateway yet"
		}
		d.Stale = d.Stale && k.heard // nothing newer is to be known of one that has no supervisor yet
	}
	return d, nil
}

// Dial connects to the kernel's supervisor.
func (l *Launcher) Dial(ctx context.Context, id string) (net.Conn, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	pod, rec, end, heard, unsupported := k.pod, k.rec, k.end, k.heard, k.unsupported
	// Of one that this gateway has just adopted nothing was heard yet.
	st := containerStatus(pod, containerSupervisor)
	answers := heard || st != nil && st.State.Running != nil
	if end == nil && heard && k.status.State == string(launcher.Dead) {
		// Its supervisor says good-bye to those that are connected, and ends.
		end = &ending{Reason: k.status.Reason, At: l.timing.now().UTC()}
	}
	l.mu.Unlock()
	switch {
	case end != nil:
		return nil, &launcher.GoneError{ID: id, Owner: rec.owner, Reason: end.Reason, At: end.At}
	case unsupported != "":
		return nil, fmt.Errorf("%w: %s", launcher.ErrUnavailable, unsupported)
	case !answers:
		return nil, launcher.ErrNoSupervisor
	}
	c, err := l.connect(ctx, pod)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !heard:
		return nil, launcher.ErrNoSupervisor
	}
	return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}

// Token returns the bearer token that the kernel's supervisor demands.
func (l *Launcher) Token(id string) string {
	l.mu.Lock()
	k := l.kernels[id]
	var pod *corev1.Pod
	if k != nil {
		pod = k.pod
	}
	l.mu.Unlock()
	if pod == nil {
		return ""
	}
	keys, err := l.keysOf(pod)
	if err != nil {
		return ""
	}
	return keys.token
}

func (l *Launcher) keysOf(pod *corev1.Pod) (keyMaterial, error) {
	rec, err := readRecord(pod)
	if err != nil {
		return keyMaterial{}, err
	}
	return deriveKeys(l.opts.MasterKey, pod.Name, rec.keyVersion)
}

// connect dials a pod's supervisor, whatever is thought of its state.
func (l *Launcher) connect(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	k, err := l.keysOf(pod)
	if err != nil {
		return nil, err
	}
	return l.dialPod(ctx, pod, k)
}

// supervisor speaks to the supervisor of a pod.
func (l *Launcher) supervisor(pod *corev1.Pod) (*supervisor.Client, error) {
	k, err := l.keysOf(pod)
	if err != nil {
		return nil, err
	}
	return &supervisor.Client{KernelID: pod.Labels[LabelKernel], Token: k.token, Dial: func(ctx context.Context) (net.Conn, error) {
		return l.dialPod(ctx, pod, k)
	}}, nil
}
