//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestE2E_SupervisorKilled: a supervisor is killed while a cell prints, as the system does when memory runs out. The
// kernel keeps its variables. The cell says that output is lost, goes on, and ends with its reply.
func TestE2E_SupervisorKilled(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(map[bool]string{false: "gateway up", true: "gateway down"}[down], func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			id := g.kernel("python3")
			c := g.dial(t, id, "s", !down)
			c.says("kept = 'a variable'", "")
			file := filepath.Join(g.dir, "go")
			cell := c.begin(printing(20) + "\n" + waiting(file) + printing(20))
			c.until(20*time.Second, "line 10", func(m message) bool {
				return strings.Contains(m.field("text"), "line 10\n")
			})
			kernel, supervisor, parent := g.kernelProcesses(id)[0].pid, g.supervisorOf(id), g.parentOf(id)
			if down {
				g.kill()
			}
			if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
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
			if down {
				g.start()
			}
			g.state(id, "busy", 20*time.Second)
			back := g.dial(t, id, "s", !down)
			touch(t, file)
			r := back.finish(cell, 30*time.Second)
			words := ""
			for _, m := range r.all {
				if m.field("name") == "stderr" {
					words += m.field("text")
				}
			}
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
