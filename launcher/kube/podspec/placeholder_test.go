package podspec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// The Deployment is equal to the reviewed file. Flavors without placeholders have none.
func TestPlaceholders_Golden(t *testing.T) {
	o := testOptions()
	o.Architectures = []string{"amd64"}
	o.SupervisorPullSecrets = []string{"registry"}
	o.PlaceholderClass = "ekg-placeholder"
	sets, left := Placeholders(o, []flavor.Flavor{
		{Name: "t4", GPU: &flavor.Devices{}},
		{Name: "a100-10g", MIG: &flavor.MIG{Profile: "1g.10gb"}, Placeholders: 2, RuntimeClass: "nvidia",
			NodeSelector: map[string]string{"gpu": "a100"},
			Tolerations:  []flavor.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}}},
	}, nil)
	if len(sets) != 1 || len(left) != 0 {
		t.Fatalf("%d Deployments, left out: %v", len(sets), left)
	}
	golden(t, filepath.Join("placeholders", "deployment.yaml"), sets[0], &appsv1.Deployment{})
}

// The Deployment of a kernelspec is equal to the reviewed file: its pods ask for what the pod of a kernel asks for,
// with the supervisor's part, on the same nodes. The kernelspec's flavor counts. What only a kernel needs is absent.
func TestPlaceholders_Kernelspec(t *testing.T) {
	o := testOptions()
	o.Architectures = []string{"amd64"}
	o.PlaceholderClass = "ekg-placeholder"
	t4 := &flavor.Flavor{Name: "t4", GPU: &flavor.Devices{Count: 2}, NodeSelector: map[string]string{"gpu": "t4"},
		Placeholders: 1}
	sets, left := Placeholders(o, []flavor.Flavor{*t4}, []Room{{Count: 3, Start: startOf("torch", `{"image": "torch:2",
		"placeholders": 3, "labels": {"team": "a"}, "priorityClassName": "", "schedulerName": "bins",
		"resources": {"limits": {"cpu": "4", "memory": "16Gi", "amd.com/gpu": "1"}, "requests": {"cpu": "2"}},
		"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
		"containers": [{"name": "side", "image": "s", "resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}],
		"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference":
			{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}}]}}}`, t4)}})
	if len(sets) != 2 || len(left) != 0 {
		t.Fatalf("%d Deployments, left out: %v", len(sets), left)
	}
	if sets[1].Name != "ekg-placeholder-t4" || *sets[1].Spec.Replicas != 1 {
		t.Errorf("the flavor has %s with %d", sets[1].Name, *sets[1].Spec.Replicas)
	}
	golden(t, filepath.Join("placeholders", "kernelspec.yaml"), sets[0], &appsv1.Deployment{})
}

// A kernelspec whose pods have resource claims, or cannot be built, has no placeholders. Names that Kubernetes does not
// accept become others, each its own.
func TestPlaceholders_LeftOut(t *testing.T) {
	room := func(name, ekg string, f *flavor.Flavor) Room { return Room{Start: startOf(name, ekg, f), Count: 1} }
	claim := &flavor.Flavor{Name: "claim", DRA: &flavor.DRA{Template: "t"}}
	long := strings.Repeat("n", 60)
	sets, left := Placeholders(testOptions(), nil, []Room{
		room("a", `{"image": "x", "flavor": "claim"}`, claim),
		room("b", `{}`, nil),
		room("c_d", `{"image": "x"}`, nil),
		room("-c", `{"image": "x"}`, nil),
		room(long, `{"image": "x"}`, nil),
		room(long+"n", `{"image": "x"}`, nil),
	})
	if len(left) != 2 || left[0] != "kernelspec a: placeholders: "+flavor.NoClaimsMoved ||
		!strings.HasPrefix(left[1], "kernelspec b: ") {
		t.Errorf("left out: %q", left)
	}
	names := map[string]bool{}
	for _, s := range sets {
		names[s.Name] = true
		if p := validation.IsDNS1123Subdomain(s.Name); len(p) > 0 {
			t.Errorf("%s: %v", s.Name, p)
		}
		for key, value := range s.Spec.Template.Labels {
			if p := validation.IsValidLabelValue(value); len(p) > 0 {
				t.Errorf("%s=%s: %v", key, value, p)
			}
		}
	}
	if len(names) != 4 {
		t.Errorf("the names are %v", names)
	}
}

// A kernelspec that asks for a resource claim by itself and wants placeholders is rejected, with the line. A flavor
// replaces the claim.
// TestCheck_Flavors: with the operator's flavors, the check names those that do not exist, and builds the pods of
// kernelspecs that name a flavor.
func TestCheck_Flavors(t *testing.T) {
	o := testOptions()
	flavors := map[string]flavor.Flavor{
		"cpu":   {Name: "cpu", None: true},
		"t4":    {Name: "t4", GPU: &flavor.Devices{}},
		"claim": {Name: "claim", DRA: &flavor.DRA{Request: flavor.Request{DeviceClass: "gpu.nvidia.com"}}},
	}
	for name, tt := range map[string]struct{ ekg, want string }{
		"none":     {`"warm": 1`, ""},
		"known":    {`"flavor": "t4", "profiles": [{"name": "a", "flavor": "claim"}]`, ""},
		"unknown":  {`"flavor": "t5"`, `metadata.ekg.flavor: "t5" is not in the file of flavors, which has: claim, cpu, t4`},
		"profiles": {`"profiles": [{"name": "a", "flavor": "t5"}]`, `metadata.ekg.profiles[0].flavor: "t5" is not in`},
		"warm":     {`"warm": 1, "flavor": "cpu"`, ""},
		"warm GPU": {`"warm": 1, "flavor": "t4"`, "warning: metadata.ekg.warm: has no effect: " + noWarmGPUs},
		"claim":    {`"warm": 1, "flavor": "claim"`, "metadata.ekg.warm: has no effect: its kernels get a resource claim"},
		"once":     {`"warm": 1, "flavor": "t5"`, `metadata.ekg.flavor: "t5" is not in`},
		"room":     {`"placeholders": 1, "flavor": "t4"`, ""},
		"no room": {`"placeholders": 1, "flavor": "claim"`,
			"warning: metadata.ekg.placeholders: has no effect: " + flavor.NoClaimsMoved},
	} {
		t.Run(name, func(t *testing.T) {
			problems := o.CheckWith(flavors)(warmSpec(`{"image": "x", ` + tt.ekg + `}`))
			text := ""
			if len(problems) > 0 {
				text = problems[0].String()
			}
			if len(problems) > 1 || (text != "") != (tt.want != "") || !strings.Contains(text, tt.want) {
				t.Errorf("got %v", problems)
			}
		})
	}
	if problems := o.CheckWith(map[string]flavor.Flavor{})(warmSpec(`{"image": "x", "flavor": "t4"}`)); len(problems) !=
		1 || !strings.Contains(problems[0].Message, "which has: nothing") {
		t.Errorf("an empty file: %v", problems)
	}
}

func TestCheck_Placeholders(t *testing.T) {
	check := func(more string) []kernelspecs.Problem {
		dir := filepath.Join(t.TempDir(), "spec")
		text := "{\"argv\": [\"x\", \"{connection_file}\"], \"display_name\": \"x\", \"language\": \"x\",\n" +
			"\"metadata\": {\"ekg\": {\"image\": \"x\",\n\"resourceClaims\": [{\"name\": \"g\", " +
			"\"resourceClaimTemplateName\": \"t\"}],\n\"placeholders\": 1" + more + "}}}"
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return kernelspecs.Check(dir, "", testOptions().Check())
	}
	p := check("")
	if len(p) != 1 || p[0].Line != 4 || p[0].Key != "metadata.ekg.placeholders" || p[0].Message != flavor.NoClaimsMoved ||
		p[0].Warning {
		t.Errorf("got %+v", p)
	}
	if p := check(`, "flavor": "t4"`); len(p) != 0 {
		t.Errorf("with a flavor: %+v", p)
	}
}
