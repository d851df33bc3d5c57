package kube

import (
	"context"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Objects of a kernelspec are created after the pod that owns them. So the cluster deletes them with the pod, even if a
// gateway ends at any moment. They are created before the pod's secret, without which its containers do not start. The
// pod says in an annotation which objects it needs, so any gateway can create what is missing. The annotation is
// encrypted: who may read pods reads no Secret there, and who may write pods makes no gateway create an object.

// objectsCipher returns the cipher of a pod's objects. The annotation of one pod is rejected on another one.
func objectsCipher(pod *corev1.Pod, master podspec.MasterKey) (cipher.AEAD, error) {
	return master.Cipher(fmt.Sprintf("ekg objects of kernel %s/%s version 1", pod.Namespace, pod.Name))
}

// sealObjects encrypts the objects of a pod that is to be created.
func (l *Launcher) sealObjects(pod *corev1.Pod) error {
	plain := pod.Annotations[podspec.AnnotationKernelObjects]
	if plain == "" {
		return nil
	}
	c, err := objectsCipher(pod, l.keys[0])
	if err != nil {
		return err
	}
	sealed := c.Seal(nil, nil, []byte(plain), nil)
	pod.Annotations[podspec.AnnotationKernelObjects] = base64.StdEncoding.EncodeToString(sealed)
	return nil
}

// openObjects returns a pod whose objects are not encrypted: a copy, or the pod itself if it has none.
func (l *Launcher) openObjects(pod *corev1.Pod) (*corev1.Pod, error) {
	text := pod.Annotations[podspec.AnnotationKernelObjects]
	if text == "" {
		return pod, nil
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return nil, err
	}
	sealed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errSealed
	}
	key, ok := l.keys.Named(rec.MasterKey)
	if !ok {
		return nil, errSealed
	}
	c, err := objectsCipher(pod, key)
	if err != nil {
		return nil, err
	}
	plain, err := c.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errSealed
	}
	pod = pod.DeepCopy()
	pod.Annotations[podspec.AnnotationKernelObjects] = string(plain)
	return pod, nil
}

// errSealed says that no gateway with this master key has written the objects of a pod.
var errSealed = &launcher.FailedError{Class: launcher.FailedRefused,
	Reason: "this gateway cannot decrypt what its pod says about them"}

// objectsOf returns what the kernelspec of a pod creates with it.
func (l *Launcher) objectsOf(pod *corev1.Pod) ([]podbuild.Object, error) {
	opened, err := l.openObjects(pod)
	if err != nil {
		return nil, err
	}
	objects, err := podbuild.Objects(l.opts.Pods, opened)
	if refused := (*launcher.RefusedError)(nil); errors.As(err, &refused) {
		err = &launcher.FailedError{Class: launcher.FailedRefused, Reason: refused.Reason}
	}
	return objects, err
}

// createObject creates an object of a pod. If an earlier pod of the kernel has it, the pod becomes its owner besides.
func (l *Launcher) createObject(ctx context.Context, pod *corev1.Pod, o podbuild.Object) error {
	objects := l.opts.Cluster.Objects.Resource(o.Resource).Namespace(pod.Namespace)
	_, err := objects.Create(ctx, o.Object, metav1.CreateOptions{FieldManager: cluster.FieldManager})
	if !apierrors.IsAlreadyExists(err) || !o.Kept() { // a Secret's name is that of its pod
		return err
	}
	got, err := objects.Get(ctx, o.Object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errObjectGoes // it has gone since then; the next attempt creates it
	}
	if err != nil {
		return err
	}
	owners := got.GetOwnerReferences()
	has := slices.ContainsFunc(owners, func(r metav1.OwnerReference) bool { return r.UID == pod.UID })
	rec, err := podspec.ReadRecord(pod)
	switch {
	case err != nil:
		return err
	case got.GetDeletionTimestamp() != nil, rec.Generation == 1 && !has: // that of another kernel with this id
		return errObjectGoes
	case !podbuild.IsObjectOf(got, pod):
		return &launcher.FailedError{Class: launcher.FailedRefused,
			Reason: "an object of its name is there, which no gateway has made for this kernel"}
	case has:
		return nil
	}
	return l.adoptObject(ctx, pod, got, o)
}

// errObjectGoes says that an object cannot be created yet.
var errObjectGoes = &launcher.FailedError{Class: launcher.FailedUnavailable,
	Reason: "an object of its name is still being removed"}

// adoptObject makes a pod the owner of an object besides the kernel's earlier pod. The cluster deletes the object when
// the last of its owners is gone. An object that was changed since it was read stays as it is.
func (l *Launcher) adoptObject(ctx context.Context, pod *corev1.Pod, got *unstructured.Unstructured,
	o podbuild.Object) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": got.GetUID(),
		"resourceVersion": got.GetResourceVersion(),
		"ownerReferences": append(got.GetOwnerReferences(), podbuild.OwnerReference(pod))}})
	if err != nil {
		return err
	}
	_, err = l.opts.Cluster.Objects.Resource(o.Resource).Namespace(pod.Namespace).Patch(ctx, got.GetName(),
		types.MergePatchType, patch, metav1.PatchOptions{FieldManager: cluster.FieldManager})
	if apierrors.IsNotFound(err) {
		return errObjectGoes
	}
	return err
}
