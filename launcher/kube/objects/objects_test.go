package objects

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// The tests of package kube start, restart and stop kernels with objects, and let gateways die between two requests.

const (
	idA = "aaaaaaaa-0000-4000-8000-000000000001"
	idB = "bbbbbbbb-0000-4000-8000-000000000002"
)

// TestObjects_Forged: a gateway creates no object for a pod that no gateway has built, as a user who may create pods
// could, nor for one with the annotation of another pod.
func TestObjects_Forged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("kernelspecs: {objects: [ConfigMap]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := podspec.NewMasterKeys([]byte("0123456789abcdef0123456789abcdef"), nil)
	if err != nil {
		t.Fatal(err)
	}
	typed, dynamic := fake.NewSimpleClientset(), dynamicfake.NewSimpleDynamicClient(scheme.Scheme)
	s := New(Options{
		Cluster: &cluster.Cluster{Client: typed, Objects: dynamic},
		Pods:    podbuild.Options{Namespace: "ns", SupervisorImage: "ekg:1", Policy: policy},
		Keys:    keys,
		Bound:   context.WithCancel,
		Life:    t.Context(),
	})
	req := launcher.Request{ID: idA, Owner: "ann", Spec: kernelspecs.Spec{Name: "python3", Language: "python",
		Argv: []string{"python3", "-f", "{connection_file}"}, Metadata: []byte(`{"ekg": {"image": "k:1", "objects": [
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}]}}`)}}
	pod, err := podbuild.Build(s.o.Pods, req, podspec.Record{ID: idA, Generation: 1, Owner: "ann", SpecName: "python3",
		Created: time.Now(), Protocol: 1, MasterKey: keys[0].Fingerprint})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(pod); err != nil {
		t.Fatal(err)
	}
	there := func() int {
		t.Helper()
		list, err := dynamic.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).List(t.Context(),
			metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	for what, change := range map[string]func(*corev1.Pod){
		"another pod": func(p *corev1.Pod) {
			p.Name = idB + "-1"
			p.Labels[podspec.LabelKernel] = idB
		},
		"another namespace": func(p *corev1.Pod) { p.Namespace = "other" },
		"plain text": func(p *corev1.Pod) {
			p.Annotations[podspec.AnnotationKernelObjects] = `[{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": {"name": "x"}}]`
		},
		"another key": func(p *corev1.Pod) { p.Annotations[podspec.AnnotationMasterKey] = "0123456789abcdef" },
	} {
		forged := pod.DeepCopy()
		change(forged)
		if part, err := s.Create(t.Context(), forged); part != "objects" || !errors.Is(err, errSealed) {
			t.Errorf("%s: %s, %v", what, part, err)
		}
	}
	if n := there(); n != 0 {
		t.Errorf("%d objects were made", n)
	}
	for range 2 { // an object that exists is the same
		if part, err := s.TryCreate(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
	if n := there(); n != 1 {
		t.Errorf("the pod of a gateway has %d objects", n)
	}
}
