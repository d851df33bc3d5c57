package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Every name is a valid value, and no two names have the same one.
func TestLabelValue(t *testing.T) {
	hashed := LabelValue("ann@example.com")
	names := []string{"ann", "Ann", "a.b_c-d", "ann@example.com", hashed, "-ann", "", "Ünal", strings.Repeat("a", 63),
		strings.Repeat("a", 64), "ann ", "sha256-"}
	seen := map[string]string{}
	for _, name := range names {
		value := LabelValue(name)
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			t.Errorf("%q becomes %q: %v", name, value, problems)
		}
		if other, ok := seen[value]; ok {
			t.Errorf("%q and %q both become %q", name, other, value)
		}
		seen[value] = name
	}
	if LabelValue("ann") != "ann" {
		t.Errorf("a valid name becomes %q", LabelValue("ann"))
	}
	// printf %s ann@example.com | sha256sum
	if want := "sha256-71d4f55f72fa128dfb468a1a3901507c804b7431"; hashed != want {
		t.Errorf("got %s, want %s", hashed, want)
	}
}

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
		LabelOwner: LabelValue("ann@example.com"), LabelSpec: "test", "app": "mine", "component": "kernel",
		"kernel_id": testID,
	} {
		if pod.Labels[key] != want {
			t.Errorf("%s is %q, want %q", key, pod.Labels[key], want)
		}
	}
	if pod.Annotations[AnnotationOwner] != "ann@example.com" {
		t.Errorf("the owner's annotation is %q", pod.Annotations[AnnotationOwner])
	}
	if _, err := build(`{"image": "x", "labels": {"` + LabelOwner + `": "bob"}}`); err == nil {
		t.Error("a kernelspec has set the owner")
	}
}
