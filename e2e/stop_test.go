//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cleaner returns a cell that runs for long, and writes files when it is interrupted and when its kernel exits.
func cleaner(dir string) string {
	return fmt.Sprintf(`import atexit, time
def write(name):
    with open(%q + '/' + name, 'w') as f:
        f.write(name)
atexit.register(write, 'atexit')
try:
    print('runs', flush=True)
    time.sleep(600)
finally:
    write('finally')`, dir)
}

// TestE2E_StopBusy: Python's finally and atexit run when a computing kernel is shut down, restarted or culled.
func TestE2E_StopBusy(t *testing.T) {
	t.Parallel()
	grace := []string{"--stop-grace", "20s"} // nothing may depend on SIGTERM
	ends := map[string]struct {
		args []string
		end  func(g *gateway, id string)
	}{
		"shut down": {grace, func(g *gateway, id string) { g.want(204, "DELETE", "/api/kernels/"+id, "", nil) }},
		"restarted": {grace, func(g *gateway, id string) { g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil) }},
		"culled": {append([]string{"--cull-max-age", "25s", "--cull-warning", "1s"}, grace...),
			func(g *gateway, id string) { g.state(id, "dead", 60*time.Second) }},
	}
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, tt.args...)
			g.messageMode("ipykernel7-message", "lab/bin/python")
			for _, spec := range []string{"python3", "ipykernel6", "ipykernel7-message"} {
				dir := filepath.Join(t.TempDir(), spec)
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				id := g.kernel(spec)
				c := g.dial(t, id, "s", true)
				c.begin(cleaner(dir))
				c.until(60*time.Second, "the cell runs", func(m message) bool { return strings.Contains(m.field("text"), "runs") })
				began := time.Now()
				tt.end(g, id)
				t.Logf("%s was %s in %v", spec, name, time.Since(began))
				for _, file := range []string{"finally", "atexit"} {
					if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
						t.Errorf("%s: %s did not run: %v", spec, file, err)
					}
				}
				if name == "restarted" {
					g.dial(t, id, "s2", true).says("print('again')", "again\n")
				}
			}
		})
	}
}

// startDaemons is a cell that starts processes in sessions of their own. The last one has no EKG_KERNEL_ID.
const startDaemons = `import os, subprocess
subprocess.Popen(['sleep', '1000'], start_new_session=True)
subprocess.Popen(['nohup', 'setsid', 'sleep', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp('sleep', ['sleep', '1000'])
    os._exit(0)
os.wait()
hidden = subprocess.Popen(['env', '-u', 'EKG_KERNEL_ID', 'sleep', '1000'], start_new_session=True)
print(os.getpid(), hidden.pid)`

// startOther is a cell that starts a process in a session of its own.
const startOther = `import subprocess
other = subprocess.Popen(['sleep', '1000'], start_new_session=True)
print(other.pid)`

// TestE2E_StopDaemons: what a kernel has started in sessions of its own ends with it, and another kernel's process
// goes on. A process without the kernel's id in its environment ends where the kernel has a control group.
func TestE2E_StopDaemons(t *testing.T) {
	g := newGateway(t)
	bystander := g.dial(t, g.kernel("python3"), "s", true)
	r := bystander.execute(startOther, 30*time.Second)
	var other int
	if _, err := fmt.Sscan(r.stdout, &other); err != nil {
		t.Fatalf("%v in %q", err, r.stdout)
	}
	id := g.kernel("python3")
	for _, end := range []string{"restart", "shutdown"} {
		c := g.dial(t, id, end, true)
		r := c.execute(startDaemons, 30*time.Second)
		var kernel, hidden int
		if _, err := fmt.Sscan(r.stdout, &kernel, &hidden); err != nil {
			t.Fatalf("%v in %q", err, r.stdout)
		}
		sleepers := func(p process) bool { return ofKernel(id)(p) && strings.HasPrefix(p.cmdline, "sleep") }
		g.eventually(10*time.Second, "all three sleep", func() error { // each runs other programs before
			if got := processes(t, sleepers); len(got) != 3 {
				return fmt.Errorf("the kernel has the processes %v", got)
			}
			return nil
		})
		group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", kernel))
		if err != nil {
			t.Fatal(err)
		}
		if end == "restart" {
			g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
		} else {
			g.want(204, "DELETE", "/api/kernels/"+id, "", nil)
		}
		if left := processes(t, sleepers); len(left) > 0 {
			t.Errorf("%s has answered, but there are still %v", end, left)
		}
		left := processes(t, func(p process) bool { return p.pid == hidden })
		switch grouped := strings.Contains(string(group), "/ekg-"+id); {
		case grouped && len(left) > 0:
			t.Errorf("%s has answered, but what left its environment is still there: %v", end, left)
		case !grouped:
			t.Logf("the kernel has no control group; the process without its id lives: %t", len(left) > 0)
			_ = syscall.Kill(hidden, syscall.SIGKILL) // it may have ended
		}
		bystander.says("print(other.poll())", "None\n")
	}
	if err := syscall.Kill(other, syscall.SIGKILL); err != nil {
		t.Errorf("the process of another kernel: %v", err)
	}
}
