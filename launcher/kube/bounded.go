package kube

import (
	"context"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// bounded makes requests about pods, each for a limited time: a frozen API server must not freeze the gateway. It
// records no answer.
type bounded struct {
	client kubernetes.Interface
	ctx    context.Context // the launcher's own life, ended by Close
	limit  time.Duration   // of one request
	log    *slog.Logger
}

// apiContext bounds one request to the API server. It ends with the launcher, too.
func (b *bounded) apiContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	stop := context.AfterFunc(b.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// unavailable returns the error for a request that the cluster did not answer or could not carry out.
func (b *bounded) unavailable(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	b.log.Warn("the cluster does not answer", logkey.What, what, logkey.Err, err)
	return errNoAnswer
}

// listPods lists pods in the cluster.
func (b *bounded) listPods(ctx context.Context, ns, selector string) (*corev1.PodList, error) {
	asking, cancel := b.apiContext(ctx)
	defer cancel()
	pods, err := b.client.CoreV1().Pods(ns).List(asking, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, b.unavailable(ctx, "list of pods in "+ns, err)
	}
	return pods, nil
}

// getPod returns a pod of the cluster. It returns nil if the pod does not exist.
func (b *bounded) getPod(ctx context.Context, ns, name string) (*corev1.Pod, error) {
	pod, err := b.askForPod(ctx, ns, name)
	if err != nil {
		return nil, b.unavailable(ctx, "pod "+ns+"/"+name, err)
	}
	return pod, nil
}

// askForPod is getPod with the client's error, which is not logged.
func (b *bounded) askForPod(ctx context.Context, ns, name string) (*corev1.Pod, error) {
	asking, cancel := b.apiContext(ctx)
	defer cancel()
	pod, err := b.client.CoreV1().Pods(ns).Get(asking, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return pod, nil
}

// deletePod deletes exactly this pod, with its grace period.
func (b *bounded) deletePod(ctx context.Context, pod *corev1.Pod) error {
	asking, cancel := b.apiContext(ctx)
	defer cancel()
	err := b.client.CoreV1().Pods(pod.Namespace).Delete(
		asking, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or another pod has its name
		return nil
	}
	return err
}
