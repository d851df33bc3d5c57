//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// e2eFlavors has a flavor of each kind that needs no scheduler of its own. DEVICECLASS is replaced.
const e2eFlavors = `flavors:
- {name: whole, label: A whole GPU, gpu: {}}
- {name: slice, mig: {profile: 1g.10gb}, units: 0.125}
- {name: quarter, replica: {replicas: 4}}
- {name: gib4, gpuMem: {units: 4, perGPU: 14}}
- {name: hami, hami: {memoryMiB: 3000, corePercent: 30}, units: 0.1}
- {name: amd, resource: {name: amd.com/gpu}}
- {name: cpu, none: true}
- {name: claim, dra: {deviceClass: DEVICECLASS, selectors: ['device.driver == "devcluster"']}}
- {name: choice, dra: {firstAvailable: [{deviceClass: DEVICECLASS, count: 2}, {deviceClass: DEVICECLASS}]}}
`

// offers is held by the test for which the node offers resources.
var offers sync.Mutex

// offer lets the node offer resources that it does not have, until the test has ended. Only one test at a time may do
// so: another one waits here.
func (c *cluster) offer(t *testing.T, resources map[string]string) {
	t.Helper()
	c.needsOwn(t, "its node offers resources that it does not have")
	offers.Lock()
	t.Cleanup(offers.Unlock)
	node := strings.TrimSpace(c.kubectl(t, "", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"))
	patch := func(amounts map[string]any) {
		text, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": amounts, "allocatable": amounts}})
		if err != nil {
			t.Fatal(err)
		}
		c.kubectl(t, "", "patch", "node", node, "--subresource=status", "--type=merge", "-p", string(text))
	}
	offered, gone := map[string]any{}, map[string]any{}
	for name, amount := range resources {
		offered[name], gone[name] = amount, nil
	}
	patch(offered)
	t.Cleanup(func() { patch(gone) })
}

// flavored starts a kernel with a flavor, and returns its model.
func (k *inCluster) flavored(flavor string) model {
	k.t.Helper()
	var m model
	k.want(201, "POST", "/api/kernels", fmt.Sprintf(`{"name": "pod", "flavor": %q}`, flavor), &m)
	return m
}

// TestE2E_KubeFlavors: kernels with flavors of each kind run, wait and are limited by what their flavor asks for.
func TestE2E_KubeFlavors(t *testing.T) {
	t.Parallel() // it mostly waits
	file := filepath.Join(t.TempDir(), "flavors.yaml")
	k := newKubeGateway(t, "--start-wait", "1s", "--flavors", file, "--max-gpus-per-user", "3")
	k.cluster.offer(t, map[string]string{"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu.shared": "1",
		"aliyun.com/gpu-mem": "14", "aliyun.com/gpu-count": "1",
		"nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "100", "amd.com/gpu": "1"})
	class := k.namespace
	k.cluster.kubectl(t, fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
		"metadata": {"name": %q}}`, class), "create", "-f", "-")
	t.Cleanup(func() { k.cluster.kubectl(t, "", "delete", "deviceclass", class) })
	text := strings.ReplaceAll(e2eFlavors, "DEVICECLASS", class)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k.start()

	// Three kernels of 4 GiB fit on a GPU that counts as 14. The fourth waits for memory, and starts when there is some.
	var shares []string
	for range 3 {
		m := k.flavored("gib4")
		k.state(m.ID, "idle", 60*time.Second)
		shares = append(shares, m.ID)
	}
	k.showsShares(shares)
	fourth := k.flavored("gib4")
	k.waits(fourth.ID, "aliyun.com/gpu-mem")
	k.waits(fourth.ID, "; 3 of at most 3 kernels with the flavor gib4 run; ")
	k.want(204, "DELETE", "/api/kernels/"+shares[0], "", nil)
	k.state(fourth.ID, "idle", 60*time.Second)

	// These kernels count as 3 * 0.285 + 0.125 + 0.25 + 1 GPUs. Another whole one is over the limit of 3.
	for _, name := range []string{"slice", "quarter", "amd", "cpu"} {
		k.state(k.flavored(name).ID, "idle", 60*time.Second)
	}
	status, b := k.ask("POST", "/api/kernels", `{"name": "pod", "flavor": "whole"}`)
	if want := "it asks for 1 GPU, you have 2.23 GPUs, and you may have 3 GPUs"; status != 403 ||
		!strings.Contains(string(b), want) {
		t.Errorf("%d %s, want %q", status, b, want)
	}
	k.deleteAll()

	// The same by the kernelspec of an unmodified launcher. A restart keeps the flavor.
	whole := k.kernel("pod--whole")
	k.state(whole, "idle", 60*time.Second)
	k.dial(t, whole, "s", true).says("import os; print(os.environ['KERNEL_FLAVOR'])", "whole\n")
	k.state(k.flavored("hami").ID, "idle", 60*time.Second)
	for _, p := range k.podsOf(whole) {
		if p.Metadata.Labels["elastic-kernel-gateway.github.io/flavor"] != "whole" {
			t.Errorf("labels %v", p.Metadata.Labels)
		}
	}
	k.deleteAll()

	// No driver offers devices: the API server has taken the templates, and the kernels wait.
	k.waits(k.flavored("claim").ID, "no device is free")
	k.waits(k.flavored("choice").ID, "no device is free")
	k.want(400, "POST", "/api/kernels", `{"flavor": "huge"}`, nil)
	k.deleteAll()
}

// showsShares checks `ekg top` while three kernels have 4 of 14 GiB each. The test gives the kernels their GPU, as
// gpushare's scheduler would.
func (k *inCluster) showsShares(ids []string) {
	k.t.Helper()
	want := []string{"GPU0(Allocated)\n", "Allocated :  12 (85%)\nTotal     :  14\n",
		"\nAllocated/Total aliyun.com/gpu-mem In Cluster:\n12/14 (GiB) (85%)\n"}
	for _, id := range ids {
		k.cluster.kubectl(k.t, "", "annotate", "pod", "-n", k.namespace, id+"-1", "ALIYUN_COM_GPU_MEM_IDX=0")
		want = append(want, fmt.Sprintf("\n%s-1   %s   4\n", id, k.namespace)) // those of one second are ordered by name
	}
	top := func(args ...string) string {
		code, out, errs := k.prints(append([]string{"top"}, args...)...)
		if code != 0 || errs != "" {
			k.t.Fatalf("ekg top %v: %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	k.eventually(30*time.Second, "the shares are shown", func() error {
		out := top("nodes", "-s", "-d")
		if !strings.HasPrefix(out, "NAME:       node1\nIPADDRESS:  ") {
			return fmt.Errorf("it prints\n%s", out)
		}
		for _, part := range want {
			if !strings.Contains(out, part) {
				return fmt.Errorf("it prints\n%s\nwithout %q", out, part)
			}
		}
		return nil
	})
	if out := top("nodes", "-s"); !strings.Contains(out, "   12/14\n") {
		k.t.Errorf("it prints\n%s", out)
	}
	if out := top("kernels", "-o", "name"); strings.Count(out, "\n") != len(ids) {
		k.t.Errorf("it prints\n%s", out)
	}
	k.t.Log(top("nodes") + top("users"))
}
