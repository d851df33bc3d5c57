package client

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/gpus"
)

// topView is an answer of GET /api/gpus to an admin.
const topView = `{"totals": [
  {"resource": "aliyun.com/gpu-mem", "unit": "GiB", "total": 14, "held": 12, "measured": 8, "busy": 4, "unhealthy": 0},
  {"resource": "nvidia.com/gpu", "unit": "GPU", "total": 7, "held": 3, "measured": 0, "busy": 0, "unhealthy": 1,
   "warm": 2}],
 "ahead": [{"kind": "warm", "kernelspec": "torch", "flavor": "a100", "wanted": 2, "ready": 2, "waiting": 0},
  {"kind": "warm", "kernelspec": "jax", "flavor": "a100", "wanted": 3, "ready": 1, "waiting": 2,
   "reason": "no\u001b node can take it"},
  {"kind": "warm", "kernelspec": "r", "wanted": 1, "ready": 0, "waiting": 0, "reason": "it is not there"}],
 "nodes": [
  {"name": "cn-shanghai.192.168.0.6", "address": "192.168.0.6", "status": "Ready", "pools": [
   {"resource": "aliyun.com/gpu-mem", "model": "Tesla-T4", "unit": "GiB", "total": 14, "held": 12, "measured": 8,
    "busy": 4, "unhealthy": 0, "others": 0, "devices": [{"index": 0, "total": 14, "held": 12}], "holders": [
     {"kernel": "0a1b2c3d-0000-4000-8000-00000000000a", "owner": "ann", "kernelspec": "python3", "flavor": "gib4",
      "namespace": "ekg-kernels", "pod": "a-1", "amount": 4, "devices": {"0": 4}, "measured": 4, "busy": 4,
      "since": "2026-01-02T14:04:05.000000Z"},
     {"kernel": "0a1b2c3d-0000-4000-8000-00000000000b", "owner": "bob", "kernelspec": "python3", "flavor": "gib4",
      "namespace": "ekg-kernels", "pod": "b-1", "amount": 4, "devices": {"0": 4}, "measured": 4, "busy": 0,
      "since": "2026-01-02T15:00:05.000000Z", "idle_since": "2026-01-02T15:03:05.000000Z", "ending": true},
     {"namespace": "other", "pod": "job\u001b[31m", "amount": 4, "devices": {"0": 4}, "measured": 0, "busy": 0,
      "since": "2026-01-01T15:04:05.000000Z"}]}]},
  {"name": "gpu-2", "status": "Ready,SchedulingDisabled", "pools": [
   {"resource": "nvidia.com/gpu", "unit": "GPU", "total": 7, "held": 3, "measured": 0, "busy": 0, "unhealthy": 1,
    "others": 3, "warm": 2, "holders": []}]}],
 "missing": ["The gateway does not see other pods."]}`

// TestPrintNodes compares whole outputs with testdata/top.
func TestPrintNodes(t *testing.T) {
	var view gpus.View
	if err := json.Unmarshal([]byte(topView), &view); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		format          outputFormat
		shares, details bool
		view            gpus.View
	}{
		"nodes":          {formatTable, false, false, view},
		"nodes-wide":     {formatWide, false, false, view},
		"nodes-details":  {formatTable, false, true, view},
		"shares":         {formatTable, true, false, view},
		"shares-details": {formatTable, true, true, view},
		"nodes-name":     {formatName, false, false, view},
		"nodes-yaml":     {formatYAML, false, false, view},
		"none":           {formatTable, false, false, gpus.View{}},
		"none-shared":    {formatTable, true, false, gpus.View{}},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := c.format.printNodes(&b, c.view, c.shares, c.details, now); err != nil {
				t.Fatal(err)
			}
			wantTop(t, name, b.String())
		})
	}
}

// wantTop compares an output with a file of testdata/top. EKG_GOLDEN=1 writes the file instead.
func wantTop(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "top", name+".txt")
	if os.Getenv("EKG_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != got {
		t.Errorf("got\n%s\nwant\n%s\n%v", got, want, err)
	}
}

// TestPrintGPUKernels compares the outputs of `ekg top kernels` and `ekg top users` with testdata/top.
func TestPrintGPUKernels(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	var all []gpuKernel
	for _, text := range []string{
		`{"id": "0a1b2c3d-0000-4000-8000-00000000000a", "name": "python3", "owner": "ann", "execution_state": "busy", "gpus": 2,
		  "gpu": [{"model": "Tesla T4", "memory_total": 17179869184, "memory_used": 4294967296, "utilization": 0.5,
		           "busy_since": "2026-01-02T15:00:00.000000Z"},
		          {"model": "Tesla T4", "memory_total": 17179869184, "memory_used": 0, "utilization": 0,
		           "idle_since": "2026-01-02T15:00:00.000000Z"}]}`,
		`{"id": "0b1b2c3d-0000-4000-8000-00000000000b", "name": "r", "owner": "bob", "execution_state": "idle", "gpus": 0.25,
		  "flavor": "quarter", "gpu": [{"utilization": null, "idle_since": "2026-01-02T14:04:05.000000Z"}]}`,
		`{"id": "0c1b2c3d-0000-4000-8000-00000000000c", "name": "r", "owner": "bob", "execution_state": "starting", "gpus": 1}`,
		`{"id": "0d1b2c3d-0000-4000-8000-00000000000d", "name": "r", "owner": "bob", "execution_state": "idle", "gpus": 1,
		  "parked": {"state": "parked", "since": "2026-01-02T14:52:05.000000Z"}}`,
		`{"id": "0e1b2c3d-0000-4000-8000-00000000000e", "name": "r", "owner": "bob", "execution_state": "idle", "gpus": 1,
		  "parked": {"state": "waking", "since": "2026-01-02T15:04:00.000000Z", "reason": "another kernel has it"}}`,
		`{"id": "0f1b2c3d-0000-4000-8000-00000000000f", "name": "r", "owner": "eve", "execution_state": "idle", "gpus": 1,
		  "parked": {"state": "failed", "since": "2026-01-02T15:04:00.000000Z", "reason": "several processes use CUDA"}}`,
	} {
		var row kernelRow
		if err := json.Unmarshal([]byte(text), &row); err != nil {
			t.Fatal(err)
		}
		var model struct {
			GPU []gpuSample `json:"gpu"`
		}
		if err := json.Unmarshal([]byte(text), &model); err != nil {
			t.Fatal(err)
		}
		all = append(all, gpuKernel{row, model.GPU, row.State == "starting"})
	}
	for name, format := range map[string]outputFormat{"kernels": formatTable, "kernels-wide": formatWide,
		"kernels-name": formatName} {
		var b strings.Builder
		if err := format.printGPUKernels(&b, all, now); err != nil {
			t.Fatal(err)
		}
		wantTop(t, name, b.String())
	}
	for name, format := range map[string]outputFormat{"users": formatTable, "users-yaml": formatYAML} {
		var b strings.Builder
		if err := format.printUsers(&b, byUser(all)); err != nil {
			t.Fatal(err)
		}
		wantTop(t, name, b.String())
	}
}

// TestShareDetails_Places: what others hold stands under the GPU on which it is.
func TestShareDetails_Places(t *testing.T) {
	pool := gpus.Pool{Unit: "GiB", Amounts: gpus.Amounts{Total: 28, Held: 12}, Others: 8,
		Devices: []gpus.Device{{Index: 0, Total: 14, Held: 4}, {Index: 1, Total: 14, Held: 8}},
		Holders: []gpus.Holder{{Pod: "mine", Amount: 4, Devices: map[string]float64{"0": 4}}}}
	unknown := pool
	unknown.Devices = []gpus.Device{{Index: 0, Total: 14, Held: 4}, {Index: 1, Total: 14}}
	for want, p := range map[string]gpus.Pool{"(others) - 0 8": pool, "(others) - ? ?": unknown} {
		var b strings.Builder
		shareDetails(&b, gpus.View{Nodes: []gpus.Node{{Name: "n", Pools: []gpus.Pool{p}}}})
		if got := strings.Join(strings.Fields(b.String()), " "); !strings.Contains(got, " mine - 4 0 "+want+" Allocated") {
			t.Errorf("%s is not in\n%s", want, b.String())
		}
	}
}
