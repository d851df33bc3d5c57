package podbuild

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// A kernelspec's own values of Enterprise Gateway's labels stay. The owner's label cannot be set.
func TestBuild_Labels(t *testing.T) {
	rec := testRecord("test")
	rec.Owner = "ann@example.com"
	build := func(ekg string) (*corev1.Pod, error) {
		return Build(testOptions(), launcher.Request{ID: testID, Spec: specOf(ekg)}, rec)
	}
	pod, err := build(`{"image": "x", "labels": {"app": "mine"}}`)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		podspec.LabelOwner: podspec.LabelValue("ann@example.com"), podspec.LabelSpec: "test",
		"app": "mine", "component": "kernel",
		"kernel_id": testID,
	} {
		if pod.Labels[key] != want {
			t.Errorf("%s is %q, want %q", key, pod.Labels[key], want)
		}
	}
	if pod.Annotations[podspec.AnnotationOwner] != "ann@example.com" {
		t.Errorf("the owner's annotation is %q", pod.Annotations[podspec.AnnotationOwner])
	}
	if _, err := build(`{"image": "x", "labels": {"` + podspec.LabelOwner + `": "bob"}}`); err == nil {
		t.Error("a kernelspec has set the owner")
	}
}
