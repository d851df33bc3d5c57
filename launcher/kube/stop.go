package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// stop is the end of a kernel that somebody has asked for, in progress.
type stop struct {
	reason  string
	request string // id of the one that wants it, "" if none does
	done    chan struct{}
	err     error // valid once done is closed
}

// Stop ends a kernel and returns when its pod is gone. It goes on if the caller does not wait.
func (l *Launcher) Stop(ctx context.Context, id, reason string) error {
	k, err := l.find(ctx, id)
	if err != nil {
		return err
	}
	l.mu.Lock()
	s := k.stop
	if s == nil {
		s = l.beginStopLocked(k, reason, launcher.RequestID(ctx), true)
	}
	l.mu.Unlock()
	if s == nil {
		return errClosed
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginStopLocked ends a kernel in the background: on request, so that it exists no more, or because it will never be up, so
// that it is shown as dead with that reason. It returns nil if the launcher is closed. Launcher.mu is held.
func (l *Launcher) beginStopLocked(k *kernel, reason, request string, wanted bool) *stop {
	s := &stop{reason: reason, request: request, done: make(chan struct{})}
	if !l.ownLocked(func() { l.runStop(k, s, wanted) }) {
		return nil
	}
	if wanted {
		k.stop = s
	} else if k.end == nil {
		l.enterEnd(k, &ending{Reason: reason, At: l.timing.now().UTC()})
		k.touch()
	}
	return s
}

func (l *Launcher) runStop(k *kernel, s *stop, wanted bool) {
	defer close(s.done)
	l.mu.Lock()
	pod, alive, removed := k.pod, k.end == nil || !wanted, k.removed
	end := ending{Reason: s.reason, At: l.timing.now().UTC(), Stopped: wanted}
	if k.end != nil && k.end.Culled {
		end.Reason, end.At, end.Culled, end.CulledFor = k.end.Reason, k.end.At, true, k.end.CulledFor // why it ended is still the same
		s.reason = end.Reason
	}
	l.mu.Unlock()
	if !removed {
		s.err = l.endPod(pod, end, s.request, alive)
	}
	if s.err == nil && !removed {
		s.err = l.awaitRemoval(k, pod)
	}
	if s.err == nil {
		l.tellPeers(l.ctx, k.id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.stop == s {
		k.stop = nil
	}
	if s.err != nil {
		l.log.Error("kernel could not be stopped", "kernel", k.id, "err", s.err)
		return
	}
	if wanted && k.pod.UID == pod.UID {
		if k.end == nil || !k.end.Stopped {
			l.enterEnd(k, &end)
		}
		l.enterGone(k)
		k.touch()
	}
}

// endPod asks the supervisor to end its kernel and tell its clients why, and deletes the pod. Where the supervisor cannot do
// that, the pod is marked first, so that every gateway knows what the deletion means.
func (l *Launcher) endPod(pod *corev1.Pod, end ending, request string, alive bool) error {
	if !alive || !l.endPolitely(pod, end.Reason, request) {
		if err := l.annotate(l.ctx, pod, "", endingAnnotation(pod, end)); err != nil && !apierrors.IsNotFound(err) {
			l.log.Warn("a pod could not be marked as ended", "pod", pod.Name, "err", err)
		}
	}
	if err := l.deletePod(l.ctx, pod); err != nil {
		return fmt.Errorf("%w: its pod cannot be deleted: %s", launcher.ErrUnavailable, errorReason(err).text)
	}
	return nil
}

// endingAnnotation marks a pod whose kernel is ended by a gateway.
func endingAnnotation(pod *corev1.Pod, end ending) map[string]string {
	text, err := json.Marshal(supervisor.Ending{KernelID: pod.Labels[LabelKernel], Reason: end.Reason, At: end.At, Stopped: end.Stopped, Culled: end.Culled, CulledFor: end.CulledFor})
	if err != nil {
		panic("kube: the time of an end cannot be written: " + err.Error()) // it comes from this machine's clock
	}
	return map[string]string{annotationEnding: string(text)}
}

// endPolitely has the supervisor end its kernel. It reports whether it did.
func (l *Launcher) endPolitely(pod *corev1.Pod, reason, request string) bool {
	if st := containerStatus(pod, containerSupervisor); pod.DeletionTimestamp != nil || st == nil || st.State.Running == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.stop)
	defer cancel()
	client, err := l.supervisor(pod)
	if err == nil {
		client.Request = request
		err = client.Stop(ctx, reason)
	}
	if err != nil {
		l.log.Info("a supervisor was not asked to end its kernel; its pod is deleted", "pod", pod.Name, "err", err)
	}
	return err == nil
}

// annotate changes annotations of exactly this pod and enters the result; with a version only if the pod still has that.
func (l *Launcher) annotate(ctx context.Context, pod *corev1.Pod, version string, annotations map[string]string) error {
	metadata := map[string]any{"uid": pod.UID, "annotations": annotations}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	asking, cancel := l.asking(ctx)
	defer cancel()
	changed, err := l.client.CoreV1().Pods(pod.Namespace).Patch(asking, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		l.enterPod(changed)
	}
	return err
}

// awaitRemoval waits until a deleted pod is gone. What the informer says is not waited for alone: its watch may be dead.
func (l *Launcher) awaitRemoval(k *kernel, pod *corev1.Pod) error {
	deadline := l.timing.now().Add(l.timing.removal)
	for l.timing.now().Before(deadline) {
		ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
		gone := l.await(ctx, k, func() bool { return k.removed || k.pod.UID != pod.UID })
		cancel()
		if gone {
			return nil
		}
		if l.ctx.Err() != nil {
			return errClosed
		}
		asking, cancel := l.asking(l.ctx)
		got, err := l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		cancel()
		if apierrors.IsNotFound(err) || err == nil && got.UID != pod.UID {
			l.enterRemoved(pod)
			return nil
		}
	}
	return fmt.Errorf("%w: its pod is still being removed", launcher.ErrUnavailable)
}
