//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestE2E_KubeWarm: pods that were started ahead become kernels of their owners, with variables, also after a restart.
// They are no kernels before. The time from the POST to the first reply is below 150 ms in the middle of five starts,
// with programs as they are released (EKG_E2E_BIN).
func TestE2E_KubeWarm(t *testing.T) {
	t.Parallel() // it mostly waits
	metrics := freeAddress(t, "127.0.0.1")
	k := newKubeGateway(t, "--metrics-listen", metrics)
	k.podSpec("warm", map[string]any{"image": "localhost/kernel-py:dev", "warm": 2})
	k.start()
	var took []time.Duration
	for i := range 5 {
		k.warmed(metrics, "warm", 2)
		k.eventually(60*time.Second, "both pods are ready", func() error {
			out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "pods",
				"-l", "app.kubernetes.io/managed-by=ekg-warm", "-o",
				"jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}")
			if err == nil && strings.Count(out, "True") != 2 {
				err = fmt.Errorf("they are %q", out)
			}
			return err
		})
		var listed []model
		if k.want(200, "GET", "/api/kernels", "", &listed); len(listed) != i {
			t.Fatalf("%d kernels are listed: %+v", len(listed), listed)
		}
		id, c, d := k.firstReply(t, fmt.Sprintf(`{"name": "warm", "env": {"KERNEL_NOTE": "number %d"}}`, i))
		took = append(took, d)
		look, want := "import os; print(os.environ['KERNEL_NOTE'])", fmt.Sprintf("number %d\n", i)
		c.says(look, want)
		if i == 0 {
			k.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
			k.state(id, "idle", 30*time.Second)
			c.says(look, want)
		}
	}
	slices.Sort(took)
	t.Logf("POST to the first reply: %v", took)
	if got := warmKernels(t, metrics, "ekg_warm_claims_total", `result="taken",spec="warm"`); got != "5" {
		t.Errorf("%q starts took a warm kernel", got)
	}
	if released := os.Getenv("EKG_E2E_BIN") != ""; released && took[2] > 150*time.Millisecond {
		t.Errorf("the middle one is %v", took[2])
	}
	k.podSpec("warm", map[string]any{"image": "localhost/kernel-py:dev", "warm": 0})
	k.eventually(60*time.Second, "no warm pod is left", func() error {
		out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "pods",
			"-l", "app.kubernetes.io/managed-by=ekg-warm", "-o", "name")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("there are %s", out)
		}
		return err
	})
	k.deleteAll()
}
