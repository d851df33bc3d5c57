package kube

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// kernel is one kernel as this launcher knows it: its newest pod, and the last status of that pod's supervisor.
type kernel struct {
	// Fixed.
	id        string
	notesLock chan struct{} // capacity 1: held while this gateway changes the kernel's notes

	// Guarded by Launcher.mu.
	pod           *corev1.Pod       // the newest known version of the newest generation; replaced, never changed
	rec           podspec.Record    // of pod
	secretCreated time.Time         // when its secret was last known to exist
	removed       bool              // the cluster has no such pod any more
	deletionSeen  time.Time         // when this gateway first saw that the pod is being deleted, by its own clock
	unheard       bool              // end was recorded because neither node nor supervisor is heard; the pod may stay
	supervisor    follow.Supervisor // of the pod
	end           *endings.Ending   // not nil: the kernel has ended
	claimed       bool              // a client knows its id
	retrying      bool              // its second pod is being created, since a node has rejected the first
	dequeued      time.Time         // when this launcher saw that Kueue had admitted the pod
	stop          *stop             // in progress
	told          told              // of the supervisor
	nodeNotice    sentNotice        // the last attempt to announce that the pod's node goes away
	wronglyMarked time.Time         // since when the pod of a kernel in use is marked as evictable; zero: it is not
	start         *start            // in progress; nil: it is over, or another gateway began it
	notes         launcher.Notes    // of notesOf
	notesOf       *corev1.Pod       // the version of the pod whose notes were read last
	readers       []reader          // in Launcher.readers
	gpuTime       gpuview.Counted   // in Launcher.gpuTime
}

func newKernel(id string) *kernel {
	return &kernel{id: id, notesLock: make(chan struct{}, 1), supervisor: follow.NewSupervisor()}
}

// updatePod records a version of a pod, from an informer or an answer of the API server. Versions may come in any
// order. A warm kernel is unknown to all but those who keep and take it.
func (l *Launcher) updatePod(pod *corev1.Pod) {
	if pod.Labels[podspec.LabelManagedBy] == podspec.ManagerWarm {
		return // it has no owner yet
	}
	if l.opts.Pods.NamespacePerOwner() && !l.namespaces.Serves(pod) {
		return // another installation's, or a pod in a place that is not its owner's
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		l.log.Warn("pod is not a kernel's and is ignored", logkey.Namespace, pod.Namespace, logkey.Pod, pod.Name, logkey.Err,
			err)
		return
	}
	pod = podbuild.Trimmed(pod) // answers to requests are whole
	end := endOf(pod, l.clusterNow())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term.Update(admission.Pod{Pod: pod, Record: rec})
	k := l.kernels[rec.ID]
	if gone, ok := l.endings.Get(rec.ID); k == nil && ok && gone.Pod == pod.UID {
		return
	}
	switch {
	case k == nil && end != nil && (end.Stopped || l.lingered(end)):
		l.recordEndingLocked(rec, pod, end)
		return
	case k == nil:
		k = newKernel(rec.ID)
		l.kernels[rec.ID] = k
		l.ordered = nil
	case k.pod.UID == pod.UID:
		if k.removed {
			l.correctEndingLocked(k, end)
			return
		}
		if podstatus.Older(pod, k.pod) {
			return
		}
	case !succeedsLocked(pod, rec, k):
		return
	default:
		l.countGPUsLocked(k)
		claimed, start := k.claimed, k.start
		k.forgetPodLocked()
		if pod.Annotations[podspec.AnnotationRejected] != "" { // the start goes on with its second pod
			k.claimed, k.start = claimed, start
		}
	}
	if !podstatus.IsQueued(pod) && (k.pod == nil || k.pod.UID != pod.UID || podstatus.IsQueued(k.pod)) &&
		podstatus.MayHaveQueued(pod) {
		k.dequeued = l.timing.now()
	}
	if !rec.Created.Equal(k.rec.Created) {
		l.ordered = nil
	}
	k.pod, k.rec = pod, rec
	l.events.Claim(pod.UID)
	l.readers.addLocked(k, k.readersLocked(l.log))
	if pod.DeletionTimestamp != nil && k.deletionSeen.IsZero() {
		k.deletionSeen = l.timing.now()
	}
	if end != nil && (k.end == nil || end.Stopped) {
		l.endLocked(k, end)
	}
	if k.end != nil && k.end.Stopped {
		l.forgetLocked(k) // the reaper removes its pod
	}
	k.supervisor.ChangedLocked()
	l.ensureFollowedLocked(k)
}

// succeedsLocked reports whether another pod replaces the kernel's present one: the next generation, or a new pod of
// the same name. If two namespaces have a pod of the kernel, the older pod stays.
func succeedsLocked(pod *corev1.Pod, rec podspec.Record, k *kernel) bool {
	switch {
	case pod.Namespace != k.pod.Namespace && rec.Owner != k.rec.Owner:
		return k.removed // no user replaces another user's kernel by a pod in the own namespace
	case rec.Generation != k.rec.Generation:
		return rec.Generation > k.rec.Generation
	case pod.Namespace == k.pod.Namespace:
		return !podstatus.Older(pod, k.pod)
	}
	return k.removed || pod.CreationTimestamp.Before(&k.pod.CreationTimestamp)
}

// forgetPodLocked resets the fields that concern the present pod, before the next one is recorded.
func (k *kernel) forgetPodLocked() {
	k.supervisor.ForgetLocked()
	k.dequeued = time.Time{}
	k.secretCreated, k.claimed, k.removed, k.end, k.start = time.Time{}, false, false, nil, nil
	k.told = told{unsent: k.told.unsent}
	k.nodeNotice = sentNotice{}
	k.deletionSeen, k.unheard = time.Time{}, false
}

// podRemoved records that a pod is no longer in the cluster.
func (l *Launcher) podRemoved(pod *corev1.Pod) {
	why := podstatus.Explain(pod, l.events.Of(pod.UID), l.clusterNow())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events.Forget(pod.UID)
	l.term.Remove(pod.UID)
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	if k == nil || k.pod.UID != pod.UID {
		return
	}
	if k.removed {
		l.correctEndingLocked(k, endOf(pod, l.clusterNow()))
		return
	}
	if !podstatus.Older(pod, k.pod) {
		k.pod = pod
		l.readers.addLocked(k, k.readersLocked(l.log))
	}
	l.countGPUsLocked(k)
	k.removed, k.supervisor.Streaming = true, false
	end := k.end
	if end == nil {
		end = endOf(pod, l.clusterNow())
	}
	if end == nil {
		end = &endings.Ending{Reason: "its pod was deleted", At: l.clusterNow().UTC()}
		if why.Class == podstatus.ClassDied {
			end.Reason = why.Text
		}
	}
	if k.stop != nil && !end.Stopped { // else its supervisor or a gateway knows more
		end = &endings.Ending{Reason: k.stop.reason, At: end.At, Stopped: true, Culled: end.Culled, CulledFor: end.CulledFor,
			Failed: k.stop.failed}
	}
	l.endLocked(k, end)
	if end.Stopped || refusedUnclaimed(k.pod) {
		l.forgetLocked(k)
	}
	k.supervisor.ChangedLocked()
}

// endLocked records how a kernel has ended.
func (l *Launcher) endLocked(k *kernel, end *endings.Ending) {
	if k.supervisor.HasStatus && end.GPUUse == (api.GPUUse{}) { // as when its node is lost
		end.GPUUse = k.supervisor.Status.GPUUse
	}
	k.end = end
	l.reportStartLocked(k)
	l.recordEndingLocked(k.rec, k.pod, end)
}

// recordEndingLocked keeps how a pod's kernel has ended, and has it written if it is new.
func (l *Launcher) recordEndingLocked(rec podspec.Record, pod *corev1.Pod, end *endings.Ending) {
	noted := *end
	noted.Owner, noted.Spec, noted.Flavor, noted.Pod = rec.Owner, rec.SpecName, rec.Flavor, pod.UID
	if noted.Usage == (launcher.Usage{}) { // else it comes from a peer, which may have seen more of the pod
		noted.Usage = podstatus.UsageOf(pod, end.At)
	}
	l.endings.Record(rec.ID, l.namespaces.OfEnding(pod), noted, refusedUnclaimed(pod))
}

// correctEndingLocked records that a kernel was stopped, if a late event of its removed pod says so. To a gateway that
// was frozen, a list may show that the pod is gone before the watch brings the pod's last versions.
func (l *Launcher) correctEndingLocked(k *kernel, end *endings.Ending) {
	if end == nil || !end.Stopped || k.end != nil && k.end.Stopped {
		return
	}
	l.endLocked(k, end)
	l.forgetLocked(k)
	k.supervisor.ChangedLocked()
}

// forgetLocked forgets a kernel except for its ending.
func (l *Launcher) forgetLocked(k *kernel) {
	l.countGPUsLocked(k)
	if l.kernels[k.id] == k {
		delete(l.kernels, k.id)
		l.readers.addLocked(k, nil)
		l.ordered = nil
	}
	k.supervisor.LeaveLocked()
}

// lingered reports whether a dead kernel has been shown for long enough.
func (l *Launcher) lingered(end *endings.Ending) bool {
	return l.clusterNow().Sub(end.At) >= l.opts.DeadLinger
}

// endOf returns how the kernel of a pod has ended, nil if it has not.
func endOf(pod *corev1.Pod, now time.Time) *endings.Ending {
	if noted, ok := podstatus.ReadEnding(pod, pod.Annotations[podspec.AnnotationEnding]); ok {
		end := endings.FromSupervisor(noted)
		end.Limit = pod.Annotations[podspec.AnnotationLimit]
		return end
	}
	st := podstatus.ContainerStatus(pod, podspec.ContainerSupervisor)
	// else the supervisor is restarted and adopts its kernel
	if st != nil && st.State.Terminated != nil && (podstatus.HasEnded(pod) || st.State.Terminated.ExitCode == 0) {
		if reported, ok := podstatus.ReadEnding(pod, st.State.Terminated.Message); ok {
			end := endings.FromSupervisor(reported)
			// it was ended by the cluster, not by its owner or by itself
			if reported.Reason == api.SignalReason || podstatus.DeletionEnded(pod, reported) {
				end.Reason, end.Stopped = podstatus.DeletionReason(pod, now), false
			}
			return end
		}
	}
	if !podstatus.HasEnded(pod) || podstatus.MayRetry(pod, now) {
		return nil
	}
	end := &endings.Ending{Reason: "its pod has ended", At: now.UTC()}
	if why := podstatus.Explain(pod, nil, now); why.Class == podstatus.ClassDied || why.Class == podstatus.ClassNever {
		end.Reason = why.Text
		if !why.Since.IsZero() {
			end.At = why.Since.UTC()
		}
	}
	return end
}

// Kernel returns one kernel.
func (l *Launcher) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitFirstStatus(ctx, k, l.timing.firstStatus)
	return l.describe(k)
}

// Wait returns the kernel as soon as cond is true for it.
func (l *Launcher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	return l.follower.Wait(ctx, &k.supervisor, func() (launcher.Kernel, error) { return l.describe(k) }, cond)
}

// awaitFirstStatus waits at most limit for the first status of a supervisor that should answer at once.
func (l *Launcher) awaitFirstStatus(ctx context.Context, k *kernel, limit time.Duration) {
	if limit <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	l.follower.Await(ctx, &k.supervisor, k.firstStatusSettledLocked)
}

// firstStatusSettledLocked reports whether the supervisor has answered, or cannot be expected to answer at once.
func (k *kernel) firstStatusSettledLocked() bool {
	if k.supervisor.HasStatus || k.supervisor.Unsupported != "" || k.end != nil {
		return true
	}
	st := podstatus.ContainerStatus(k.pod, podspec.ContainerSupervisor)
	return st == nil || st.State.Running == nil || k.supervisor.TriedLocked()
}

// describe returns the kernel as clients see it.
func (l *Launcher) describe(k *kernel) (launcher.Kernel, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernels[k.id] != k {
		return launcher.Kernel{}, l.endings.Gone(k.id)
	}
	return l.describeLocked(k), nil
}

func (l *Launcher) describeLocked(k *kernel) launcher.Kernel {
	d := launcher.Kernel{
		ID:           k.id,
		SpecName:     k.rec.SpecName,
		Flavor:       k.rec.Flavor,
		Profile:      k.rec.Profile,
		GPUs:         k.rec.GPUs,
		Owner:        k.rec.Owner,
		Groups:       k.rec.Groups,
		Created:      k.rec.Created,
		State:        api.Starting,
		LastActivity: k.rec.Created,
		Notes:        k.notesLocked(l.log),
	}
	if k.end != nil {
		k.supervisor.DescribeLocked(&d, true, k.end.Reason)
		d.Limit = k.end.Limit
		return d
	}
	k.supervisor.DescribeLocked(&d, false, "")
	switch {
	case k.supervisor.Unsupported != "":
	case d.State == api.Dead && d.Reason == api.SignalReason:
		d.Reason = podstatus.DeletionReason(k.pod, l.clusterNow())
	case d.State == api.Starting || d.State == api.Restarting:
		// Kernels that are up need no explanation, and lists have hundreds of them.
		if why := podstatus.Explain(k.pod, l.events.Of(k.pod.UID), l.clusterNow()); why.Text != "" &&
			why.Class != podstatus.ClassDied {
			d.Reason = why.Text
		}
		d.Stale = d.Stale && k.supervisor.HasStatus // without a supervisor there is no newer status
	case d.Stale && d.State != api.Dead:
		if why := l.explainStaleLocked(k); why != "" {
			d.Reason = why
		}
	}
	return d
}

// Dial connects to the kernel's supervisor.
func (l *Launcher) Dial(ctx context.Context, id string) (net.Conn, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	pod, rec, end, hasStatus, unsupported := k.pod, k.rec, k.end, k.supervisor.HasStatus, k.supervisor.Unsupported
	// A kernel that was just adopted has no status yet.
	st := podstatus.ContainerStatus(pod, podspec.ContainerSupervisor)
	answers := hasStatus || st != nil && st.State.Running != nil
	if end == nil && hasStatus && k.supervisor.Status.State == api.Dead {
		// Its supervisor notifies its clients, and ends.
		end = &endings.Ending{Reason: k.supervisor.Status.Reason, At: l.clusterNow().UTC()}
	}
	l.mu.Unlock()
	switch {
	case end != nil:
		return nil, &launcher.GoneError{ID: id, Owner: rec.Owner, Reason: end.Reason, At: end.At}
	case unsupported != "":
		return nil, &launcher.UnsupportedError{Reason: unsupported}
	case !answers:
		return nil, launcher.ErrNoSupervisor
	}
	c, err := l.supervisors.Connect(ctx, pod)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case !hasStatus:
		return nil, launcher.ErrNoSupervisor
	}
	return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}
