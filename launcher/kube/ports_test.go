package kube

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// withPorts lets kernelspecs have ports.
func withPorts(t *testing.T) func(*Options, *timing) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("kernelspecs: {ports: [7078]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	policy, err := wish.ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options, _ *timing) { o.Pods.Policy = policy }
}

// The network policy of a kernel with ports is the pod's own, and exists before its secret. Kernels without ports need
// no right to create one. Without the right the start of a kernel with ports fails and leaves no pod.
func TestPorts(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, withPorts(t))
	withPort := testRequest(idA)
	withPort.Spec.Metadata = []byte(`{"ekg": {"image": "x", "ports": [{"containerPort": 7078}]}}`)
	if _, _, err := l.Start(t.Context(), withPort); err != nil {
		t.Fatal(err)
	}
	list, err := c.NetworkingV1().NetworkPolicies("ns").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := list.Items[0]
	if len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != pod.UID || len(p.Spec.Ingress[0].Ports) != 1 {
		t.Errorf("got %+v", p)
	}
	order := ""
	for _, a := range c.Actions() {
		if a.GetVerb() == "create" {
			order += a.GetResource().Resource + " "
		}
	}
	if !strings.Contains(order, "pods networkpolicies secrets") {
		t.Errorf("created in this order: %s", order)
	}
	c.refuse("create", "networkpolicies", apierrors.NewForbidden(
		schema.GroupResource{Group: "networking.k8s.io", Resource: "networkpolicies"}, "x", errors.New("no right")))
	if _, _, err := l.Start(t.Context(), testRequest(idOf(1))); err != nil {
		t.Error(err)
	}
	withPort.ID = idOf(2)
	if _, _, err := l.Start(t.Context(), withPort); err == nil ||
		!strings.Contains(err.Error(), "its network policy could not be created: ") {
		t.Errorf("got %v", err)
	}
	if c.podThere(t, idOf(2)+"-1") {
		t.Error("a pod is left")
	}
}
