//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
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
			sub == "users" && !strings.Contains(out, "   2         0\n") { // two wait, and none is parked
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

// TestE2E_JobsGiveWay: a job holds the machine's only GPU. It is ended for a notebook that waits, and begins again when
// the notebook's kernel has ended.
func TestE2E_JobsGiveWay(t *testing.T) {
	t.Parallel() // it mostly waits
	nvml := newFakeNVML(t)
	audit := filepath.Join(t.TempDir(), "audit")
	g := prepare(t, "", "--start-wait", "1s", "--audit-log", audit)
	flavors := filepath.Join(g.dir, "flavors.yaml")
	if err := os.WriteFile(flavors, []byte("flavors: [{name: one, gpu: {}, jobsGiveWay: 2s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.args = append(g.args, "--flavors", flavors)
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	g.start()
	saved := filepath.Join(g.dir, "saved")
	id := g.submits(g.notebookFile("gives.ipynb", "saved = ''", "import os, time\nprint('trains', flush=True)\ntry:\n"+
		"    while not os.path.exists(saved):\n        time.sleep(0.1)\nexcept KeyboardInterrupt:\n"+
		"    open(saved, 'w').close()", "print('done with', os.environ['CUDA_VISIBLE_DEVICES'])"),
		"--retries", "1", "--env", "KERNEL_GPUS=1", "-r", "saved", saved)
	first := g.jobIs(id, "trains", 30*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 3 }).Kernel

	var notebook model
	g.want(201, "POST", "/api/kernels", `{"name": "python3", "env": {"KERNEL_FLAVOR": "one"}}`, &notebook)
	if notebook.ExecutionState != "starting" || !strings.Contains(notebook.Reason, "it waits for a GPU") {
		t.Errorf("the notebook's kernel is %+v", notebook)
	}
	g.state(notebook.ID, "idle", 100*time.Second) // the job gives way after its first minute
	if _, err := os.Stat(saved); err != nil {
		t.Errorf("the job could not save: %v", err)
	}
	j := g.jobIs(id, "waits for the GPU", 30*time.Second, func(j job) bool {
		return j.State == "starting" && j.Reason != ""
	})
	if j.Attempt != 2 || j.Kernel == first || !strings.Contains(j.Reason, "it waits for a GPU") {
		t.Errorf("the job is %+v", j)
	}
	if b, err := os.ReadFile(audit); err != nil || strings.Count(string(b), `"give-way"`) != 1 ||
		!strings.Contains(string(b), first) {
		t.Errorf("the audit log is %s, %v", b, err)
	}
	g.want(204, "DELETE", "/api/kernels/"+notebook.ID, "", nil)
	g.jobIs(id, "has ended", time.Minute, func(j job) bool { return j.State == "succeeded" && j.Attempt == 2 })
	if _, logs, _ := g.prints("jobs", "logs", id); logs != "trains\ndone with GPU-of-tests\n" {
		t.Errorf("the outputs are %q", logs)
	}
}

// TestE2E_LocalWarmGPU: a warm kernel holds the machine's GPU. A start takes it, with the GPU. When that kernel has
// ended there is another warm one, which is ended for a kernel that it does not fit, and replaced after that.
func TestE2E_LocalWarmGPU(t *testing.T) {
	t.Parallel() // it mostly waits
	const shows = `import os; print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("KERNEL_NOTE"))`
	nvml, metrics := newFakeNVML(t), freeAddress(t, "127.0.0.1")
	g := prepare(t, "", "--start-wait", "10s", "--metrics-listen", metrics)
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	g.specWith("warm", map[string]any{"env": map[string]string{"KERNEL_GPUS": "1"},
		"metadata": map[string]any{"ekg": map[string]any{"warm": 1}}},
		filepath.Join(g.in.dir, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.start()
	view := func(held, warm float64) {
		t.Helper()
		g.eventually(20*time.Second, "the GPU is held", func() error {
			var all struct {
				Nodes []struct {
					Pools []struct{ Total, Held, Warm float64 }
				}
			}
			g.want(200, "GET", "/api/gpus", "", &all)
			if p := all.Nodes[0].Pools[0]; p.Total != 1 || p.Held != held || p.Warm != warm {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
	g.warmed(metrics, "warm", 1)
	view(0, 1)
	id, c, took := g.firstReply(t, `{"name": "warm", "env": {"KERNEL_NOTE": "hers"}}`)
	t.Logf("POST to the first reply: %v", took)
	c.says(shows, "sees GPU-of-tests hers\n")
	view(1, 0)
	g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
	g.state(id, "idle", 20*time.Second)
	c.says(shows, "sees GPU-of-tests hers\n")
	g.want(204, "DELETE", "/api/kernels/"+id, "", nil)

	g.warmed(metrics, "warm", 1)
	view(0, 1)
	var m model
	g.want(201, "POST", "/api/kernels", `{"name": "python3", "env": {"KERNEL_GPUS": "1"}}`, &m)
	g.state(m.ID, "idle", 20*time.Second)
	g.dial(t, m.ID, "bob", true).says(shows, "sees GPU-of-tests None\n")
	view(1, 0)
	for metric, want := range map[string]string{"ekg_warm_gave_way_total": "1", "ekg_warm_kernels": "0"} {
		g.eventually(20*time.Second, metric+" is "+want, func() error { // the next round of warm kernels counts them
			if got := warmKernels(t, metrics, metric, `spec="warm"`); got != want {
				return fmt.Errorf("it is %q", got)
			}
			return nil
		})
	}
	if got := warmKernels(t, metrics, "ekg_warm_claims_total", `result="taken",spec="warm"`); got != "1" {
		t.Errorf("%q starts took a warm kernel", got)
	}
	g.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
	g.warmed(metrics, "warm", 1)
	g.specWith("warm", map[string]any{"metadata": map[string]any{"ekg": map[string]any{"warm": 0}}}, "true")
	view(0, 0)
}
