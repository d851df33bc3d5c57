package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

const quotaPause = 100 * time.Millisecond // between two attempts in a namespace whose quota is not counted yet

// watchOf returns the entry of watched that covers a namespace.
func (l *Launcher) watchOf(ns string) string {
	if l.opts.Pods.NamespacePerOwner() {
		return metav1.NamespaceAll
	}
	return ns
}

// denial says in a sentence why a namespace cannot have kernels; "" if it can.
func (l *Launcher) denial(ns string) string { return l.access.denial(l.watchOf(ns)) }

// serves reports whether a pod lies where this gateway's kernels do.
func (l *Launcher) serves(pod *corev1.Pod) bool {
	return slices.Contains(l.homeSpaces, pod.Namespace) || l.opts.Pods.InNamespaceOfOwner(pod)
}

// createNamespace makes the namespace of a pod's owner with all of its objects, unless that was done. A namespace that
// this gateway and its replicas have not made for this owner is never used. Namespaces stay.
func (l *Launcher) createNamespace(ctx context.Context, pod *corev1.Pod) error {
	made, err := podspec.NamespaceFor(l.opts.Pods, pod)
	if err != nil || made == nil {
		return err
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	err = l.ensureNamespace(asking, made)
	switch {
	case err == nil, errors.As(err, new(*launcher.FailedError)):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case !isAnswer(err):
		return l.unavailable(ctx, "namespace "+pod.Namespace, err)
	}
	return namespaceFailed(pod.Namespace, podstatus.ExplainError(err).Text, podstatus.ErrorFailure(err))
}

func namespaceFailed(name, why string, class launcher.Failure) error {
	return &launcher.FailedError{Class: class,
		Reason: fmt.Sprintf("the namespace %s of its owner cannot be used: %s", name, why)}
}

// ensureNamespace creates what is missing. The namespace says last that all of it was made: a gateway that ends before
// leaves the rest to the next start.
func (l *Launcher) ensureNamespace(ctx context.Context, made *podspec.MadeNamespace) error {
	namespaces, name := l.client.CoreV1().Namespaces(), made.Namespace.Name
	got, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if got, err = namespaces.Create(ctx, made.Namespace, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			got, err = namespaces.Get(ctx, name, metav1.GetOptions{}) // another replica was faster
		} else if err == nil {
			l.log.Info("a namespace was created", logkey.Namespace, name)
		}
	}
	owner := made.Namespace.Annotations[podspec.AnnotationOwner]
	switch {
	case err != nil:
		return err
	case got.DeletionTimestamp != nil:
		return namespaceFailed(name, "it is being deleted", launcher.FailedRefused)
	case got.Labels[podspec.LabelKernelsOf] != l.opts.Pods.Namespace:
		return namespaceFailed(name, "it exists, and this gateway has not made it", launcher.FailedRefused)
	case got.Annotations[podspec.AnnotationOwner] != owner:
		return namespaceFailed(name, "it belongs to another user", launcher.FailedRefused)
	case got.Annotations[podspec.AnnotationContent] == made.Content:
		return nil
	}
	for _, o := range made.Objects {
		objects := l.opts.Cluster.objects.Resource(o.Resource).Namespace(o.Object.GetNamespace())
		if err := apply(ctx, objects, o.Object); err != nil {
			return err
		}
	}
	all := &unstructured.Unstructured{}
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	all.SetName(name)
	all.SetLabels(made.Namespace.Labels)
	all.SetAnnotations(map[string]string{podspec.AnnotationOwner: owner, podspec.AnnotationContent: made.Content})
	return apply(ctx, l.opts.Cluster.objects.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")), all)
}

// apply creates an object, or changes it to what the policy says. What an earlier policy said, and this one does not,
// is removed. What others have added stays.
func apply(ctx context.Context, objects dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	send := func() (*unstructured.Unstructured, error) {
		return objects.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	}
	for {
		got, err := send()
		for podstatus.IsUncounted(err) && sleep.For(ctx, quotaPause) == nil {
			got, err = send()
		}
		if err != nil {
			return err
		}
		// Earlier releases, and the creation of a namespace, have written the object without applying it. What they have
		// written counts as applied from now on, so that it can be removed.
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(got, sets.New(fieldManager), fieldManager)
		if err != nil || patch == nil {
			return err
		}
		_, err = objects.Patch(ctx, object.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{})
		switch {
		case err == nil:
			_, err = send()
			return err
		case !apierrors.IsConflict(err) || sleep.For(ctx, quotaPause) != nil: // another one has just changed it
			return err
		}
	}
}

// checkOnly returns launcher.ErrConflict if another namespace has a pod of the same kernel. The names of pods make ids
// unique in one namespace only. If two starts use one id at the same time, one or both are refused. An id that a
// gateway has made is random, so it is not checked.
func (l *Launcher) checkOnly(ctx context.Context, pod *corev1.Pod, req launcher.Request) error {
	if req.AnyID || !l.opts.Pods.NamespacePerOwner() {
		return nil
	}
	pods, err := l.listPods(ctx, metav1.NamespaceAll, podspec.LabelKernel+"="+req.ID)
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if other := &pods.Items[i]; other.Namespace != pod.Namespace && l.serves(other) {
			return launcher.ErrConflict
		}
	}
	return nil
}

// sendPod creates a pod in the cluster. The cluster admits no pod to a new namespace until it has counted its quota.
func (l *Launcher) sendPod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	for {
		made, err := l.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if !podstatus.IsUncounted(err) || sleep.For(ctx, quotaPause) != nil {
			return made, err
		}
	}
}
