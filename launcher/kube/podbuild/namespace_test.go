package podbuild

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

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
