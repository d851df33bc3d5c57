package podspec

import (
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// The Deployment is equal to the reviewed file. Flavors without placeholders have none.
func TestPlaceholders_Golden(t *testing.T) {
	o := testOptions()
	o.Architectures = []string{"amd64"}
	o.SupervisorPullSecrets = []string{"registry"}
	o.PlaceholderClass = "ekg-placeholder"
	sets := Placeholders(o, []flavor.Flavor{
		{Name: "t4", GPU: &flavor.Devices{}},
		{Name: "a100-10g", MIG: &flavor.MIG{Profile: "1g.10gb"}, Placeholders: 2, RuntimeClass: "nvidia",
			NodeSelector: map[string]string{"gpu": "a100"},
			Tolerations:  []flavor.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists", Effect: "NoSchedule"}}},
	})
	if len(sets) != 1 {
		t.Fatalf("%d Deployments", len(sets))
	}
	golden(t, filepath.Join("placeholders", "deployment.yaml"), sets[0], &appsv1.Deployment{})
}
