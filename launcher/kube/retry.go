package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// retryTime bounds the creation of a second pod, with its secret.
const retryTime = 30 * time.Second

// retryRejected begins to create the second pod of a kernel whose first pod was rejected by its node. Every gateway
// does it after the same pause. One of them creates the pod, since all choose the same name.
func (l *Launcher) retryRejected(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clusterNow()
	if k.retrying || k.stop != nil || k.end != nil || k.removed || !podstatus.MayRetry(k.pod, now) ||
		now.Sub(podstatus.Scheduled(k.pod)) < podstatus.RejectionPause {
		return
	}
	old, rec := k.pod, k.rec
	k.retrying = l.goroutines.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, retryTime)
		defer cancel()
		err := l.createSecondPod(ctx, k, old, rec)
		l.mu.Lock()
		defer l.mu.Unlock()
		k.retrying = false
		var failed *launcher.FailedError
		switch {
		case err == nil, errors.Is(err, errLost): // another gateway has created it
		case errors.As(err, &failed):
			if k.pod.UID == old.UID && k.end == nil && k.stop == nil {
				l.beginStopLocked(k, failed.Reason, "", false)
			}
		default:
			l.log.Warn("the second pod of a kernel whose first was rejected has failed; this is tried again for a minute",
				logkey.Kernel, k.id, logkey.Pod, old.Name, logkey.Err, err)
		}
	})
}

// createSecondPod replaces a rejected pod. The kernel may be stopped meanwhile, here or by another gateway: then the
// second pod is removed too. The Stop may have seen only one of the two pods.
func (l *Launcher) createSecondPod(ctx context.Context, k *kernel, old *corev1.Pod, rec podspec.Record) error {
	pod, chosen, err := l.nextPod(old, rec)
	if err != nil {
		return &launcher.FailedError{Reason: "its node refused it, and no second pod could be made: " + err.Error(),
			Class: launcher.FailedInvalid}
	}
	pod.Annotations[podspec.AnnotationClaimed] = old.Annotations[podspec.AnnotationClaimed]
	pod.Annotations[podspec.AnnotationRejected] = old.Status.Reason
	l.addGate(pod)
	end := endings.Ending{Reason: "it was stopped before a node took it", At: l.clusterNow().UTC(), Stopped: true}
	next, err := l.createPod(ctx, pod, chosen)
	if errors.Is(err, launcher.ErrNotFound) { // a Stop has removed the second pod already
		return l.endPod(old, end, "", false)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	made, stopped := next.pod, next != k || k.stop != nil
	l.mu.Unlock()
	if !stopped {
		asking, cancel := l.apiContext(ctx)
		there, err := l.client.CoreV1().Pods(old.Namespace).Get(asking, old.Name, metav1.GetOptions{})
		cancel()
		// Only a Stop deletes the first pod before this gateway does: see isLeftover.
		stopped = apierrors.IsNotFound(err) || err == nil && (there.UID != old.UID || there.DeletionTimestamp != nil)
	}
	if stopped {
		return errors.Join(l.endPod(old, end, "", false), l.endPod(made, end, "", false))
	}
	l.log.Info("a node has rejected the pod of a kernel, which has a second one now: "+old.Status.Message, logkey.Kernel,
		k.id, logkey.Pod, made.Name)
	return l.deletePod(ctx, old)
}
