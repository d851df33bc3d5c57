//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestE2E_JobInKernel: the rest of a notebook runs as a job in the notebook's own kernel.
func TestE2E_JobInKernel(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "--max-kernels=1") // the job needs no second kernel
	id := g.kernel("python3")
	path := g.notebookFile("rest.ipynb", "name = 'k'", slowly, "print('end', i)")
	t.Run("the gateway is killed", func(t *testing.T) { restOutlivesGateway(t, g, id, path) })
	t.Run("it prints into the author's widgets", func(t *testing.T) { restPrintsIntoWidgets(t, g, id) })
	t.Run("it waits for what runs, and is stopped", func(t *testing.T) { restWaits(t, g, id, path) })
	t.Run("the kernel is restarted", func(t *testing.T) { restIsRestarted(t, g, id, path) })
	t.Run("the kernel ends", func(t *testing.T) { restEndsKernel(t, g, id, path) })
}

// restOutlivesGateway: the author closes everything, and the gateway is killed while a cell runs.
func restOutlivesGateway(t *testing.T, g *gateway, kernel, path string) {
	c := g.dial(t, kernel, "author", true)
	c.says("name = 'k'; mark = 41", "")
	if code, _, errs := g.prints("run", path, "--from-cell", "2"); code == 0 || !strings.Contains(errs, "--in-kernel") {
		t.Errorf("--from-cell without --in-kernel: %d %s", code, errs)
	}
	id := g.submits(path, "--in-kernel", kernel[:8], "--from-cell", "cell-1")
	if code, _, errs := g.prints("run", path, "--in-kernel", kernel); code == 0 || !strings.Contains(errs, "Another job") {
		t.Errorf("a second job in the kernel: %d %s", code, errs)
	}
	_ = c.ws.Close() // the author leaves
	g.jobIs(id, "runs its first cell", 30*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 1 })
	g.kill()
	g.start()
	j := g.jobIs(id, "has ended", 90*time.Second, func(j job) bool { return j.State == "succeeded" })
	if j.Kernel != kernel || j.Attempt != 1 {
		t.Errorf("the job ran in the kernel %s, attempt %d", j.Kernel, j.Attempt)
	}
	if code, logs, errs := g.prints("jobs", "logs", id); code != 0 || logs != lines("k")+"end 59\n" {
		t.Errorf("%d, %s\nthe outputs are\n%s", code, errs, logs)
	}
	if code, log, _ := g.prints("log", kernel); code != 0 || !strings.Contains(log, lines("k")) {
		t.Errorf("the kernel's log has other outputs:\n%s", log)
	}
	g.dial(t, kernel, "author again", true).says("print(mark + 1, i)", "42 59\n")
}

// restPrintsIntoWidgets: the job's cells print into Output widgets of the author's, which have outputs already.
func restPrintsIntoWidgets(t *testing.T, g *gateway, kernel string) {
	const opens = "import ipywidgets\nfrom IPython.display import clear_output\n" +
		"out, other = ipywidgets.Output(), ipywidgets.Output()\n" +
		"for w in (out, other): w.append_stdout('by hand\\n')"
	c := g.dial(t, kernel, "author of widgets", true)
	c.says(opens, "")
	path := g.notebookFile("widgets.ipynb", opens,
		"print('before')\nwith out:\n    print(1)\n    with other: print('nested')\n    print(2)\nprint('behind')",
		"with out: print(3)\nwith other:\n    clear_output(wait=True)\n    print('new')\n"+
			"print(*(o['text'] for o in out.outputs), end='')")
	id := g.submits(path, "--in-kernel", kernel, "--from-cell", "2")
	g.jobIs(id, "has ended", 60*time.Second, func(j job) bool { return j.State == "succeeded" })
	var nb struct {
		Cells []struct {
			Outputs []struct {
				Text []string `json:"text"`
			} `json:"outputs"`
		} `json:"cells"`
		Metadata struct {
			Widgets map[string]struct {
				State map[string]struct {
					Name  string `json:"model_name"`
					State struct {
						Outputs []map[string]any `json:"outputs"`
						Layout  string           `json:"layout"`
					} `json:"state"`
				} `json:"state"`
			} `json:"widgets"`
		} `json:"metadata"`
	}
	g.want(200, "GET", "/api/jobs/"+id+"/notebook", "", &nb)
	for i, want := range []string{"", "before\nbehind\n", "by hand\n1\n2\n"} {
		var got string
		for _, out := range nb.Cells[i].Outputs {
			got += strings.Join(out.Text, "")
		}
		if got != want {
			t.Errorf("cell %d has %q, want %q", i+1, got, want)
		}
	}
	const outHas, otherHas = "by hand\n1\n2\n3\n", "new\n"
	var widgets []string
	state := nb.Metadata.Widgets["application/vnd.jupyter.widget-state+json"].State
	for _, w := range state {
		if w.Name == "OutputModel" {
			widgets = append(widgets, fmt.Sprint(w.State.Outputs))
			if layout := strings.TrimPrefix(w.State.Layout, "IPY_MODEL_"); state[layout].Name != "LayoutModel" {
				t.Errorf("the notebook has no layout %q", layout)
			}
		}
	}
	one := func(text string) string {
		return fmt.Sprint([]map[string]any{{"name": "stdout", "output_type": "stream", "text": text}})
	}
	if slices.Sort(widgets); !slices.Equal(widgets, []string{one(outHas), one(otherHas)}) {
		t.Errorf("the widgets have %q", widgets)
	}
	c.says("print(*(o['text'] for w in (out, other) for o in w.outputs), end='')", outHas+" "+otherHas)
}

// restWaits: the job's cells run behind the author's. A stop before them does not interrupt the author's.
func restWaits(t *testing.T, g *gateway, kernel, path string) {
	open := filepath.Join(g.dir, "go")
	c := g.dial(t, kernel, "author", true)
	busy := c.begin("import os, time\nprint('busy', flush=True)\n" +
		"while not os.path.exists('" + open + "'): time.sleep(0.05)\nprint('done')")
	id := g.submits(path, "--in-kernel", kernel, "--from-cell", "3", "--once", "behind")
	g.jobIs(id, "waits", 30*time.Second, func(j job) bool { return j.State == "running" })
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := c.finish(busy, 20*time.Second); r.stdout != "busy\ndone\n" {
		t.Errorf("the author's cell printed %q", r.stdout)
	}
	g.jobIs(id, "has ended", 30*time.Second, func(j job) bool { return j.State == "succeeded" })
	id = g.submits(path, "--in-kernel", kernel, "--from-cell", "2")
	g.jobIs(id, "runs", 30*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 1 })
	if code, _, errs := g.prints("jobs", "stop", id); code != 0 {
		t.Errorf("ekg jobs stop: %d %s", code, errs)
	}
	g.jobIs(id, "is stopped", 20*time.Second, func(j job) bool { return j.State == "stopped" })
	c.says("print(mark)", "41\n")
}

func restIsRestarted(t *testing.T, g *gateway, kernel, path string) {
	id := g.submits(path, "--in-kernel", kernel, "--from-cell", "2")
	g.jobIs(id, "runs", 30*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 1 })
	g.want(200, "POST", "/api/kernels/"+kernel+"/restart", "", nil)
	g.jobIs(id, "has failed", 30*time.Second, func(j job) bool {
		return j.State == "failed" && strings.Contains(j.Reason, "restarted")
	})
}

// restEndsKernel: the author lets the kernel end with the job, and later shuts one down while a job runs.
func restEndsKernel(t *testing.T, g *gateway, kernel, path string) {
	id := g.submits(path, "--in-kernel", kernel, "--then", "end")
	g.jobIs(id, "has ended", 60*time.Second, func(j job) bool { return j.State == "succeeded" })
	g.want(404, "GET", "/api/kernels/"+kernel, "", nil)
	kernel = g.kernel("python3")
	id = g.submits(path, "--in-kernel", kernel)
	g.jobIs(id, "runs its second cell", 30*time.Second, func(j job) bool { return j.State == "running" && j.Cell == 2 })
	g.want(204, "DELETE", "/api/kernels/"+kernel, "", nil)
	g.jobIs(id, "has failed", 30*time.Second, func(j job) bool {
		return j.State == "failed" && strings.Contains(j.Reason, "on request")
	})
}

// TestE2E_JobIdle: a job keeps its kernel from being culled for being idle. Afterwards the kernel is culled on time.
func TestE2E_JobIdle(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "--cull-idle-timeout", "4")
	kernel := g.kernel("python3")
	const second = "import time; time.sleep(1)"
	path := g.notebookFile("idle.ipynb", second, second, second, second, second, "time.sleep(5); print('end')")
	id := g.submits(path, "--in-kernel", kernel, "--from-cell", "1")
	g.eventually(30*time.Second, "the kernel's model has the job and its progress", func() error {
		_, b, err := g.tryAsk("GET", "/api/kernels", "")
		if err != nil || !strings.Contains(string(b), `"job":{"id":"`+id+`","name":"idle","cell":3,"cells":6}`) {
			return fmt.Errorf("%s %v", b, err)
		}
		return nil
	})
	if code, out, errs := g.prints("ps"); code != 0 || !strings.Contains(out, "/6") || !strings.Contains(out, "JOB") {
		t.Errorf("ekg ps: %d %s%s", code, out, errs)
	}
	j := g.jobIs(id, "has ended", 60*time.Second, func(j job) bool { return j.State != "queued" && j.Ended != "" })
	if j.State != "succeeded" {
		t.Errorf("the job %s: %s", j.State, j.Reason)
	}
	ended, err := time.Parse(time.RFC3339Nano, j.Ended)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := g.culledAt(kernel, 30*time.Second)
	if idle := at.Sub(ended); idle < 2*time.Second || idle > 10*time.Second {
		t.Errorf("it was culled %v after the job", idle)
	}
}
