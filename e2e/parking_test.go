//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const oneGPU = `{"name": "python3", "env": {"KERNEL_GPUS": "1"}}`

// parked waits for a state of a kernel's GPU.
func (g *gateway) parked(id, want string) {
	g.t.Helper()
	g.eventually(40*time.Second, "the GPU is "+want, func() error {
		var m struct {
			Parked struct{ State, Since, Reason string }
		}
		g.want(200, "GET", "/api/kernels/"+id, "", &m)
		if m.Parked.State != want || m.Parked.Since == "" {
			return fmt.Errorf("%+v", m.Parked)
		}
		return nil
	})
}

// TestE2E_ParkMemory: a kernel keeps its GPU if parked kernels would take more of the machine's memory than they may.
func TestE2E_ParkMemory(t *testing.T) {
	t.Parallel() // it mostly waits
	g, usesCUDA := newParkingGateway(t, 1, "--park-idle", "1s", "--park-after", "1s", "--park-memory", "600MiB")
	g.start()
	var k model
	g.want(201, "POST", "/api/kernels", oneGPU, &k)
	g.state(k.ID, "idle", 20*time.Second)
	a := g.dial(t, k.ID, "ann", true)
	a.says(usesCUDA+"begin(60 << 20, 'hers'); print(held())", "hers\n")
	g.eventually(40*time.Second, "it keeps its GPU", func() error {
		var m struct {
			Parked struct{ State, Cause, Reason string }
		}
		g.want(200, "GET", "/api/kernels/"+k.ID, "", &m)
		const why = "it would take 642 MiB of the machine's memory, and other parked kernels take 0 of the 600 MiB"
		if m.Parked.State != "failed" || m.Parked.Cause != "bound" || !strings.Contains(m.Parked.Reason, why) {
			return fmt.Errorf("%+v", m.Parked)
		}
		return nil
	})
	a.says("print(held())", "hers\n")
}

// TestE2E_Parking: two kernels use one GPU by turns, each with more than half of its memory. The second gets it when
// the first has been idle, and each cell gets the GPU back with the variables in it. An interrupt ends a wait, and
// killed supervisors and gateways change nothing. The machine's memory that they may take is just enough for both.
func TestE2E_Parking(t *testing.T) {
	t.Parallel() // it mostly waits
	metrics := freeAddress(t, "127.0.0.1")
	g, usesCUDA := newParkingGateway(t, 1, "--start-wait", "1s", "--park-idle", "1s", "--park-memory", "1300MiB",
		"--metrics-listen", metrics)
	g.start()
	parked := g.parked
	var first, second model
	g.want(201, "POST", "/api/kernels", oneGPU, &first)
	g.state(first.ID, "idle", 20*time.Second)
	a := g.dial(t, first.ID, "ann", true)
	a.says(usesCUDA+"begin(60 << 20, 'hers'); print(held())", "hers\n")
	parked(first.ID, "held")

	g.want(201, "POST", "/api/kernels", oneGPU, &second)
	g.state(second.ID, "idle", 40*time.Second)
	parked(second.ID, "none")
	parked(first.ID, "held")
	b := g.dial(t, second.ID, "bob", true)
	b.says(usesCUDA+"begin(60 << 20, 'his'); print(held())", "his\n")
	parked(first.ID, "parked")

	// A parked kernel answers requests that need no GPU.
	a.finish(a.send("shell", "kernel_info_request", "{}"), 20*time.Second)
	parked(first.ID, "parked")

	a.says("print(held())", "hers\n")
	parked(second.ID, "parked")
	parked(first.ID, "held")
	g.eventually(10*time.Second, "both are counted, how often they took the GPU, and one return", func() error {
		text := scrape(t, metrics)
		for _, series := range []string{`ekg_parkable_kernels{state="parked"} 1`, `ekg_parkable_kernels{state="held"} 1`,
			"ekg_park_wait_seconds_count 3", "ekg_park_restore_seconds_count 1"} {
			if !strings.Contains(text, "\n"+series+"\n") {
				return fmt.Errorf("no %s", series)
			}
		}
		return nil
	})

	// A cell waits while another one computes. An interrupt ends the wait, and the kernel goes on.
	computes := b.begin("print('computes', flush=True); call('ekgCompute', 4000); time.sleep(3600)")
	b.until(40*time.Second, "the second kernel has the GPU", func(m message) bool {
		return strings.Contains(m.field("text"), "computes")
	})
	parked(first.ID, "parked")
	waits := a.begin("print('never')")
	a.until(20*time.Second, "the reason of the wait", func(m message) bool {
		return strings.Contains(string(m.Content), "This cell waits for its GPU: another kernel has it")
	})
	parked(first.ID, "waking")
	g.want(204, "POST", "/api/kernels/"+first.ID+"/interrupt", "", nil)
	if r := a.finish(waits, 20*time.Second); !strings.Contains(string(r.reply.Content), `"aborted"`) || r.stdout != "" {
		t.Errorf("an interrupted wait is answered with %s, %q", r.reply.Content, r.stdout)
	}
	parked(first.ID, "parked")
	g.want(204, "POST", "/api/kernels/"+second.ID+"/interrupt", "", nil)
	b.finish(computes, 30*time.Second)

	// The supervisor of the parked kernel and the gateway are killed.
	if err := syscall.Kill(g.supervisorOf(first.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.kill()
	g.start()
	g.state(first.ID, "idle", 30*time.Second)
	parked(first.ID, "parked")
	a = g.dial(t, first.ID, "ann", true)
	a.says("print(held())", "hers\n")
	parked(second.ID, "parked")

	// A kernel without CUDA gives the GPU back, and its cells do without. Its first call of CUDA waits. An interrupt ends
	// that, and a call goes on waiting if the supervisor is killed.
	var third model
	g.want(201, "POST", "/api/kernels", oneGPU, &third)
	g.state(third.ID, "idle", 40*time.Second)
	c := g.dial(t, third.ID, "cat", true)
	c.says("print(1)", "1\n")
	computes = a.begin("print('computes', flush=True); time.sleep(3600)")
	a.until(40*time.Second, "the first kernel has the GPU", func(m message) bool {
		return strings.Contains(m.field("text"), "computes")
	})
	parked(third.ID, "none")
	c.says("print(2)", "2\n")
	parked(third.ID, "none")
	waits = c.begin(usesCUDA + "begin(60 << 20, 'theirs')")
	c.until(20*time.Second, "the reason of the wait", func(m message) bool {
		return strings.Contains(string(m.Content), "This cell waits for its GPU: another kernel has it")
	})
	g.want(204, "POST", "/api/kernels/"+third.ID+"/interrupt", "", nil)
	if r := c.finish(waits, 20*time.Second); !strings.Contains(string(r.reply.Content), "KeyboardInterrupt") {
		t.Errorf("an interrupted call is answered with %s", r.reply.Content)
	}
	parked(third.ID, "none")
	c.begin(usesCUDA + "begin(60 << 20, 'theirs')")
	parked(third.ID, "waking")
	if err := syscall.Kill(g.supervisorOf(third.ID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.want(204, "POST", "/api/kernels/"+first.ID+"/interrupt", "", nil)
	a.finish(computes, 30*time.Second)
	parked(third.ID, "held")
	c = g.dial(t, third.ID, "cat", true)
	c.says("print(held())", "theirs\n")
	g.want(204, "DELETE", "/api/kernels/"+third.ID, "", nil)

	// A kernel ends while it is parked.
	g.want(204, "DELETE", "/api/kernels/"+second.ID, "", nil)
	g.want(204, "DELETE", "/api/kernels/"+first.ID, "", nil)
}

// TestE2E_ParkingStart: twelve kernels on two GPUs all start, half of them for each GPU, and take none. Their cells run
// at once. The first call of CUDA takes the GPU. Then a start and a restart do not wait either.
func TestE2E_ParkingStart(t *testing.T) {
	t.Parallel() // it mostly waits
	const count = 12
	g, usesCUDA := newParkingGateway(t, 2, "--start-wait", "1s", "--park-idle", "1s")
	g.start()
	ids, clients := make([]string, count), make([]*client, count)
	for i := range ids {
		var m model
		g.want(201, "POST", "/api/kernels", oneGPU, &m)
		if strings.Contains(m.Reason, "it waits for a GPU") {
			t.Fatalf("start %d: %+v", i, m)
		}
		ids[i] = m.ID
	}
	there := t.TempDir()
	cells := make([]string, count)
	for i, id := range ids {
		g.state(id, "idle", 60*time.Second)
		g.parked(id, "none")
		clients[i] = g.dial(t, id, "ann", true)
		cells[i] = clients[i].begin(fmt.Sprintf("import os, time\nopen(%q, 'w').close()\nwhile len(os.listdir(%q)) < %d:\n"+
			"    time.sleep(0.05)\nprint(os.environ['CUDA_VISIBLE_DEVICES'])", filepath.Join(there, id), there, count))
	}
	of := map[string][]*client{}
	idOf := map[*client]string{}
	for i, c := range clients {
		device := strings.TrimSpace(c.finish(cells[i], 60*time.Second).stdout)
		of[device], idOf[c] = append(of[device], c), ids[i]
		g.parked(ids[i], "none")
	}
	one, two := of["GPU-of-tests"], of["GPU-of-tests-1"]
	if len(one) != count/2 || len(two) != count/2 {
		t.Fatalf("kernels are pinned to the GPUs as %d and %d", len(one), len(two))
	}
	holds := func(want string) {
		t.Helper()
		if code, out, errs := g.prints("top", "nodes"); code != 0 || !strings.Contains(out, "nvidia.com/gpu   "+want) {
			t.Errorf("ekg top nodes: %d\n%s%s", code, out, errs)
		}
	}
	holds("0/2")
	one[0].says(usesCUDA+"begin(40 << 20, 'hers'); print(held())", "hers\n")
	g.parked(idOf[one[0]], "held")
	holds("1/2")
	computes := two[0].begin(usesCUDA + "begin(40 << 20, 'his'); print('computes', flush=True); time.sleep(3600)")
	two[0].until(40*time.Second, "the other GPU is taken", func(m message) bool {
		return strings.Contains(m.field("text"), "computes")
	})
	holds("2/2")
	var late model
	g.want(201, "POST", "/api/kernels", oneGPU, &late)
	g.state(late.ID, "idle", 40*time.Second)
	g.parked(late.ID, "none")
	g.want(200, "POST", "/api/kernels/"+idOf[two[1]]+"/restart", "", nil)
	g.state(idOf[two[1]], "idle", 40*time.Second)
	g.parked(idOf[two[1]], "none")

	// A call waits for the kernel that computes, and another one for a kernel that is idle.
	waits := two[2].begin(usesCUDA + "begin(40 << 20, 'theirs'); print(held())")
	one[1].says(usesCUDA+"begin(40 << 20, 'its'); print(held())", "its\n")
	g.parked(idOf[one[0]], "parked")
	g.parked(idOf[two[2]], "waking")
	g.want(204, "POST", "/api/kernels/"+idOf[two[0]]+"/interrupt", "", nil)
	two[0].finish(computes, 30*time.Second)
	if r := two[2].finish(waits, 60*time.Second); r.stdout != "theirs\n" {
		t.Errorf("the call that waited printed %q: %s", r.stdout, r.reply.Content)
	}
	for _, id := range append(ids, late.ID) {
		g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
	}
}

// TestE2E_ParkingAhead: in JupyterLab, typing into the notebook of a parked kernel wakes the kernel before the cell
// runs. Without a cell it is parked again, and its next cell has its variables.
func TestE2E_ParkingAhead(t *testing.T) {
	g, usesCUDA := newParkingGateway(t, 1, "--park-idle", "1s", "--park-after", "1s")
	g.specWith("gpu", map[string]any{"env": map[string]string{"KERNEL_GPUS": "1"}},
		filepath.Join(g.in.dir, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.start()
	g.script(4*time.Minute, []string{"EKG_EXTENSION=" + theExtension(t), "EKG_CODE=" + usesCUDA,
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/parking.mjs"))
}

// newParkingGateway prepares a gateway whose machine has so many GPUs, of 100 MiB together. The stand-in for the
// driver's library saves their memory. The code defines begin(bytes, text), which puts a text into the GPU's memory,
// and held(), which reads it.
func newParkingGateway(t *testing.T, gpus int, args ...string) (g *gateway, code string) {
	t.Helper()
	nvml := newFakeNVML(t)
	library := filepath.Join(nvml.dir, "libcuda.so.1")
	source := filepath.Join(theInstallation(t).repository, "testdata/cuda")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-pthread", "-o", library,
		filepath.Join(source, "cuda.c")).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	for file, text := range map[string]string{"total": fmt.Sprint(100 << 20), "use": fmt.Sprint("0 0 0 60 ", gpus)} {
		if err := os.WriteFile(filepath.Join(nvml.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g = prepare(t, "", args...)
	g.vars = []string{"LD_LIBRARY_PATH=" + nvml.dir}
	return g, fmt.Sprintf("import time\nlibrary = %q\nexec(open(%q).read())\n", library,
		filepath.Join(source, "memory.py"))
}
