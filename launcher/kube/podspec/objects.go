package podspec

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// AnnotationKernelObjects of a kernel's pod has metadata.ekg.objects of its kernelspec. Build writes it as JSON. A
// gateway encrypts it before it creates the pod: who may read pods must not read Secrets.
const AnnotationKernelObjects = Domain + "kernel-objects"

// LabelObject is on each object that was created with a kernel's pod. Its value is the name in the kernelspec.
const LabelObject = Domain + "object"

// Kinds of objects that a kernelspec can create.
const (
	kindClaim     = "PersistentVolumeClaim"
	kindConfigMap = "ConfigMap"
	kindSecret    = "Secret"
	kindService   = "Service"
)

const (
	maxObjects    = 16
	maxObjectName = 22 // bytes: a Service's name has at most 63, of which "ekg-", the kernel's id and '-' have 41
	kernelIDMark  = "{kernel_id}"
	objectsKey    = "objects"
)

// objectType is a kind of objects that a kernelspec can create.
type objectType struct {
	resource string
	empty    func() runtime.Object
}

var objectTypes = map[string]objectType{
	kindClaim:     {"persistentvolumeclaims", func() runtime.Object { return &corev1.PersistentVolumeClaim{} }},
	kindConfigMap: {"configmaps", func() runtime.Object { return &corev1.ConfigMap{} }},
	kindSecret:    {"secrets", func() runtime.Object { return &corev1.Secret{} }},
	kindService:   {"services", func() runtime.Object { return &corev1.Service{} }},
}

func kindsOfObjects() []string { return slices.Sorted(maps.Keys(objectTypes)) }

// specObject is an object of metadata.ekg.objects, as the kernelspec has it.
type specObject struct {
	kind  string
	value runtime.Object // a pointer to a type of corev1
}

// Choose implements kernelspecs.Chooser.
func (o *specObject) Choose(text func(key string) string) (any, error) {
	kind, version := text("kind"), text("apiVersion")
	of, ok := objectTypes[kind]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is not a kind that is created with a pod; valid: %s", quoted(kind),
			strings.Join(kindsOfObjects(), ", "))
	case version != "v1":
		return nil, fmt.Errorf("%s has the apiVersion v1, not %s", kind, quoted(version))
	}
	o.kind, o.value = kind, of.empty()
	return o.value, nil
}

// meta returns the object's metadata.
func (o *specObject) meta() *metav1.ObjectMeta {
	switch v := o.value.(type) {
	case *corev1.PersistentVolumeClaim:
		return &v.ObjectMeta
	case *corev1.ConfigMap:
		return &v.ObjectMeta
	case *corev1.Secret:
		return &v.ObjectMeta
	case *corev1.Service:
		return &v.ObjectMeta
	}
	return &metav1.ObjectMeta{} // Choose makes no other
}

// objectName is an object of a kernelspec: its kind, and its name in the kernelspec.
type objectName struct{ kind, name string }

// objectPath returns the key of an object in the kernelspec.
func objectPath(i int) string { return fmt.Sprintf("%s[%d]", shortPath(objectsKey), i) }

// isObjectText reports whether the text at a key is one of an object that names nothing, and may be long.
func isObjectText(key string) bool {
	return strings.HasPrefix(key, shortPath(objectsKey)) && !namesObject(key)
}

// objectTexts calls do with each text of the kernelspec's objects in which a mark has a meaning, and with its key. The
// text is set to the result.
func (e *extension) objectTexts(do func(key, text string) string) {
	for i := range e.Objects {
		at := objectPath(i)
		fixed := []string{at + ".kind", at + ".apiVersion", at + ".metadata.name"}
		eachText(reflect.ValueOf(e.Objects[i].value).Elem(), at, func(key, text string) string {
			if slices.Contains(fixed, key) {
				return text
			}
			return do(key, text)
		})
	}
}

// envTexts calls do with the value of each variable of the kernelspec's containers, and with its key. The value is set
// to the result.
func (e *extension) envTexts(do func(key, text string) string) {
	e.environments(func(at string, env []corev1.EnvVar, _ []corev1.EnvFromSource) {
		for i := range env {
			env[i].Value = do(fmt.Sprintf("%s.env[%d].value", at, i), env[i].Value)
		}
	})
}

// environments calls do with the variables of each container of the kernelspec, and with the key of the container.
func (e *extension) environments(do func(at string, env []corev1.EnvVar, from []corev1.EnvFromSource)) {
	do(extensionPath, e.Env, nil)
	kernel := e.Pod.kernel() // its lists are those of the extension
	do(overlayPath+".spec.containers[0]", kernel.Env, kernel.EnvFrom)
	e.extraLists(func(key string, list []extraContainer) {
		for i := range list {
			do(fmt.Sprintf("%s[%d]", shortPath(key), i), list[i].Env, list[i].EnvFrom)
		}
	})
}

// realName returns the name of an object in the cluster. Nothing but the kernelspec of the kernel can refer to it. A
// restart in a new pod keeps an object under its name. Only a Secret is created again: gateways read no Secret.
func (o objectName) realName(rec Record) string {
	if o.kind == kindSecret {
		return SecretName(PodName(rec.ID, rec.Generation)) + "-" + o.name
	}
	return "ekg-" + rec.ID + "-" + o.name
}

var realObjectName = regexp.MustCompile(`^ekg-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-`)

// nameObjects replaces the names of the kernelspec's objects by those in the cluster, wherever the pod refers to them.
func (e *extension) nameObjects(rec Record) {
	if len(e.Objects) == 0 {
		return
	}
	var own []objectName
	for i := range e.Objects {
		own = append(own, objectName{e.Objects[i].kind, e.Objects[i].meta().Name})
	}
	rename := func(kind string, name *string) {
		if o := (objectName{kind, *name}); slices.Contains(own, o) {
			*name = o.realName(rec)
		}
	}
	for _, over := range []overlay{e.asOverlay(), e.Pod} { // the elements of the lists are those of the extension
		for i := range over.Spec.Volumes {
			renameVolume(&over.Spec.Volumes[i], rename)
		}
		for i := range over.Spec.ImagePullSecrets {
			rename(kindSecret, &over.Spec.ImagePullSecrets[i].Name)
		}
	}
	e.environments(func(_ string, env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for i := range env {
			if v := env[i].ValueFrom; v != nil && v.SecretKeyRef != nil {
				rename(kindSecret, &v.SecretKeyRef.Name)
			} else if v != nil && v.ConfigMapKeyRef != nil {
				rename(kindConfigMap, &v.ConfigMapKeyRef.Name)
			}
		}
		for i := range from {
			if from[i].SecretRef != nil {
				rename(kindSecret, &from[i].SecretRef.Name)
			}
			if from[i].ConfigMapRef != nil {
				rename(kindConfigMap, &from[i].ConfigMapRef.Name)
			}
		}
	})
	e.envTexts(func(_, text string) string { return fillServices(text, rec) })
}

// renameVolume calls rename with each name of an object in a volume.
func renameVolume(v *corev1.Volume, rename func(kind string, name *string)) {
	switch {
	case v.Secret != nil:
		rename(kindSecret, &v.Secret.SecretName)
	case v.ConfigMap != nil:
		rename(kindConfigMap, &v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		rename(kindClaim, &v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			s := &v.Projected.Sources[i]
			if s.Secret != nil {
				rename(kindSecret, &s.Secret.Name)
			}
			if s.ConfigMap != nil {
				rename(kindConfigMap, &s.ConfigMap.Name)
			}
		}
	}
}

// serviceMark matches what stands for the name of one of the kernelspec's Services.
var serviceMark = regexp.MustCompile(`\{service\.([^{}]*)\}`)

// fillServices replaces the marks of Services in a text.
func fillServices(text string, rec Record) string {
	return serviceMark.ReplaceAllStringFunc(text, func(mark string) string {
		return objectName{kindService, serviceMark.FindStringSubmatch(mark)[1]}.realName(rec)
	})
}

// storeObjects moves the objects of metadata.ekg to the pod's AnnotationKernelObjects, and returns the rest.
func storeObjects(pod *corev1.Pod, ekg json.RawMessage) (json.RawMessage, error) {
	var keys map[string]json.RawMessage
	if len(ekg) == 0 || !strings.Contains(string(ekg), `"`+objectsKey+`"`) {
		return ekg, nil
	}
	if err := json.Unmarshal(ekg, &keys); err != nil {
		return nil, err
	}
	if objects := keys[objectsKey]; len(objects) > 0 && string(objects) != "[]" {
		pod.Annotations[AnnotationKernelObjects] = string(objects)
	}
	delete(keys, objectsKey)
	return json.Marshal(keys)
}

// addObjects adds the objects of a pod to its stored request.
func addObjects(pod *corev1.Pod, stored *storedRequest) error {
	objects := pod.Annotations[AnnotationKernelObjects]
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
		return fmt.Errorf("annotation %s is not JSON", AnnotationKernelObjects)
	}
	keys[objectsKey] = json.RawMessage(objects)
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
func (o Object) Kept() bool { return o.Kind != kindSecret }

// Objects returns what the kernelspec of a pod creates with it. The pod exists, and its AnnotationKernelObjects is not
// encrypted. The error is a *launcher.RefusedError if the present policy refuses the kernelspec.
func Objects(o Options, pod *corev1.Pod) ([]Object, error) {
	if pod.Annotations[AnnotationKernelObjects] == "" {
		return nil, nil
	}
	rec, err := ReadRecord(pod)
	if err != nil {
		return nil, err
	}
	req, err := ReadRequest(pod, rec)
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ext, problems := o.readExtension(req.Spec, req.Owner)
	if len(problems) > 0 {
		return nil, refused("kernelspec %s: %s: %s", req.Spec.Name, problems[0].Key, problems[0].Message)
	}
	marks := strings.NewReplacer(kernelIDMark, rec.ID, namespaceMark, pod.Namespace)
	ext.objectTexts(func(_, text string) string { return fillServices(marks.Replace(text), rec) })
	var all []Object
	for i := range ext.Objects {
		made, err := ext.Objects[i].object(o, pod, rec)
		if err != nil {
			return nil, fmt.Errorf("kernelspec %s: %s: %w", req.Spec.Name, objectPath(i), err)
		}
		all = append(all, made)
	}
	return all, nil
}

// object returns the object as it is created with a pod.
func (o *specObject) object(opts Options, pod *corev1.Pod, rec Record) (Object, error) {
	meta := o.meta()
	name := meta.Name
	labels := map[string]string{LabelObject: name}
	maps.Copy(labels, meta.Labels)
	for key, value := range pod.Labels {
		_, cost := opts.Policy.Labels[key]
		if cost || slices.Contains([]string{LabelKernel, LabelManagedBy, LabelOwner, LabelSpec, LabelFlavor}, key) {
			labels[key] = value
		}
	}
	annotations := maps.Clone(meta.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	if rec.Owner != "" {
		annotations[AnnotationOwner] = rec.Owner
	}
	*meta = metav1.ObjectMeta{Namespace: pod.Namespace, Name: objectName{o.kind, name}.realName(rec), Labels: labels,
		Annotations: annotations, OwnerReferences: []metav1.OwnerReference{OwnerReference(pod)}}
	if s, ok := o.value.(*corev1.Service); ok {
		s.Spec.Selector = map[string]string{LabelKernel: rec.ID, LabelManagedBy: Manager}
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o.value)
	if err != nil {
		return Object{}, err
	}
	delete(content, "status")
	made := &unstructured.Unstructured{Object: content}
	made.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(o.kind))
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return Object{Resource: corev1.SchemeGroupVersion.WithResource(objectTypes[o.kind].resource), Kind: o.kind, Name: name,
		Object: made}, nil
}

// OwnerReference says that a pod, which exists, owns an object. A kernel's next pod owns it besides.
func OwnerReference(pod *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
}

// IsObjectOf reports whether an existing object was made for a pod's kernel. Such an object need not be created again.
func IsObjectOf(got metav1.Object, pod *corev1.Pod) bool {
	return got.GetLabels()[LabelKernel] == pod.Labels[LabelKernel] && launcher.ValidID(pod.Labels[LabelKernel]) &&
		got.GetLabels()[LabelManagedBy] == Manager &&
		got.GetAnnotations()[AnnotationOwner] == pod.Annotations[AnnotationOwner]
}
