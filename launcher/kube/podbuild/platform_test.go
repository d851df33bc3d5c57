package podbuild

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// A pod runs on nodes for which the supervisor's image exists, unless its kernelspec chooses by the same label.
func TestBuild_Platform(t *testing.T) {
	arch := func(value string) string {
		return `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [` +
			`{"matchExpressions": [{"key": "` + value + `", "operator": "In", "values": ["x"]}]},` +
			`{"matchExpressions": [{"key": "b", "operator": "Exists"}]}]}}}`
	}
	for _, tt := range []struct {
		name, ekg  string
		archs      []string
		os, arch   string
		inAffinity int // terms that require one of archs
	}{
		{"unknown", `{"image": "x"}`, nil, "linux", "", 0},
		{"one", `{"image": "x"}`, []string{"amd64"}, "linux", "amd64", 0},
		{"two", `{"image": "x"}`, []string{"amd64", "arm64"}, "linux", "", 1},
		{"two, beside terms", `{"image": "x", "affinity": ` + arch("a") + `}`, []string{"amd64", "arm64"}, "linux", "", 2},
		{"kernelspec's selector", `{"image": "x", "nodeSelector": {"kubernetes.io/arch": "arm64"}}`, []string{"amd64"},
			"linux", "arm64", 0},
		{"kernelspec's affinity", `{"image": "x", "affinity": ` + arch(corev1.LabelArchStable) + `}`, []string{"amd64"},
			"linux", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := testOptions()
			o.Architectures = tt.archs
			pod, err := Build(o, launcher.Request{ID: testID, Spec: specOf(tt.ekg)}, testRecord("test"))
			if err != nil {
				t.Fatal(err)
			}
			sel := pod.Spec.NodeSelector
			if sel[corev1.LabelOSStable] != tt.os || sel[corev1.LabelArchStable] != tt.arch {
				t.Errorf("the node selector is %v", sel)
			}
			n := 0
			if a := pod.Spec.Affinity; a != nil {
				for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
					if last := term.MatchExpressions[len(term.MatchExpressions)-1]; last.Key == corev1.LabelArchStable &&
						slices.Equal(last.Values, tt.archs) {
						n++
					}
				}
			}
			if n != tt.inAffinity {
				t.Errorf("%d terms of the affinity require %v: %+v", n, tt.archs, pod.Spec.Affinity)
			}
		})
	}
}
