package podbuild

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// LabelKernelsOf is on each namespace that a gateway has made for an owner. Its value is Options.Namespace.
const LabelKernelsOf = podspec.Domain + "kernels-of"

// AnnotationObjects of such a namespace names the objects that gateways have made with it, separated by commas. They
// are removed when the policy no longer has them.
const AnnotationObjects = podspec.Domain + "objects"

// AnnotationContent of such a namespace has a digest of all that gateways have made with it.
const AnnotationContent = podspec.Domain + "content"

// contentDigits is the length of the value of AnnotationContent.
const contentDigits = 20

// MadeNamespace is a namespace of one owner, as a gateway makes it.
type MadeNamespace struct {
	Namespace *corev1.Namespace
	Content   string // a digest of all of it, the value of AnnotationContent once all of it was made
	Objects   []wish.NamespaceObject
}

// Refs returns the Ref of each object.
func (m *MadeNamespace) Refs() (all []string) {
	for _, o := range m.Objects {
		all = append(all, o.Ref())
	}
	return all
}

// JoinRefs returns the value of AnnotationObjects for some objects.
func JoinRefs(refs []string) string {
	sorted := slices.Sorted(slices.Values(refs))
	return strings.Join(slices.Compact(sorted), ",")
}

// ObjectsOf returns the Refs in AnnotationObjects of a namespace.
func ObjectsOf(ns *corev1.Namespace) []string {
	return strings.FieldsFunc(ns.Annotations[AnnotationObjects], func(r rune) bool { return r == ',' })
}

// ownerNamespace returns what the policy says about namespaces of owners, or nil.
func (o *Options) ownerNamespace() *wish.OwnerNamespace {
	if o.Policy == nil {
		return nil
	}
	return o.Policy.OwnerNamespace
}

// NamespacePerOwner reports whether each owner's kernels run in a namespace of their own.
func (o *Options) NamespacePerOwner() bool { return o.ownerNamespace() != nil }

// namespaceOf returns the namespace of an owner's kernels whose client names no other.
func (o *Options) namespaceOf(owner string) string {
	if n := o.ownerNamespace(); n != nil && owner != "" {
		return n.NameOf(owner, o.Policy.OwnerNames)
	}
	return o.Namespace
}

// MayBeOwners reports whether the name of a namespace is like those of owners' namespaces.
func (o *Options) MayBeOwners(namespace string) bool {
	n := o.ownerNamespace()
	if n == nil {
		return false
	}
	before, after, _ := strings.Cut(n.Name, wish.OwnerMark)
	return len(namespace) > len(before)+len(after) && strings.HasPrefix(namespace, before) &&
		strings.HasSuffix(namespace, after)
}

// InNamespaceOfOwner reports whether a pod lies in the namespace that its own owner's kernels have. A pod that claims
// another owner is not a kernel: a user who may create pods in one namespace must not make kernels for others.
func (o *Options) InNamespaceOfOwner(pod *corev1.Pod) bool {
	owner := pod.Annotations[podspec.AnnotationOwner]
	return o.NamespacePerOwner() && owner != "" && pod.Namespace == o.namespaceOf(owner)
}

// NamespaceFor returns the owner's namespace in which a pod is to run, or nil if it runs in another one.
func NamespaceFor(o Options, pod *corev1.Pod) (*MadeNamespace, error) {
	if !o.InNamespaceOfOwner(pod) {
		return nil, nil
	}
	n, owner := o.Policy.OwnerNamespace, pod.Annotations[podspec.AnnotationOwner]
	made := &MadeNamespace{Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace,
		Labels: maps.Clone(n.Labels), Annotations: map[string]string{podspec.AnnotationOwner: owner}}}}
	if made.Namespace.Labels == nil {
		made.Namespace.Labels = map[string]string{}
	}
	for key, value := range map[string]string{podspec.LabelManagedBy: podspec.Manager, LabelKernelsOf: o.Namespace,
		podspec.LabelOwner: podspec.LabelValue(owner)} {
		made.Namespace.Labels[key] = value
	}
	all := []any{made.Namespace}
	for _, template := range n.Objects {
		object, err := n.Object(template, owner, pod.Namespace)
		if err != nil {
			return nil, err
		}
		made.Objects = append(made.Objects, object)
		all = append(all, object.Object)
	}
	made.Namespace.Annotations[AnnotationObjects] = JoinRefs(made.Refs())
	text, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	made.Content = hex.EncodeToString(sum[:])[:contentDigits]
	return made, nil
}
