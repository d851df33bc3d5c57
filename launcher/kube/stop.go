package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// stop is a Stop in progress.
type stop struct {
	reason  string
	failed  bool   // the kernel had died before
	request string // id of the request that caused it, or ""
	done    chan struct{}
	err     error // valid once done is closed
}

// Stop ends a kernel and returns when its pod is gone. It goes on if its caller does not wait.
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

// beginStopLocked ends a kernel in the background. wanted says that the end was requested: then the kernel is gone
// afterwards. Otherwise the kernel will never be up, and is shown as dead with the reason. It returns nil if the
// launcher is closed.
func (l *Launcher) beginStopLocked(k *kernel, reason, request string, wanted bool) *stop {
	s := &stop{reason: reason, request: request, done: make(chan struct{})}
	if !l.goroutines.Go(func() { l.runStop(k, s, wanted) }) {
		return nil
	}
	if wanted {
		k.stop = s
	} else if k.end == nil {
		l.endLocked(k, &endings.Ending{Reason: reason, At: l.clusterNow().UTC()})
		k.supervisor.ChangedLocked()
	}
	return s
}

func (l *Launcher) runStop(k *kernel, s *stop, wanted bool) {
	defer close(s.done)
	l.mu.Lock()
	pod, alive, removed, unheard := k.pod, k.end == nil || !wanted, k.removed, k.unheard
	end := endings.Ending{Reason: s.reason, At: l.clusterNow().UTC(), Stopped: wanted}
	if before := k.end; before != nil && before.Cause().Unrequested() {
		// the reason of its end stays
		end.Reason, end.At, end.Culled, end.CulledFor = before.Reason, before.At, before.Culled, before.CulledFor
		end.Failed = wanted && before.Cause().Died()
		s.reason, s.failed = end.Reason, end.Failed
	}
	l.mu.Unlock()
	if !removed {
		s.err = l.endPod(pod, end, s.request, alive)
	}
	if s.err == nil && !removed && !unheard {
		s.err = l.awaitRemoval(k, pod)
	}
	if s.err == nil {
		l.replicas.Notify(l.ctx, k.id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.stop == s {
		k.stop = nil
	}
	if s.err != nil {
		l.log.Error("kernel could not be stopped", logkey.Kernel, k.id, logkey.Err, s.err)
		return
	}
	if wanted && k.pod.UID == pod.UID {
		if k.end == nil || !k.end.Stopped {
			l.endLocked(k, &end)
		}
		l.forgetLocked(k)
		k.supervisor.ChangedLocked()
	}
}

// endPod makes the supervisor end its kernel, which tells the clients why, and deletes the pod. If the supervisor
// cannot do that, the pod is marked first, so that every gateway knows why it is deleted. A pod that is to be gone is
// not deleted while the cluster does not answer the request for the mark.
func (l *Launcher) endPod(pod *corev1.Pod, end endings.Ending, request string, alive bool) error {
	if !alive || !l.stopSupervisor(pod, end.Reason, request) {
		err := l.annotate(l.ctx, pod, "", endingAnnotation(pod, end))
		switch {
		case err == nil, apierrors.IsNotFound(err):
		case end.Stopped && !cluster.Decided(err):
			// Without the mark, the other gateways would show the kernel as dead.
			return fmt.Errorf("%w: its pod cannot be marked as ended: %s", launcher.ErrUnavailable,
				podstatus.ExplainError(err).Text)
		default:
			l.log.Warn("a pod could not be marked as ended", logkey.Pod, pod.Name, logkey.Err, err)
		}
	}
	if err := l.deletePod(l.ctx, pod); err != nil {
		return fmt.Errorf("%w: its pod cannot be deleted: %s", launcher.ErrUnavailable, podstatus.ExplainError(err).Text)
	}
	return nil
}

// endUnsupported ends a pod whose supervisor this gateway cannot speak to, so that the next one can be created. It does
// nothing for another pod.
func (l *Launcher) endUnsupported(k *kernel) error {
	l.mu.Lock()
	pod, unsupported, ended := k.pod, k.supervisor.Unsupported, k.end != nil
	l.mu.Unlock()
	if unsupported == "" || ended {
		return nil
	}
	l.log.Info("kernel is ended for a restart", logkey.Kernel, k.id, logkey.Pod, pod.Name, logkey.Reason, unsupported)
	end := endings.Ending{Reason: "it was ended for a restart: " + unsupported, At: l.clusterNow().UTC()}
	if err := l.endPod(pod, end, "", false); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.end == nil && k.pod.UID == pod.UID {
		l.endLocked(k, &end)
		k.supervisor.ChangedLocked()
	}
	return nil
}

// endingAnnotation marks a pod whose kernel is ended by a gateway.
func endingAnnotation(pod *corev1.Pod, end endings.Ending) map[string]string {
	text, err := json.Marshal(api.Ending{
		KernelID:  pod.Labels[podspec.LabelKernel],
		Reason:    end.Reason,
		At:        end.At,
		Stopped:   end.Stopped,
		Culled:    end.Culled,
		CulledFor: end.CulledFor,
		Failed:    end.Failed,
	})
	if err != nil {
		panic("kube: the time of an ending cannot be encoded: " + err.Error()) // it comes from this machine's clock
	}
	return map[string]string{podspec.AnnotationEnding: string(text)}
}

// stopSupervisor makes the supervisor end its kernel. It reports whether that succeeded.
func (l *Launcher) stopSupervisor(pod *corev1.Pod, reason, request string) bool {
	if st := podstatus.ContainerStatus(pod, podspec.ContainerSupervisor); pod.DeletionTimestamp != nil || st == nil ||
		st.State.Running == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.stop)
	defer cancel()
	client, err := l.supervisors.Client(pod)
	if err == nil {
		client.Request = request
		err = client.Stop(ctx, reason)
	}
	if err != nil {
		l.log.Info("a supervisor did not end its kernel; its pod is deleted", logkey.Pod, pod.Name, logkey.Err, err)
	}
	return err == nil
}

// annotate changes annotations of exactly this pod and records the result. If a version is given, it fails if the pod
// has another version.
func (l *Launcher) annotate(ctx context.Context, pod *corev1.Pod, version string, annotations map[string]string) error {
	metadata := map[string]any{"uid": pod.UID, "annotations": annotations}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return admissionCluster{l}.Patch(ctx, pod, patch)
}

// awaitRemoval waits until a deleted pod is gone. It also asks the cluster, because the informer's watch may have
// failed.
func (l *Launcher) awaitRemoval(k *kernel, pod *corev1.Pod) error {
	deadline := l.timing.now().Add(l.timing.removal)
	for l.timing.now().Before(deadline) {
		ctx, cancel := context.WithTimeout(l.ctx, 2*time.Second)
		gone := l.follower.Await(ctx, &k.supervisor, func() bool { return k.removed || k.pod.UID != pod.UID })
		cancel()
		if gone {
			return nil
		}
		if l.ctx.Err() != nil {
			return errClosed
		}
		if got, err := l.askForPod(l.ctx, pod.Namespace, pod.Name); err == nil && (got == nil || got.UID != pod.UID) {
			l.podRemoved(pod)
			return nil
		}
	}
	return fmt.Errorf("%w: its pod is still being removed", launcher.ErrUnavailable)
}
