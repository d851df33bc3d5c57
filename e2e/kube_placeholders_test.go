//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestE2E_KubePlaceholders: a pod of low priority keeps the only simulated GPU free. A kernel takes its place, and says
// nothing of it to its owner. The next placeholder waits until the kernel has ended. All go with the flavor's number.
// The same holds for the placeholder of a kernelspec that asks for the GPU by itself.
func TestE2E_KubePlaceholders(t *testing.T) {
	const pool = "spare.example/gpu"
	file := filepath.Join(t.TempDir(), "flavors.yaml")
	write := func(number int) {
		t.Helper()
		text := fmt.Sprintf("flavors: [{name: kept, resource: {name: %s}, placeholders: %d}]\n", pool, number)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	k := newKubeGateway(t, "--start-wait", "1s", "--flavors", file, "--watch-gpus")
	class := k.namespace
	k.args = append(k.args, "--placeholder-class", class)
	k.cluster.offer(t, map[string]string{pool: "1"})
	k.cluster.kubectl(t, fmt.Sprintf(`{"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
		"metadata": {"name": %q}, "value": -10, "preemptionPolicy": "Never"}`, class), "create", "-f", "-")
	t.Cleanup(func() { k.cluster.kubectl(t, "", "delete", "priorityclass", class) })
	k.cluster.kubectl(t, "", "label", "namespace", k.namespace, "--overwrite",
		"pod-security.kubernetes.io/enforce=baseline", "pod-security.kubernetes.io/warn=restricted")
	k.start()
	placeholders := func(want string) {
		t.Helper()
		k.eventually(60*time.Second, "placeholders are "+want, func() error {
			out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "pods",
				"-l", "app.kubernetes.io/component=placeholder",
				"-o", `jsonpath={range .items[*]}{.status.phase}{.metadata.deletionTimestamp} {end}`)
			if got := strings.TrimSpace(out); err == nil && got != want {
				err = fmt.Errorf("they are %q", got)
			}
			return err
		})
	}
	view := func(held, kept float64) {
		t.Helper()
		k.eventually(60*time.Second, fmt.Sprintf("%v held and %v kept", held, kept), func() error {
			var all struct {
				Nodes []struct {
					Pools []struct {
						Resource                          string
						Total, Held, Placeholders, Others float64
						Holders                           []json.RawMessage
					}
				}
			}
			k.want(200, "GET", "/api/gpus", "", &all)
			for _, n := range all.Nodes {
				for _, p := range n.Pools {
					if p.Resource == pool && p.Total == 1 && p.Held == held && p.Placeholders == kept &&
						float64(len(p.Holders)) == held && p.Others == 0 {
						return nil
					}
				}
			}
			return fmt.Errorf("%+v", all)
		})
	}
	ahead := func(ready, waiting int, reason string) {
		t.Helper()
		k.eventually(60*time.Second, fmt.Sprintf("%d ready, %d waiting", ready, waiting), func() error {
			var all struct {
				Ahead []struct {
					Kind, Flavor, Reason   string
					Wanted, Ready, Waiting int
				}
			}
			k.want(200, "GET", "/api/gpus", "", &all)
			if len(all.Ahead) != 1 || all.Ahead[0].Kind != "placeholder" || all.Ahead[0].Flavor != "kept" ||
				all.Ahead[0].Wanted != 1 || all.Ahead[0].Ready != ready || all.Ahead[0].Waiting != waiting ||
				!strings.Contains(all.Ahead[0].Reason, reason) {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	placeholders("Running")
	view(0, 1)
	ahead(1, 0, "")
	m := k.flavored("kept")
	k.eventually(90*time.Second, "the kernel runs", func() error {
		k.want(200, "GET", "/api/kernels/"+m.ID, "", &m)
		reason := strings.ToLower(m.Reason)
		if strings.Contains(reason, "placeholder") || strings.Contains(reason, "preempt") {
			t.Errorf("its owner reads %q", m.Reason)
		}
		if m.ExecutionState != "idle" {
			return fmt.Errorf("it is %+v", m)
		}
		return nil
	})
	placeholders("Pending")
	view(1, 0)
	ahead(0, 1, "no GPU is free")
	if code, out, errs := k.prints("top", "nodes"); code != 0 ||
		!strings.Contains(out, "1 of 1 wait for a node: no node") {
		t.Errorf("ekg top nodes: %d\n%s%s", code, out, errs)
	}
	k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	placeholders("Running")
	view(0, 1)
	write(0)
	placeholders("")
	spec := func(number int) {
		k.podSpec("roomy", map[string]any{"image": "localhost/kernel-py:dev", "placeholders": number,
			"resources": map[string]any{"limits": map[string]any{pool: "1"}}})
	}
	spec(1)
	placeholders("Running")
	view(0, 1)
	k.want(201, "POST", "/api/kernels", `{"name": "roomy"}`, &m)
	k.state(m.ID, "idle", 90*time.Second)
	placeholders("Pending")
	view(1, 0)
	k.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	placeholders("Running")
	spec(0)
	placeholders("")
	k.eventually(30*time.Second, "the Deployment is gone", func() error {
		out, err := k.cluster.tryKubectl("", "-n", k.namespace, "get", "deployments", "-o", "name")
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
}
