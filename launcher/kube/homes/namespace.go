package homes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// makeNamespace makes the namespace of a pod's owner with all of its objects, unless that was done. A namespace that
// this gateway and its replicas have not made for this owner is never used. Namespaces stay.
func (h *Homes) makeNamespace(ctx context.Context, pod *corev1.Pod) error {
	made, err := podbuild.NamespaceFor(h.o.Pods, pod)
	if err != nil || made == nil {
		return err
	}
	asking, cancel := h.o.Bound(ctx)
	defer cancel()
	err = h.ensureNamespace(asking, made)
	if err == nil || errors.As(err, new(*launcher.FailedError)) {
		return err
	}
	return h.explainOwners(ctx, "namespace "+pod.Namespace, err, func(why string, class launcher.Failure) error {
		return namespaceFailed(pod.Namespace, why, class)
	})
}

func namespaceFailed(name, why string, class launcher.Failure) error {
	return &launcher.FailedError{Class: class,
		Reason: fmt.Sprintf("the namespace %s of its owner cannot be used: %s", name, why)}
}

// ensureNamespace creates what is missing, and removes objects that the policy no longer has. The namespace says last
// that all of it was made: a gateway that ends before leaves the rest to the next start. If the namespace is deleted or
// changed meanwhile, all of it is done again.
func (h *Homes) ensureNamespace(ctx context.Context, made *podbuild.MadeNamespace) error {
	for {
		err := h.ensureUnchanged(ctx, made)
		if !apierrors.IsConflict(err) || goroutines.Sleep(ctx, cluster.QuotaPause) != nil {
			return err
		}
	}
}

// ensureUnchanged does the work of ensureNamespace once. The error is a conflict if the namespace is another one by
// now, or was changed.
func (h *Homes) ensureUnchanged(ctx context.Context, made *podbuild.MadeNamespace) error {
	namespaces, name := h.o.Cluster.Client.CoreV1().Namespaces(), made.Namespace.Name
	got, err := namespaces.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if got, err = namespaces.Create(ctx, made.Namespace, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			got, err = namespaces.Get(ctx, name, metav1.GetOptions{}) // another replica was faster
		} else if err == nil {
			h.o.Log.Info("a namespace was created", logkey.Namespace, name)
		}
	}
	switch {
	case err != nil:
		return err
	case got.DeletionTimestamp != nil:
		return namespaceFailed(name, "it is being deleted", launcher.FailedRefused)
	case got.Labels[podbuild.LabelKernelsOf] != h.o.Pods.Namespace:
		return namespaceFailed(name, "it exists, and this gateway has not made it", launcher.FailedRefused)
	case got.Annotations[podspec.AnnotationOwner] != made.Namespace.Annotations[podspec.AnnotationOwner]:
		return namespaceFailed(name, "it belongs to another user", launcher.FailedRefused)
	case got.Annotations[podbuild.AnnotationContent] == made.Content:
		return nil
	}
	now, before := made.Refs(), podbuild.ObjectsOf(got)
	missing := func(all []string) func(string) bool {
		return func(ref string) bool { return !slices.Contains(all, ref) }
	}
	written := writtenNamespace(got, made)
	if slices.ContainsFunc(now, missing(before)) { // an object is named before it is made, so none is forgotten
		if err := h.writeNamespace(ctx, written, "", slices.Concat(before, now)); err != nil {
			return err
		}
	}
	for _, o := range made.Objects {
		objects := h.o.Cluster.Objects.Resource(o.Resource).Namespace(o.Object.GetNamespace())
		if err := apply(ctx, objects, o.Object); err != nil {
			return err
		}
	}
	for _, ref := range before {
		if !missing(now)(ref) {
			continue
		}
		switch err := h.removeObject(ctx, name, ref); {
		case apierrors.IsForbidden(err): // the operator has not given this right
			now = append(now, ref) // a later change of the policy tries it again
			h.o.Log.Warn("an object that the policy no longer has could not be removed", logkey.Namespace, name,
				logkey.Object, ref, logkey.Err, err)
		case err != nil:
			return err
		}
	}
	return h.writeNamespace(ctx, written, made.Content, now)
}

// writtenNamespace is what gateways write of a namespace that exists. Without its UID, a namespace that was deleted
// meanwhile would be created without its objects. With its version, two gateways cannot overwrite each other's list of
// objects.
func writtenNamespace(got *corev1.Namespace, made *podbuild.MadeNamespace) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	o.SetName(got.Name)
	o.SetUID(got.UID)
	o.SetResourceVersion(got.ResourceVersion)
	o.SetLabels(made.Namespace.Labels)
	o.SetAnnotations(map[string]string{podspec.AnnotationOwner: made.Namespace.Annotations[podspec.AnnotationOwner]})
	return o
}

// writeNamespace writes which objects a namespace may have, and which content it has; "" while it is incomplete.
func (h *Homes) writeNamespace(
	ctx context.Context, written *unstructured.Unstructured, content string, refs []string,
) error {
	annotations := written.GetAnnotations()
	annotations[podbuild.AnnotationObjects] = podbuild.JoinRefs(refs)
	if content != "" {
		annotations[podbuild.AnnotationContent] = content
	}
	written.SetAnnotations(annotations)
	return apply(ctx, h.o.Cluster.Objects.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")), written)
}

// removeObject removes an object that gateways have made in a namespace. It leaves an object of that name that has
// another author by now.
func (h *Homes) removeObject(ctx context.Context, ns, ref string) error {
	resource, name, ok := wish.ObjectOf(ref)
	if !ok {
		return nil // a gateway would not have made it
	}
	objects := h.o.Cluster.Objects.Resource(resource).Namespace(ns)
	for {
		got, err := objects.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case !isMade(got):
			h.o.Log.Info("an object that the policy no longer has stays: it has another author", logkey.Namespace, ns,
				logkey.Object, ref)
			return nil
		}
		uid, version := got.GetUID(), got.GetResourceVersion()
		err = objects.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid,
			ResourceVersion: &version}})
		switch {
		case err == nil:
			h.o.Log.Info("an object that the policy no longer has was removed", logkey.Namespace, ns, logkey.Object, ref)
			return nil
		case apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || goroutines.Sleep(ctx, cluster.QuotaPause) != nil: // it was just changed
			return err
		}
	}
}

// isMade reports whether gateways have made an object with a namespace: they have applied it, it has their label, and
// no other object owns it.
func isMade(o *unstructured.Unstructured) bool {
	applied := func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == cluster.FieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == ""
	}
	return o.GetLabels()[podspec.LabelManagedBy] == podspec.Manager && len(o.GetOwnerReferences()) == 0 &&
		slices.ContainsFunc(o.GetManagedFields(), applied)
}

// apply creates an object, or changes it to what the policy says. What an earlier policy said, and this one does not,
// is removed. What others have added stays. If the object has a version, that is a precondition, and becomes the new
// one.
func apply(ctx context.Context, objects dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	send := func() (*unstructured.Unstructured, error) {
		got, err := objects.Apply(ctx, object.GetName(), object,
			metav1.ApplyOptions{FieldManager: cluster.FieldManager, Force: true})
		if err == nil && object.GetResourceVersion() != "" {
			object.SetResourceVersion(got.GetResourceVersion())
		}
		return got, err
	}
	for {
		got, err := cluster.UntilCounted(ctx, send)
		if err != nil {
			return err
		}
		// Earlier releases, and the creation of a namespace, have written the object without applying it. What they have
		// written counts as applied from now on, so that it can be removed.
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(got, sets.New(cluster.FieldManager), cluster.FieldManager)
		if err != nil || patch == nil {
			return err
		}
		upgraded, err := objects.Patch(ctx, object.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{})
		switch {
		case err == nil:
			if object.GetResourceVersion() != "" {
				object.SetResourceVersion(upgraded.GetResourceVersion())
			}
			_, err = send()
			return err
		case !apierrors.IsConflict(err) || goroutines.Sleep(ctx, cluster.QuotaPause) != nil: // it was just changed
			return err
		}
	}
}
