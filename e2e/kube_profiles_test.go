//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// TestE2E_KubeProfiles: the profiles of a kernelspec are entries of the list. A kernel with one has its amounts and
// variables, also after its pod has died, the gateway has started again and the kernelspec has lost the profile.
func TestE2E_KubeProfiles(t *testing.T) {
	t.Parallel() // it mostly waits
	k := newKubeGateway(t, "--start-wait", "10s")
	ekg := map[string]any{
		"image": "localhost/kernel-py:dev",
		"env":   []any{map[string]any{"name": "SIZE", "value": "small"}},
		"profiles": []any{map[string]any{"name": "big", "displayName": "Big",
			"memory": "300Mi", "cpu": "20m", "env": map[string]any{"SIZE": "big"}}},
	}
	k.podSpec("sized", ekg)
	k.start()
	var list struct {
		Kernelspecs map[string]struct {
			Spec struct {
				DisplayName string `json:"display_name"`
			}
		}
	}
	k.want(200, "GET", "/api/kernelspecs", "", &list)
	if small, big := list.Kernelspecs["sized"].Spec.DisplayName, list.Kernelspecs["sized--big"].Spec.DisplayName; small ==
		"" || big != small+" (Big)" {
		t.Errorf("the entries are %q and %q", small, big)
	}
	var byVariable model
	k.want(201, "POST", "/api/kernels", `{"name": "sized", "env": {"KERNEL_PROFILE": "big"}}`, &byVariable)
	small, big := k.kernel("sized"), k.kernel("sized--big")
	shows := func(id, name, size, pod string) {
		t.Helper()
		if m := k.state(id, "idle", time.Minute); m.Name != name {
			t.Errorf("the kernel's name is %q, want %q", m.Name, name)
		}
		k.dial(t, id, "s", true).says("import os\nprint(os.environ['SIZE'])", size+"\n")
		got := k.cluster.kubectl(t, "", "-n", k.namespace, "get", "pod", id+pod, "-o",
			"jsonpath={.spec.containers[1].resources.limits.memory}")
		want := ""
		if size == "big" {
			want = "300Mi"
		}
		if got != want {
			t.Errorf("the pod of %s has %q, want %q", name, got, want)
		}
	}
	shows(small, "sized", "small", "-1")
	shows(big, "sized--big", "big", "-1")
	shows(byVariable.ID, "sized--big", "big", "-1")

	k.kill()
	delete(ekg, "profiles")
	k.podSpec("sized", ekg)
	k.start()
	k.cluster.kubectl(t, "", "-n", k.namespace, "delete", "pod", big+"-1")
	k.state(big, "dead", time.Minute)
	k.want(200, "POST", fmt.Sprintf("/api/kernels/%s/restart", big), "", nil)
	shows(big, "sized", "big", "-2")
	k.deleteAll()
}
