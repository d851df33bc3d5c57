package wish

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Kinds of objects that a kernelspec can create.
const (
	kindClaim     = "PersistentVolumeClaim"
	kindConfigMap = "ConfigMap"
	KindSecret    = "Secret"
	kindService   = "Service"
)

const (
	maxObjects    = 16
	maxObjectName = 22 // bytes: a Service's name has at most 63, of which "ekg-", the kernel's id and '-' have 41
	// ObjectsKey is the key of metadata.ekg that has the objects.
	ObjectsKey = "objects"
)

// kernelIDMark stands for the kernel's id in the texts of objects.
const kernelIDMark = "{kernel_id}"

// objectType is a kind of objects that a kernelspec can create.
type objectType struct {
	resource string
	empty    func() runtime.Object
}

var objectTypes = map[string]objectType{
	kindClaim:     {"persistentvolumeclaims", func() runtime.Object { return &corev1.PersistentVolumeClaim{} }},
	kindConfigMap: {"configmaps", func() runtime.Object { return &corev1.ConfigMap{} }},
	KindSecret:    {"secrets", func() runtime.Object { return &corev1.Secret{} }},
	kindService:   {"services", func() runtime.Object { return &corev1.Service{} }},
}

func kindsOfObjects() []string { return slices.Sorted(maps.Keys(objectTypes)) }

// SpecObject is an object of metadata.ekg.objects, as the kernelspec has it.
type SpecObject struct {
	Kind  string
	Value runtime.Object // a pointer to a type of corev1
}

// Choose implements kernelspecs.Chooser.
func (o *SpecObject) Choose(text func(key string) string) (any, error) {
	kind, version := text("kind"), text("apiVersion")
	of, ok := objectTypes[kind]
	switch {
	case !ok:
		return nil, fmt.Errorf("%s is not a kind that is created with a pod; valid: %s", Quoted(kind),
			strings.Join(kindsOfObjects(), ", "))
	case version != "v1":
		return nil, fmt.Errorf("%s has the apiVersion v1, not %s", kind, Quoted(version))
	}
	o.Kind, o.Value = kind, of.empty()
	return o.Value, nil
}

// Meta returns the object's metadata.
func (o *SpecObject) Meta() *metav1.ObjectMeta {
	switch v := o.Value.(type) {
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

// RealName returns the name of the object in the cluster. Nothing but the kernelspec of the kernel can refer to it.
func (o *SpecObject) RealName(rec podspec.Record) string {
	return objectName{o.Kind, o.Meta().Name}.realName(rec)
}

// Resource returns the object's resource.
func (o *SpecObject) Resource() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(objectTypes[o.Kind].resource)
}

// objectName is an object of a kernelspec: its kind, and its name in the kernelspec.
type objectName struct{ kind, name string }

// ObjectPath returns the key of an object in the kernelspec.
func ObjectPath(i int) string { return fmt.Sprintf("%s[%d]", ShortPath(ObjectsKey), i) }

// isObjectText reports whether the text at a key is one of an object that names nothing, and may be long.
func isObjectText(key string) bool {
	return strings.HasPrefix(key, ShortPath(ObjectsKey)) && !namesObject(key)
}

// objectTexts calls do with each text of the kernelspec's objects in which a mark has a meaning, and with its key. The
// text is set to the result.
func (e *Extension) objectTexts(do func(key, text string) string) {
	for i := range e.Objects {
		at := ObjectPath(i)
		fixed := []string{at + ".kind", at + ".apiVersion", at + ".metadata.name"}
		eachText(reflect.ValueOf(e.Objects[i].Value).Elem(), at, func(key, text string) string {
			if slices.Contains(fixed, key) {
				return text
			}
			return do(key, text)
		})
	}
}

// envTexts calls do with the value of each variable of the kernelspec's containers, and with its key. The value is set
// to the result.
func (e *Extension) envTexts(do func(key, text string) string) {
	e.environments(func(at string, env []corev1.EnvVar, _ []corev1.EnvFromSource) {
		for i := range env {
			env[i].Value = do(fmt.Sprintf("%s.env[%d].value", at, i), env[i].Value)
		}
	})
}

// environments calls do with the variables of each container of the kernelspec, and with the key of the container.
func (e *Extension) environments(do func(at string, env []corev1.EnvVar, from []corev1.EnvFromSource)) {
	do(extensionPath, e.Env, nil)
	kernel := e.Pod.Kernel() // its lists are those of the extension
	do(overlayPath+".spec.containers[0]", kernel.Env, kernel.EnvFrom)
	e.ExtraLists(func(key string, list []ExtraContainer) {
		for i := range list {
			do(fmt.Sprintf("%s[%d]", ShortPath(key), i), list[i].Env, list[i].EnvFrom)
		}
	})
}

// realName returns the name of an object in the cluster. A restart in a new pod keeps an object under its name.
// Only a Secret is created again: gateways read no Secret.
func (o objectName) realName(rec podspec.Record) string {
	if o.kind == KindSecret {
		return podspec.SecretName(podspec.PodName(rec.ID, rec.Generation)) + "-" + o.name
	}
	return "ekg-" + rec.ID + "-" + o.name
}

var realObjectName = regexp.MustCompile(`^ekg-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-`)

// NameObjects replaces the names of the kernelspec's objects by those in the cluster, wherever the pod refers to them.
func (e *Extension) NameObjects(rec podspec.Record) {
	if len(e.Objects) == 0 {
		return
	}
	var own []objectName
	for i := range e.Objects {
		own = append(own, objectName{e.Objects[i].Kind, e.Objects[i].Meta().Name})
	}
	rename := func(kind string, name *string) {
		if o := (objectName{kind, *name}); slices.Contains(own, o) {
			*name = o.realName(rec)
		}
	}
	for _, over := range []Overlay{e.AsOverlay(), e.Pod} { // the elements of the lists are those of the extension
		for i := range over.Spec.Volumes {
			renameVolume(&over.Spec.Volumes[i], rename)
		}
		for i := range over.Spec.ImagePullSecrets {
			rename(KindSecret, &over.Spec.ImagePullSecrets[i].Name)
		}
	}
	e.environments(func(_ string, env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for i := range env {
			if v := env[i].ValueFrom; v != nil && v.SecretKeyRef != nil {
				rename(KindSecret, &v.SecretKeyRef.Name)
			} else if v != nil && v.ConfigMapKeyRef != nil {
				rename(kindConfigMap, &v.ConfigMapKeyRef.Name)
			}
		}
		for i := range from {
			if from[i].SecretRef != nil {
				rename(KindSecret, &from[i].SecretRef.Name)
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
		rename(KindSecret, &v.Secret.SecretName)
	case v.ConfigMap != nil:
		rename(kindConfigMap, &v.ConfigMap.Name)
	case v.PersistentVolumeClaim != nil:
		rename(kindClaim, &v.PersistentVolumeClaim.ClaimName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			s := &v.Projected.Sources[i]
			if s.Secret != nil {
				rename(KindSecret, &s.Secret.Name)
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
func fillServices(text string, rec podspec.Record) string {
	return serviceMark.ReplaceAllStringFunc(text, func(mark string) string {
		return objectName{kindService, serviceMark.FindStringSubmatch(mark)[1]}.realName(rec)
	})
}

// FillObjects replaces the marks in the kernelspec's objects for a kernel in a namespace.
func (e *Extension) FillObjects(rec podspec.Record, namespace string) {
	marks := strings.NewReplacer(kernelIDMark, rec.ID, namespaceMark, namespace)
	e.objectTexts(func(_, text string) string { return fillServices(marks.Replace(text), rec) })
}
