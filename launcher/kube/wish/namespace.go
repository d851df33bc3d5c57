package wish

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const (
	namespaceMark       = "{namespace}" // in objects: the name of the owner's namespace
	maxNamespaceObjects = 32
	namespaceDigits     = 16 // hexadecimal digits of the hash that ends a shortened name
)

// namespaceKinds are the kinds of objects that a namespace of an owner can be made with, and their resources.
var namespaceKinds = map[schema.GroupVersionKind]string{
	{Version: "v1", Kind: "ConfigMap"}:                                       "configmaps",
	{Version: "v1", Kind: "LimitRange"}:                                      "limitranges",
	{Version: "v1", Kind: "ResourceQuota"}:                                   "resourcequotas",
	{Version: "v1", Kind: "ServiceAccount"}:                                  "serviceaccounts",
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}:       "networkpolicies",
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"}:        "roles",
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"}: "rolebindings",
}

// OwnerNamespace says that each owner's kernels run in a namespace of their own, which the gateway makes.
type OwnerNamespace struct {
	Name    string            `yaml:"name"`    // has {owner} once, which becomes the escaped name
	Labels  map[string]string `yaml:"labels"`  // of the namespace
	Objects []map[string]any  `yaml:"objects"` // made with it; {owner} there is the name itself
}

// NamespaceObject is an object that is made with a namespace.
type NamespaceObject struct {
	Resource schema.GroupVersionResource
	Object   *unstructured.Unstructured
}

// Ref names the object within its namespace, as in podbuild.AnnotationObjects: its resource and its name.
func (o NamespaceObject) Ref() string {
	return o.Resource.GroupResource().String() + "/" + o.Object.GetName()
}

// ObjectOf returns the resource and the name of the object that a Ref names. ok is false if a namespace cannot have an
// object with this Ref.
func ObjectOf(ref string) (resource schema.GroupVersionResource, name string, ok bool) {
	of, name, _ := strings.Cut(ref, "/")
	for kind, plural := range namespaceKinds {
		resource := kind.GroupVersion().WithResource(plural)
		if resource.GroupResource().String() == of && len(validation.IsDNS1123Subdomain(name)) == 0 {
			return resource, name, true
		}
	}
	return schema.GroupVersionResource{}, "", false
}

// problems calls report for each key with a bad value. n is the number of an entry of objects, else 0.
func (n *OwnerNamespace) problems(report func(key string, n int, text string)) {
	before, after, marked := strings.Cut(n.Name, OwnerMark)
	switch {
	case !marked, hasOwnerMark(after):
		report("name", 0, fmt.Sprintf("%q needs %s once: each owner has a namespace", n.Name, OwnerMark))
	case !joinsOwner(before):
		report("name", 0, fmt.Sprintf("%q %s", n.Name, ownerProblem(n.Name)))
	case len(n.Name)-len(OwnerMark)+namespaceDigits+2 > validation.DNS1123LabelMaxLength,
		len(validation.IsDNS1123Label(n.NameOf(ExampleOwner, NamesEscaped))) > 0:
		report("name", 0, fmt.Sprintf("%q makes no valid name of a namespace", n.Name))
	}
	for _, err := range metavalidation.ValidateLabels(n.Labels, field.NewPath("labels")) {
		report("labels", 0, err.Error())
	}
	for key := range n.Labels {
		if strings.HasPrefix(key, podspec.Domain) || key == podspec.LabelManagedBy {
			report("labels", 0, fmt.Sprintf("%q is ekg's own", key))
		}
	}
	if len(n.Objects) > maxNamespaceObjects {
		report("objects", maxNamespaceObjects, fmt.Sprintf("more than %d objects", maxNamespaceObjects))
		return
	}
	seen := map[string]bool{}
	for i, template := range n.Objects {
		made, err := n.Object(template, ExampleOwner, "namespace")
		if err != nil {
			report("objects", i, err.Error())
			continue
		}
		name := made.Object.GetKind() + " " + made.Object.GetName()
		if seen[name] {
			report("objects", i, name+" is there twice")
		}
		seen[name] = true
	}
}

// NameOf returns the name of an owner's namespace. Different owners have different names. A name that would be too long
// ends with "--" and a longer hash than any written name.
func (n *OwnerNamespace) NameOf(owner string, names OwnerNames) string {
	before, after, _ := strings.Cut(n.Name, OwnerMark)
	escaped := names.of(owner)
	free := validation.DNS1123LabelMaxLength - len(before) - len(after)
	if len(escaped) > free {
		sum := sha256.Sum256([]byte(owner))
		escaped = escaped[:free-namespaceDigits-2]
		escaped = strings.TrimRight(escaped, "-") + "--" + hex.EncodeToString(sum[:])[:namespaceDigits]
	}
	return before + escaped + after
}

// Object returns one object of an owner's namespace. The marks are replaced in strings only, after the YAML was read:
// no name of a user becomes more than a text.
func (n *OwnerNamespace) Object(template map[string]any, owner, namespace string) (NamespaceObject, error) {
	if metadata, err := json.Marshal(template["metadata"]); err != nil || hasOwnerMark(string(metadata)) {
		return NamespaceObject{}, fmt.Errorf("%s has no meaning in metadata: a name may have any characters", OwnerMark)
	}
	text, err := json.Marshal(replaceMarks(template, strings.NewReplacer(OwnerMark, owner, namespaceMark, namespace)))
	if err != nil {
		return NamespaceObject{}, err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return NamespaceObject{}, fmt.Errorf("is not an object: %w", err)
	}
	kind := object.GroupVersionKind()
	resource, ok := namespaceKinds[kind]
	if !ok {
		return NamespaceObject{}, fmt.Errorf("%s %s is not a kind that is made; valid: %s", kind.GroupVersion(), kind.Kind,
			kindsOfNamespaces())
	}
	if len(validation.IsDNS1123Subdomain(object.GetName())) > 0 {
		return NamespaceObject{}, fmt.Errorf("%s: %q is not a valid name", kind.Kind, object.GetName())
	}
	if of := object.GetNamespace(); of != "" && of != namespace {
		return NamespaceObject{}, fmt.Errorf("%s %s: its namespace can only be %s", kind.Kind, object.GetName(),
			namespaceMark)
	}
	typed, err := scheme.Scheme.New(kind)
	if err != nil {
		return NamespaceObject{}, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
		return NamespaceObject{}, fmt.Errorf("%s %s: %w", kind.Kind, object.GetName(), err)
	}
	object.SetNamespace(namespace)
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[podspec.LabelManagedBy] = podspec.Manager
	object.SetLabels(labels)
	return NamespaceObject{kind.GroupVersion().WithResource(resource), object}, nil
}

func kindsOfNamespaces() string {
	var kinds []string
	for kind := range namespaceKinds {
		kinds = append(kinds, kind.Kind)
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}

// replaceMarks returns a copy of a value of YAML with the marks in its strings replaced. Keys stay.
func replaceMarks(value any, marks *strings.Replacer) any {
	switch v := value.(type) {
	case string:
		return marks.Replace(v)
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = replaceMarks(v[i], marks)
		}
		return all
	case map[string]any:
		all := make(map[string]any, len(v))
		for key := range v {
			all[key] = replaceMarks(v[key], marks)
		}
		return all
	}
	return value
}
