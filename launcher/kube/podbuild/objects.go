package podbuild

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// storeObjects moves the objects of metadata.ekg to the pod's AnnotationKernelObjects, and returns the rest.
func storeObjects(pod *corev1.Pod, ekg json.RawMessage) (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	if len(ekg) == 0 || !strings.Contains(string(ekg), `"`+wish.ObjectsKey+`"`) {
		return ekg, nil
	}
	if err := json.Unmarshal(ekg, &keys); err != nil {
		return nil, err
	}
	if objects := keys[wish.ObjectsKey]; len(objects) > 0 && string(objects) != "[]" {
		pod.Annotations[podspec.AnnotationKernelObjects] = string(objects)
	}
	delete(keys, wish.ObjectsKey)
	return json.Marshal(keys)
}

// addObjects adds the objects of a pod to its stored request.
func addObjects(pod *corev1.Pod, stored *storedRequest) error {
	objects := pod.Annotations[podspec.AnnotationKernelObjects]
	if objects == "" {
		return nil
	}
	keys := map[string]json.RawMessage{}
	if len(stored.Extension) > 0 {
		if err := json.Unmarshal(stored.Extension, &keys); err != nil {
			return fmt.Errorf("annotation %s: %w", annotationRequest, err)
		}
	}
	if !json.Valid([]byte(objects)) {
		return fmt.Errorf("annotation %s is not JSON", podspec.AnnotationKernelObjects)
	}
	keys[wish.ObjectsKey] = json.RawMessage(objects)
	var err error
	stored.Extension, err = json.Marshal(keys)
	return err
}

// sealedLength returns how long a text of n bytes is when a gateway has encrypted it.
func sealedLength(n int) int {
	const overhead = 28 // nonce and tag of AES-GCM
	if n == 0 {
		return 0
	}
	return base64.StdEncoding.EncodedLen(n + overhead)
}

// Object is an object that is created with a kernel's pod. The pod owns it, so the cluster deletes both.
type Object struct {
	Resource schema.GroupVersionResource
	Kind     string
	Name     string // in the kernelspec; Object has the name in the cluster
	Object   *unstructured.Unstructured
}

// String names the object for people: its kind, and its name in the kernelspec.
func (o Object) String() string { return o.Kind + " " + o.Name }

// Kept reports whether the kernel's next pod gets the same object. Else the next pod gets another one.
func (o Object) Kept() bool { return o.Kind != wish.KindSecret }

// Objects returns what the kernelspec of a pod creates with it. The pod exists, and its AnnotationKernelObjects is not
// encrypted. The error is a *launcher.RefusedError if the present policy refuses the kernelspec.
func Objects(o Options, pod *corev1.Pod) ([]Object, error) {
	if pod.Annotations[podspec.AnnotationKernelObjects] == "" {
		return nil, nil
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return nil, err
	}
	req, err := ReadRequest(pod, rec)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ext, problems := o.Policy.Read(req.Spec, req.Owner, o.KernelImage)
	if len(problems) > 0 {
		return nil, wish.Refused("kernelspec %s: %s: %s", req.Spec.Name, problems[0].Key, problems[0].Message)
	}
	ext.FillObjects(rec, pod.Namespace)
	var all []Object
	for i := range ext.Objects {
		made, err := objectOf(&ext.Objects[i], o.Policy, pod, rec)
		if err != nil {
			return nil, fmt.Errorf("kernelspec %s: %s: %w", req.Spec.Name, wish.ObjectPath(i), err)
		}
		all = append(all, made)
	}
	return all, nil
}

// objectOf returns an object of the kernelspec as it is created with a pod.
func objectOf(o *wish.SpecObject, policy *wish.Policy, pod *corev1.Pod, rec podspec.Record) (Object, error) {
	meta := o.Meta()
	name := meta.Name
	labels := map[string]string{podspec.LabelObject: name}
	maps.Copy(labels, meta.Labels)
	for key, value := range pod.Labels {
		_, cost := policy.Labels[key]
		if cost || slices.Contains([]string{podspec.LabelKernel, podspec.LabelManagedBy, podspec.LabelOwner,
			podspec.LabelSpec, podspec.LabelFlavor}, key) {
			labels[key] = value
		}
	}
	annotations := maps.Clone(meta.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if rec.Owner != "" {
		annotations[podspec.AnnotationOwner] = rec.Owner
	}
	*meta = metav1.ObjectMeta{Namespace: pod.Namespace, Name: o.RealName(rec), Labels: labels,
		Annotations: annotations, OwnerReferences: []metav1.OwnerReference{OwnerReference(pod)}}
	if s, ok := o.Value.(*corev1.Service); ok {
		s.Spec.Selector = map[string]string{podspec.LabelKernel: rec.ID, podspec.LabelManagedBy: podspec.Manager}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.Value)
	if err != nil {
		return Object{}, err
	}
	delete(content, "status")
	made := &unstructured.Unstructured{Object: content}
	made.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(o.Kind))
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return Object{Resource: o.Resource(), Kind: o.Kind, Name: name, Object: made}, nil
}

// OwnerReference says that a pod, which exists, owns an object. A kernel's next pod owns it besides.
func OwnerReference(pod *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
}

// IsObjectOf reports whether an existing object was made for a pod's kernel. Such an object need not be created again.
func IsObjectOf(got metav1.Object, pod *corev1.Pod) bool {
	id := pod.Labels[podspec.LabelKernel]
	return got.GetLabels()[podspec.LabelKernel] == id && launcher.ValidID(id) &&
		got.GetLabels()[podspec.LabelManagedBy] == podspec.Manager &&
		got.GetAnnotations()[podspec.AnnotationOwner] == pod.Annotations[podspec.AnnotationOwner]
}
