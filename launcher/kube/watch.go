package kube

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	updateTime = 5 * time.Second // for an update to be sent to a supervisor
	proofTime  = 3 * time.Second // for the cluster to prove that a list of kernels is fresh
	proofPause = 2 * time.Second // after a failed proof, before the next one
)

// handlePod enters what an informer or a list reports of a pod.
func (l *Launcher) handlePod(pod *corev1.Pod, enter func(*corev1.Pod)) {
	enter(pod)
	l.actOnPod(pod)
	if l.reaper.active.Load() {
		l.warm.Notice(pod)
	}
}

// handleEvent keeps an event of a kernel's pod.
func (l *Launcher) handleEvent(e *corev1.Event) {
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
	if !k.supervisor.Streaming {
		return
	}
	if said, news := k.told.news(pod, why, pull, l.clusterNow()); news {
		k.told.queue(pod, said, func() bool { return l.goroutines.Go(func() { l.sendUpdates(k) }) })
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

// sendUpdates sends the queued updates.
func (l *Launcher) sendUpdates(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ; len(k.told.unsent) > 0; k.told.unsent = k.told.unsent[1:] {
		n := k.told.unsent[0]
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
			k.told.pull = time.Time{} // the next update has it again
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
	if pod, restarted := f.enter(enterLocked); restarted {
		f.l.actOnPod(pod)
	}
}

// enter records a status. It returns the pod of a supervisor that was restarted. It unlocks also if that panics: a
// follower's goroutine survives that.
func (f followed) enter(enterLocked func() (follow.Supervisor, bool)) (pod *corev1.Pod, restarted bool) {
	l, k := f.l, f.k
	l.mu.Lock()
	defer l.mu.Unlock()
	before, ok := enterLocked()
	if !ok {
		return nil, false
	}
	l.reportStartLocked(k)
	if k.supervisor.Status.Seat != nil {
		l.seats.Changed()
	}
	if !before.Streaming {
		k.told.reason, k.told.pull = podstatus.Reason{}, time.Time{} // a restarted supervisor has received nothing
	}
	return k.pod, !before.Streaming
}

// catchUp lists pods while a watch has failed: kernels that start would stay unknown until the watch works again.
func (l *Launcher) catchUp(ctx context.Context) {
	if !l.watches.failing() {
		return
	}
	if err := l.proveFresh(ctx); err != nil {
		l.log.Debug("the cluster's pods could not be listed", logkey.Err, err)
	}
}
