package kube

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// All kernels of a flavor share one claim template, which the first of them creates. A restart creates it again if it
// is gone.
func TestStart_ClaimTemplate(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	claim := &flavor.Flavor{Name: "claim", DRA: &flavor.DRA{Request: flavor.Request{DeviceClass: "gpu.example.com"}}}
	start := func(id string, change func(*launcher.Request)) {
		t.Helper()
		req := testRequest(id)
		req.Flavor = claim
		if change != nil {
			change(&req)
		}
		if k, _, err := l.Start(t.Context(), req); err != nil || k.Flavor != "claim" {
			t.Fatalf("flavor %q, %v", k.Flavor, err)
		}
	}
	templates := func() []string {
		t.Helper()
		list, err := c.ResourceV1().ResourceClaimTemplates("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names
	}
	start(idB, func(r *launcher.Request) { r.Env = map[string]string{"KERNEL_GPUS": "0"} })
	if names := templates(); len(names) > 0 {
		t.Errorf("a kernel that gives its GPU up needs %v", names)
	}
	start(idA, nil)
	start("cccccccc-0000-4000-8000-000000000003", nil)
	names := templates()
	pod, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 1 || *pod.Spec.ResourceClaims[0].ResourceClaimTemplateName != names[0] {
		t.Fatalf("templates %v, the pod claims %+v", names, pod.Spec.ResourceClaims)
	}

	err = c.ResourceV1().ResourceClaimTemplates("ns").Delete(t.Context(), names[0], metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.setPod(t, pod.Name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	waitFor(t, l, idA, func(k launcher.Kernel) bool { return k.State == "dead" })
	if k, err := l.Revive(t.Context(), idA); err != nil || k.Flavor != "claim" {
		t.Fatalf("flavor %q, %v", k.Flavor, err)
	}
	if again := templates(); len(again) != 1 || again[0] != names[0] {
		t.Errorf("after the restart: %v", again)
	}
}

// A gateway that may not create claim templates says so, and leaves no pod behind.
func TestStart_ClaimTemplateRefused(t *testing.T) {
	c := newTestCluster(t)
	l := openTest(t, c, nil)
	c.refuse("create", "resourceclaimtemplates", apierrors.NewForbidden(corev1.Resource("resourceclaimtemplates"), "x",
		errors.New("no such right")))
	req := testRequest(idA)
	req.Flavor = &flavor.Flavor{Name: "claim", DRA: &flavor.DRA{Request: flavor.Request{DeviceClass: "gpu.example.com"}}}
	_, _, err := l.Start(t.Context(), req)
	var failed *launcher.FailedError
	if !errors.As(err, &failed) || !strings.Contains(failed.Reason, "its resource claim template could not be created: ") {
		t.Errorf("got %v", err)
	}
	if _, err := c.CoreV1().Pods("ns").Get(t.Context(), idA+"-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod: %v", err)
	}
}
