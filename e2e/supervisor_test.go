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

// TestE2E_SupervisorKilled: a supervisor is killed while a cell prints, as the system does when memory runs out, or
// ends with exit code 2 and its stacks in its log, as after a panic. The kernel keeps its variables. The cell says that
// output is lost, goes on, and ends with its reply.
func TestE2E_SupervisorKilled(t *testing.T) {
	for name, tt := range map[string]struct {
		down   bool // the gateway
		signal syscall.Signal
		log    []string // what supervisor.log has then
	}{
		"gateway up":   {false, syscall.SIGKILL, []string{"by signal 9 (killed)"}},
		"gateway down": {true, syscall.SIGKILL, []string{"by signal 9 (killed)"}},
		"fault":        {false, syscall.SIGQUIT, []string{"goroutine ", "with exit code 2, as after a fault in the program"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			down := tt.down
			g := newGateway(t)
			id := g.kernel("python3")
			c := g.dial(t, id, "s", !down)
			c.says("kept = 'a variable'", "")
			file := filepath.Join(g.dir, "go")
			cell := c.begin(printing(20) + "\n" + waiting(file) + printing(20))
			c.prints("line 10\n")
			kernel, supervisor, parent := g.kernelProcesses(id)[0].pid, g.supervisorOf(id), g.parentOf(id)
			if down {
				g.kill()
			}
			if err := syscall.Kill(supervisor, tt.signal); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "another supervisor", func() error {
				found := processes(t, func(p process) bool {
					return strings.Contains(p.cmdline, "ekg-supervisor --config ") && strings.Contains(p.cmdline, id)
				})
				if len(found) != 1 || found[0].pid == supervisor {
					return fmt.Errorf("there are %v", found)
				}
				return nil
			})
			log, err := os.ReadFile(filepath.Join(g.dir, "state", "kernels", id, "supervisor.log"))
			for _, text := range tt.log {
				if err != nil || !strings.Contains(string(log), text) {
					t.Errorf("the supervisor's log has no %q, %v:\n%.2000s", text, err, log)
				}
			}
			if down {
				g.start()
			}
			g.state(id, "busy", 20*time.Second)
			back := g.dial(t, id, "s", !down)
			touch(t, file)
			r := back.finish(cell, 30*time.Second)
			words := notices(r.all)
			if !strings.Contains(words, "[ekg] The program that keeps this kernel's output was started again. "+
				"The kernel still runs and has its variables.") {
				t.Errorf("the cell says %q", words)
			}
			if r.reply.field("status") != "ok" {
				t.Errorf("the cell's reply is %s", r.reply.Content)
			}
			_, after, ok := strings.Cut(r.stdout, "begun")
			if !ok {
				t.Errorf("after the supervisor's return the cell prints %q", r.stdout)
			}
			wantLines(t, after, 20) // it was there for all of them
			back.says("print(kept)", "a variable\n")
			interrupt(t, g, id, back)
			if now := g.kernelProcesses(id); len(now) == 0 || now[0].pid != kernel || g.parentOf(id) != parent {
				t.Errorf("the kernel was process %d below %d, and is %v below %d", kernel, parent, now, g.parentOf(id))
			}
			restart(t, g, id, back)
			g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
			g.noProcesses(id)
			noneLeft(t, 5*time.Second, "the end of supervisor and parent", func(p process) bool {
				return strings.Contains(p.cmdline, "ekg-supervisor ") && strings.Contains(p.cmdline, id)
			})
		})
	}
}

// TestE2E_ParentKilled: the parent of a supervisor is killed. Supervisor and kernel end with it.
func TestE2E_ParentKilled(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(map[bool]string{false: "gateway up", true: "gateway down"}[down], func(t *testing.T) {
			g := newGateway(t)
			id := g.kernel("python3")
			c := g.dial(t, id, "s", true)
			c.says("import subprocess; child = subprocess.Popen(['sleep', '1000'])", "")
			if n := len(g.kernelProcesses(id)); n < 2 {
				t.Fatalf("the kernel has %d processes, want at least its own and its child", n)
			}
			pid := g.parentOf(id)
			if down {
				g.kill()
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if down {
				noneLeft(t, 5*time.Second, "the end of the kernel without a gateway", func(p process) bool {
					return ofKernel(id)(p) && strings.Contains(p.cmdline, "ipykernel")
				})
				g.start()
			}
			m := g.state(id, "dead", 10*time.Second)
			if !strings.Contains(m.Reason, "supervisor") {
				t.Errorf("the reason is %q", m.Reason)
			}
			g.noProcesses(id) // its child is gone, too
			g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
			g.dial(t, id, "s2", true).says("print('again')", "again\n")
		})
	}
}

// upgrade runs `ekg supervisor upgrade` with a program, and returns what it prints.
func (g *gateway) upgrade(program string, args ...string) (string, error) {
	out, err := g.command(append([]string{"supervisor", "upgrade", "--supervisor", program}, args...)...).Output()
	return string(out), err
}

// notices returns what ekg itself says in messages.
func notices(all []message) string {
	var words strings.Builder
	for _, m := range all {
		if m.field("name") == "stderr" && strings.HasPrefix(m.field("text"), "[ekg]") {
			words.WriteString(m.field("text"))
		}
	}
	return words.String()
}

// TestE2E_SupervisorUpgrade: `ekg supervisor upgrade` replaces the supervisor of a running kernel by one of another
// version. An idle kernel loses nothing. A busy one is left alone, or its cell says that output is lost.
func TestE2E_SupervisorUpgrade(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	program := filepath.Join(t.TempDir(), "ekg-supervisor")
	build := exec.Command("go", "build", "-race", "-ldflags", "-X main.version=9.9.9 -extldflags=-Wl,-z,lazy",
		"-o", program, "./cmd/ekg-supervisor")
	build.Dir = in.repository
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g := newGateway(t)
	id := g.kernel("python3")
	c := g.dial(t, id, "s", true)
	c.says("kept = 'a variable'", "")
	kernel, parent := g.kernelProcesses(id)[0].pid, g.parentOf(id)
	same := func() {
		t.Helper()
		if now := g.kernelProcesses(id); len(now) == 0 || now[0].pid != kernel || g.parentOf(id) != parent {
			t.Errorf("the kernel was process %d below %d, and is %v below %d", kernel, parent, now, g.parentOf(id))
		}
	}
	broken := filepath.Join(t.TempDir(), "ekg-supervisor")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := g.upgrade(broken, id); err == nil || !strings.Contains(out, "the earlier program runs again") {
		t.Errorf("a program that fails: %v, %s", err, out)
	}
	g.state(id, "idle", 20*time.Second)
	c = g.dial(t, id, "s", true)
	c.says("print(kept)", "a variable\n")
	same()

	if out, err := g.upgrade(program, "--all"); err != nil || !strings.HasSuffix(out, "to 9.9.9\n") {
		t.Errorf("an idle kernel: %v, %s", err, out)
	}
	if out, err := g.upgrade(program, id); err != nil || !strings.Contains(out, "runs 9.9.9 already") {
		t.Errorf("again: %v, %s", err, out)
	}
	g.state(id, "idle", 20*time.Second)
	c = g.dial(t, id, "s", true)
	r := c.execute("print(kept)", 20*time.Second)
	if r.stdout != "a variable\n" || notices(r.all) != "" {
		t.Errorf("after the upgrade the cell printed %q, and ekg said %q", r.stdout, notices(r.all))
	}
	same()

	file := filepath.Join(g.dir, "go")
	cell := c.begin(waiting(file) + printing(20))
	c.begun(cell)
	old := filepath.Join(in.bin, "ekg-supervisor")
	if out, err := g.upgrade(old, id); err == nil || !strings.Contains(out, "its supervisor stays: it is busy") {
		t.Errorf("a busy kernel: %v, %s", err, out)
	}
	if out, err := g.upgrade(old, "--busy", id); err != nil || !strings.Contains(out, "upgraded from 9.9.9") {
		t.Errorf("a busy kernel with --busy: %v, %s", err, out)
	}
	g.state(id, "busy", 20*time.Second)
	c = g.dial(t, id, "s", true)
	touch(t, file)
	r = c.finish(cell, 30*time.Second)
	wantLines(t, r.stdout, 20)
	if !strings.Contains(notices(r.all), "The kernel still runs and has its variables") ||
		r.reply.field("status") != "ok" {
		t.Errorf("ekg said %q, and the reply is %s", notices(r.all), r.reply.Content)
	}
	c.says("print(kept)", "a variable\n")
	same()
}

// TestE2E_SupervisorUpgradePrinting: a supervisor stays while a thread of its idle kernel prints, and leaves when the
// thread has ended.
func TestE2E_SupervisorUpgradePrinting(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ekg-supervisor")
	cp := exec.Command("cp", filepath.Join(theInstallation(t).bin, "ekg-supervisor"), program)
	if out, err := cp.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	g := newGateway(t)
	id := g.kernel("python3")
	c := g.dial(t, id, "s", true)
	c.says(`import threading
over = threading.Event()
def work():
    while not over.wait(0.1): print('.', end='', flush=True)
thread = threading.Thread(target=work)
thread.start()`, "")
	if out, err := g.upgrade(program, id); err == nil || !strings.Contains(out, "the kernel has printed") &&
		!strings.Contains(out, "a page has not received all output") {
		t.Errorf("while a thread prints: %v, %s", err, out)
	}
	c.execute("over.set(); thread.join()", 20*time.Second)
	if out, err := g.upgrade(program, id); err != nil || !strings.Contains(out, "upgraded from") {
		t.Errorf("after the thread has ended: %v, %s", err, out)
	}
}
