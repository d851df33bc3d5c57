//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// warmKernels returns the value of a metric about warm kernels, "" if there is none.
func warmKernels(t *testing.T, metrics, name, labels string) string {
	t.Helper()
	for line := range strings.Lines(scrape(t, metrics)) {
		if value, ok := strings.CutPrefix(line, name+"{"+labels+"} "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// warmed waits until a number of warm kernels of a kernelspec wait for owners.
func (g *gateway) warmed(metrics, spec string, n int) {
	g.t.Helper()
	g.eventually(90*time.Second, fmt.Sprintf("%d warm kernels of %s", n, spec), func() error {
		if got := warmKernels(g.t, metrics, "ekg_warm_kernels", fmt.Sprintf("spec=%q", spec)); got != fmt.Sprint(n) {
			return fmt.Errorf("there are %q", got)
		}
		return nil
	})
}

// firstReply starts a kernel and returns its id, its client, and the time from the POST to the reply of its first cell.
func (g *gateway) firstReply(t *testing.T, body string) (string, *client, time.Duration) {
	t.Helper()
	began := time.Now()
	var m model
	g.want(201, "POST", "/api/kernels", body, &m)
	c := g.dial(t, m.ID, "first", true)
	c.says("print(6*7)", "42\n")
	return m.ID, c, time.Since(began)
}

// TestE2E_Warm: kernels that were started ahead are in no list. A start gets one with its owner, variables and working
// directory, which also the restarted kernel has. No other user sees it, and a start with an id of its own gets none.
func TestE2E_Warm(t *testing.T) {
	t.Parallel()
	metrics := freeAddress(t, "127.0.0.1")
	g := prepare(t, "", "--metrics-listen", metrics)
	var users strings.Builder
	users.WriteString("users:\n")
	for _, name := range []string{"ann", "ben"} {
		fmt.Fprintf(&users, "- {name: %s, tokens: [%q]}\n", name, identity.Hash("token-"+name))
	}
	file := filepath.Join(g.dir, "users.yaml")
	if err := os.WriteFile(file, []byte(users.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g.args, g.token = append(g.args, "--users-file", file), ""
	spec := func(warm int) {
		g.specWith("warm", map[string]any{"metadata": map[string]any{"ekg": map[string]any{"warm": warm}}},
			filepath.Join(g.in.dir, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}")
	}
	spec(2)
	g.start()
	ann, ben := *g, *g
	ann.token, ben.token = "token-ann", "token-ben"
	g.warmed(metrics, "warm", 2)
	var listed []model
	if ann.want(200, "GET", "/api/kernels", "", &listed); len(listed) != 0 {
		t.Fatalf("warm kernels are listed: %+v", listed)
	}
	folder := t.TempDir()
	body, err := json.Marshal(map[string]any{"name": "warm", "env": map[string]string{"KERNEL_NOTE": "ünï '\"$x",
		"KERNEL_WORKING_DIR": folder}})
	if err != nil {
		t.Fatal(err)
	}
	id, c, took := ann.firstReply(t, string(body))
	t.Logf("POST to the first reply: %v", took)
	const look = "import os; print(os.environ['KERNEL_NOTE'], os.environ['KERNEL_USERNAME'], os.getcwd())"
	want := "ünï '\"$x ann " + folder + "\n"
	c.says(look, want)
	c.says("print(sorted(n for n in globals() if n in ('env', 'dir', 'json', 'base64')), In[1])", "[] print(6*7)\n")
	if got := warmKernels(t, metrics, "ekg_warm_claims_total", `result="taken",spec="warm"`); got != "1" {
		t.Errorf("%q starts took a warm kernel", got)
	}
	ben.want(404, "GET", "/api/kernels/"+id, "", nil)
	if ann.want(200, "GET", "/api/kernels", "", &listed); len(listed) != 1 || listed[0].ID != id {
		t.Errorf("ann has %+v", listed)
	}
	ann.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
	ann.state(id, "idle", 20*time.Second)
	c.says(look, want)
	g.warmed(metrics, "warm", 2)
	theirs, c, _ := ben.firstReply(t, `{"name": "warm"}`)
	c.says("import os; print(os.environ['KERNEL_USERNAME'], 'KERNEL_NOTE' in os.environ)", "ben False\n")
	const own = "0a7e3f52-5a2c-4a63-8a58-0d7c61e1a0ff"
	var m model
	if ben.want(201, "POST", "/api/kernels", `{"name": "warm", "kernel_id": "`+own+`"}`, &m); m.ID != own {
		t.Errorf("the kernel has the id %s", m.ID)
	}
	ben.want(200, "GET", "/api/kernels", "", &listed)
	ids := []string{listed[0].ID, listed[len(listed)-1].ID}
	if slices.Sort(ids); len(listed) != 2 || !slices.Contains(ids, theirs) || !slices.Contains(ids, own) {
		t.Errorf("ben has %+v", listed)
	}
	spec(0)
	g.eventually(20*time.Second, "no warm kernel is left", func() error {
		left := processes(t, func(p process) bool {
			return strings.Contains(p.cmdline, "ekg-supervisor parent") && strings.Contains(p.cmdline, g.dir)
		})
		if len(left) != 3 {
			return fmt.Errorf("%d supervisors", len(left))
		}
		return nil
	})
}

// TestE2E_WarmKilled: a gateway takes a warm kernel and is killed before the kernel has its owner's variables. The next
// gateway ends that kernel. The supervisors are killed too; the other warm kernel survives that, and is taken later.
func TestE2E_WarmKilled(t *testing.T) {
	t.Parallel()
	metrics := freeAddress(t, "127.0.0.1")
	g := prepare(t, "", "--metrics-listen", metrics)
	g.specWith("warm", map[string]any{"metadata": map[string]any{"ekg": map[string]any{"warm": 2}}},
		filepath.Join(g.in.dir, "lab/bin/python"), "-m", "ipykernel_launcher", "-f", "{connection_file}")
	g.start()
	g.warmed(metrics, "warm", 2)
	g.eventually(20*time.Second, "both warm kernels have answered", func() error {
		logs, err := filepath.Glob(filepath.Join(g.dir, "state/kernels/*/supervisor.log"))
		ready := 0
		for _, name := range logs {
			if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b), "kernel is ready") {
				ready++
			}
		}
		if err == nil && ready != 2 {
			err = fmt.Errorf("%d have", ready)
		}
		return err
	})
	supervisors := processes(t, func(p process) bool {
		return strings.Contains(p.cmdline, "ekg-supervisor --config") && strings.Contains(p.cmdline, g.dir)
	})
	if len(supervisors) != 2 {
		t.Fatalf("%d supervisors", len(supervisors))
	}
	for _, p := range supervisors {
		if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	answered := make(chan error, 1)
	go func() {
		status, b, err := g.tryAsk("POST", "/api/kernels", `{"name": "warm"}`)
		if err == nil {
			err = fmt.Errorf("%d %s", status, b)
		}
		answered <- err
	}()
	var taken string
	g.eventually(5*time.Second, "a kernel is taken", func() error {
		records, err := filepath.Glob(filepath.Join(g.dir, "state/kernels/*/kernel.json"))
		for _, name := range records {
			if b, err := os.ReadFile(name); err == nil && !strings.Contains(string(b), `"warm":`) {
				taken = filepath.Base(filepath.Dir(name))
				return nil
			}
		}
		return fmt.Errorf("none of %d, %v", len(records), err)
	})
	g.kill()
	if err := <-answered; !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the start was answered with %v", err)
	}
	for _, p := range supervisors {
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	g.start()
	g.eventually(30*time.Second, "the kernel is ended", func() error {
		if status, b, err := g.tryAsk("GET", "/api/kernels/"+taken, ""); err != nil || status != 404 {
			return fmt.Errorf("%d %s %v", status, b, err)
		}
		return nil
	})
	g.noProcesses(taken)
	g.warmed(metrics, "warm", 2)
	id, c, _ := g.firstReply(t, `{"name": "warm", "env": {"KERNEL_NOTE": "later"}}`)
	c.says("import os; print(os.environ['KERNEL_NOTE'])", "later\n")
	if id == taken {
		t.Error("a kernel was taken twice")
	}
}
