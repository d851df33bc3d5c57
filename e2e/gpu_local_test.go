//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestE2E_LocalGPU: the second kernel that wants the machine's only GPU waits, with the reason in its model, also while
// gateways end. It starts when the first kernel has been killed while no gateway ran, and runs the cell that waited.
func TestE2E_LocalGPU(t *testing.T) {
	t.Parallel() // it mostly waits
	const oneGPU = `{"name": "python3", "env": {"KERNEL_GPUS": "1"}}`
	const reason = "it waits for a GPU: 1 of 1 are held by other kernels"
	const shows = `import os; print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"))`
	nvml := newFakeNVML(t)
	g := prepare(t, "", "--start-wait", "1s")
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	g.start()
	if status, b := g.ask("POST", "/api/kernels", strings.Replace(oneGPU, `"1"`, `"2"`, 1)); status != 403 ||
		!strings.Contains(string(b), "it asks for 2 GPUs, and this machine has 1") {
		t.Errorf("two GPUs: %d %s", status, b)
	}
	var first, second, third model
	g.want(201, "POST", "/api/kernels", oneGPU, &first)
	g.state(first.ID, "idle", 20*time.Second)
	c := g.dial(t, first.ID, "ann", true)
	c.send("shell", "execute_request", executeRequest(shows, false))
	c.prints("sees GPU-of-tests")

	g.want(201, "POST", "/api/kernels", oneGPU, &second)
	g.want(201, "POST", "/api/kernels", oneGPU, &third)
	if second.ExecutionState != "starting" || second.Reason != reason {
		t.Errorf("the second kernel is %+v", second)
	}
	for sub, want := range map[string]string{"nodes": "   nvidia.com/gpu   1/1", "users": "1         1      "} {
		if code, out, errs := g.prints("top", sub); code != 0 || !strings.Contains(out, want) ||
			sub == "users" && !strings.Contains(out, "   2\n") {
			t.Errorf("ekg top %s: %d\n%s%s", sub, code, out, errs)
		}
	}
	g.want(204, "DELETE", "/api/kernels/"+third.ID, "", nil)
	g.kill()
	var pids struct{ Parent int }
	b, err := os.ReadFile(filepath.Join(g.dir, "state/kernels", first.ID, "process.json"))
	if err == nil {
		err = json.Unmarshal(b, &pids)
	}
	if err != nil || pids.Parent <= 1 {
		t.Fatalf("the first kernel's processes are %s, %v", b, err)
	}
	g.start()
	if m := g.state(second.ID, "starting", time.Second); !strings.HasPrefix(m.Reason, "it waits for a GPU") {
		t.Errorf("the next gateway shows %+v", m)
	}
	c = g.dial(t, second.ID, "bob", true)
	c.send("shell", "execute_request", executeRequest(shows, false))
	if err := syscall.Kill(pids.Parent, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.prints("sees GPU-of-tests")
	g.state(first.ID, "dead", 10*time.Second)
}
