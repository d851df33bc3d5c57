package podbuild

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// TestOwnerNamespace_Names: different owners have different namespaces with valid names, however long they are, and
// also if one user's name imitates the shortened form of another's.
func TestOwnerNamespace_Names(t *testing.T) {
	n := &wish.OwnerNamespace{Name: "kernels-{owner}"}
	for _, scheme := range []wish.OwnerNames{wish.NamesEscaped, wish.NamesSafe} {
		long := strings.Repeat("a", 80)
		short := strings.TrimPrefix(n.NameOf(long, scheme), "kernels-")
		found := map[string]string{}
		for _, owner := range []string{"ann", "Ann", "ann@x", "ann-40x", "ann--x", "-", "system:serviceaccount:ns:ann", long,
			long + "b", strings.Repeat("A", 80), short, strings.ReplaceAll(short, "--", "-"), "ä"} {
			name := n.NameOf(owner, scheme)
			if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
				t.Errorf("%q: %s: %v", owner, name, wrong)
			}
			if found[name] != "" {
				t.Errorf("%q and %q have %s", owner, found[name], name)
			}
			found[name] = owner
		}
	}
}

// TestOwnerNamespace_Hostile: a user's name becomes a text of an object, whatever it is. Owners share nothing.
func TestOwnerNamespace_Hostile(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "ownerNamespace:\n  name: k-{owner}\n  objects:\n    - apiVersion: v1\n      kind: ConfigMap\n"+
		"      metadata: {name: who, labels: {in: '{namespace}'}}\n      data: {owner: '{owner}'}\n")
	const owner = "x\"}, \"kind\": \"Secret\", {namespace}\n{owner}"
	pod := &corev1.Pod{}
	pod.Namespace, pod.Annotations = o.namespaceOf(owner), map[string]string{podspec.AnnotationOwner: owner}
	made, err := NamespaceFor(o, pod)
	if err != nil || made == nil || len(made.Objects) != 1 {
		t.Fatalf("%+v %v", made, err)
	}
	object := made.Objects[0].Object
	if data, ok := object.Object["data"].(map[string]any); !ok || data["owner"] != owner ||
		object.GetKind() != "ConfigMap" ||
		object.GetLabels()["in"] != pod.Namespace || object.GetNamespace() != pod.Namespace {
		t.Errorf("%v", object)
	}
	if _, there := o.Policy.OwnerNamespace.Objects[0]["metadata"].(map[string]any)["namespace"]; there {
		t.Error("the policy itself was changed")
	}
	pod.Namespace = o.namespaceOf("bob")
	if made, err := NamespaceFor(o, pod); made != nil || err != nil || o.InNamespaceOfOwner(pod) {
		t.Errorf("another owner's namespace: %v %v", made, err)
	}
}
