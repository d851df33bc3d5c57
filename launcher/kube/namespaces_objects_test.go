package kube

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	k8stesting "k8s.io/client-go/testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TestNamespaces_Changed: objects that exist are changed to what the policy says, once.
func TestNamespaces_Changed(t *testing.T) {
	c := newTestCluster(t)
	if err := startOf(t, openTest(t, c, withNamespaces(t, namespacePolicy)), idOf(0), "ann"); err != nil {
		t.Fatal(err)
	}
	l := openTest(t, c, withNamespaces(t, strings.Replace(namespacePolicy, "pods: 2", "pods: 9", 1)))
	for n := range 2 {
		if err := startOf(t, l, idOf(n+1), "ann"); err != nil {
			t.Fatal(err)
		}
	}
	quota, err := c.objects.Resource(corev1.SchemeGroupVersion.WithResource("resourcequotas")).Namespace("kernels-ann").
		Get(t.Context(), "kernels", metav1.GetOptions{})
	if err != nil || !strings.Contains(textOf(t, quota), `"pods":9`) {
		t.Errorf("%v %v", quota, err)
	}
	patches := 0
	for _, a := range c.objects.Actions() {
		if a.GetVerb() == "patch" {
			patches++
		}
	}
	if patches != 6 {
		t.Errorf("%d patches of two objects and their namespace, twice", patches)
	}
}

// secondObject is an object that a changed policy has besides, or no longer has.
const secondObject = `    - {apiVersion: v1, kind: ConfigMap, metadata: {name: NAME}, data: {a: b}}
`

// withObjects is namespacePolicy with config maps of these names.
func withObjects(names ...string) string {
	more := ""
	for _, name := range names {
		more += strings.Replace(secondObject, "NAME", name, 1)
	}
	return strings.Replace(namespacePolicy, "home:", more+"home:", 1)
}

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// objectsOf returns the names of the config maps that were made with ann's namespace.
func (c *testCluster) objectsOf(t *testing.T) (names []string) {
	t.Helper()
	list, err := c.objects.Resource(configMaps).Namespace("kernels-ann").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	slices.Sort(names)
	return names
}

// TestNamespaces_Removed: an object that the policy no longer has is removed. One that another author has made, or that
// has one by now, stays. A gateway that ends between its steps leaves no object that a later one does not know.
func TestNamespaces_Removed(t *testing.T) {
	c := newTestCluster(t)
	if err := startOf(t, openTest(t, c, withNamespaces(t, withObjects("a", "b", "owned", "theirs"))), idOf(0),
		"ann"); err != nil {
		t.Fatal(err)
	}
	maps := c.objects.Resource(configMaps).Namespace("kernels-ann")
	change := func(name string, how func(*unstructured.Unstructured)) {
		t.Helper()
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name, "namespace": "kernels-ann"}}}
		o.SetLabels(map[string]string{podspec.LabelManagedBy: podspec.Manager})
		o.SetManagedFields(applied)
		how(o)
		if _, err := maps.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change("owned", func(o *unstructured.Unstructured) {
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "x", UID: "x"}})
	})
	change("theirs", func(o *unstructured.Unstructured) { o.SetLabels(nil) })
	other := &unstructured.Unstructured{}
	other.SetAPIVersion("v1")
	other.SetKind("ConfigMap")
	other.SetName("never-the-policys")
	if _, err := maps.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// This gateway ends after it has made c. The next one has another policy.
	ended := errors.New("the gateway has ended")
	fails := true
	c.objects.PrependReactor("patch", "resourcequotas", func(k8stesting.Action) (bool, runtime.Object, error) {
		return fails, nil, ended
	})
	cFirst := strings.Replace(namespacePolicy, "  objects:\n",
		"  objects:\n"+strings.Replace(secondObject, "NAME", "c", 1), 1)
	if err := startOf(t, openTest(t, c, withNamespaces(t, cFirst)), idOf(1), "ann"); err == nil {
		t.Fatal("the start does not notice that an object was not made")
	}
	halfway := []string{"a", "b", "c", "never-the-policys", "owned", "theirs"}
	if got := c.objectsOf(t); !slices.Equal(got, halfway) {
		t.Fatalf("halfway there are %v, want %v", got, halfway)
	}
	fails = false
	if err := startOf(t, openTest(t, c, withNamespaces(t, withObjects("b"))), idOf(2), "ann"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.objectsOf(t), []string{"b", "never-the-policys", "owned", "theirs"}; !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
	ns, err := c.CoreV1().Namespaces().Get(t.Context(), "kernels-ann", metav1.GetOptions{})
	if err != nil || ns.Annotations[podbuild.AnnotationObjects] !=
		"configmaps/b,resourcequotas/kernels,rolebindings.rbac.authorization.k8s.io/owner" {
		t.Errorf("the namespace names %q, %v", ns.Annotations[podbuild.AnnotationObjects], err)
	}

	// Without the right to delete, starts go on, and the object is removed after a later change.
	denied := true
	c.objects.PrependReactor("delete", "configmaps", func(k8stesting.Action) (bool, runtime.Object, error) {
		return denied, nil, apierrors.NewForbidden(configMaps.GroupResource(), "b", errors.New("no"))
	})
	if err := startOf(t, openTest(t, c, withNamespaces(t, namespacePolicy)), idOf(3), "ann"); err != nil {
		t.Fatal(err)
	}
	denied = false
	if err := startOf(t, openTest(t, c, withNamespaces(t, withObjects("d"))), idOf(4), "ann"); err != nil {
		t.Fatal(err)
	}
	if got, want := c.objectsOf(t), []string{"d", "never-the-policys", "owned", "theirs"}; !slices.Equal(got, want) {
		t.Errorf("at the end there are %v, want %v", got, want)
	}
}

// TestNamespaces_Deleted: a namespace that is deleted while its objects are made is made again, with all of them.
func TestNamespaces_Deleted(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withNamespaces(t, namespacePolicy))
	bindings := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}
	quotas := corev1.SchemeGroupVersion.WithResource("resourcequotas")
	deleted := false
	c.objects.PrependReactor("patch", "resourcequotas", func(k8stesting.Action) (bool, runtime.Object, error) {
		if deleted {
			return false, nil, nil
		}
		deleted = true // after the quota was made, and before the namespace is complete
		return true, &unstructured.Unstructured{}, errors.Join(
			c.objects.Tracker().Delete(bindings, "kernels-ann", "owner"),
			c.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", "kernels-ann"))
	})
	if err := startOf(t, l, idA, "ann"); err != nil {
		t.Fatal(err)
	}
	for name, of := range map[string]schema.GroupVersionResource{"owner": bindings, "kernels": quotas} {
		if _, err := c.objects.Resource(of).Namespace("kernels-ann").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("the namespace that was made again lacks an object: %v", err)
		}
	}
}
