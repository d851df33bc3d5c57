package podbuild

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

const costPolicy = `
labels: {team: "{group}", example.com/owner: "{owner}", what: "{spec}_{flavor}", where: "{namespace}", fixed: lab,
  app: lab}
labelGroups: [team-*]
`

// The policy labels pods with what is known of a kernel, beside the labels of the kernelspec. It may replace those of
// Enterprise Gateway. A restart labels the next pod the same.
func TestBuild_CostLabels(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, costPolicy)
	spec := specOf(`{"image": "x", "labels": {"mine": "stays"}}`)
	own := []string{"team", "example.com/owner", "what", "where", "fixed", "app", "mine", "component"}
	for _, tt := range []struct {
		name string
		req  launcher.Request
		want string
	}{
		{"all", launcher.Request{Owner: "ann@example.org", OwnerGroups: []string{"x", "team-b", "team-a"},
			Flavor: &flavor.Flavor{Name: "none", None: true}},
			"team-a ann-example.org-438c4c7afe test_none kernels lab lab stays kernel"},
		{"no users", launcher.Request{}, "   kernels lab lab stays kernel"},
		{"no such group", launcher.Request{Owner: "ann", OwnerGroups: []string{"x"}}, " ann  kernels lab lab stays kernel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.req.ID, tt.req.Spec = testID, spec
			rec := testRecord("test")
			rec.Owner = tt.req.Owner
			for _, when := range []string{"first", "next"} {
				pod, err := Build(o, tt.req, rec)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, key := range own {
					got = append(got, pod.Labels[key])
				}
				if got := strings.Join(got, " "); got != tt.want {
					t.Errorf("the %s pod: got %q, want %q", when, got, tt.want)
				}
				if strings.Contains(pod.Annotations[annotationRequest], "team-b") {
					t.Error("the pod records groups that no label names")
				}
				if tt.req, err = ReadRequest(pod, rec); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A kernelspec cannot set what the policy sets, in either way.
func TestExtension_CostLabels(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, costPolicy)
	for ekg, want := range map[string]string{
		`{"image": "x", "labels": {"team": "other"}}`:                            "metadata.ekg.labels.team",
		`{"image": "x", "pod": {"metadata": {"labels": {"team": "other"}}}}`:     "metadata.ekg.pod.metadata.labels.team",
		`{"image": "x", "labels": {"t": "x"}, "annotations": {"team": "other"}}`: "",
	} {
		got := ""
		for _, p := range o.Check(nil)(specOf(ekg)) {
			got = p.Key
			if p.Message != "is set by the operator's policy" {
				t.Errorf("got %s", p.Message)
			}
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", ekg, got, want)
		}
	}
}

// Each text has a valid value of its own, from which a person can read the text.
func TestSafeLabelValue(t *testing.T) {
	for text, want := range map[string]string{
		"ann": "ann", "Ann.Lee_2": "Ann.Lee_2", "": "", "a/b c": "a-b-c-0af99a6091", "-x": "x-a420962426",
		"ann-0123456789": "ann-0123456789-8ab108c94b", "ä": "x-33e6d73fee",
	} {
		if got := safeLabelValue(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-c._-]{0,80}`),
			rapid.StringMatching(`[ab]-[0-9a-f]{10}`)).Draw(t, "text")
		other := rapid.OneOf(rapid.String(), rapid.Just(safeLabelValue(text))).Draw(t, "other")
		got := safeLabelValue(text)
		if len(validation.IsValidLabelValue(got)) > 0 || (got == "") != (text == "") {
			t.Fatalf("%q has the value %q", text, got)
		}
		if text != other && got != text && got == safeLabelValue(other) {
			t.Fatalf("%q and %q have the same value %q", text, other, got)
		}
	})
}
