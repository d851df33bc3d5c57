package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// launchedBy makes a pod's kernel one of a launcher.
func launchedBy(argv ...string) func(*api.Config) {
	return func(c *api.Config) {
		c.Argv, c.ResponseAddress, c.LaunchLimit = argv, "127.0.0.1:0", testLimit
	}
}

func withFakeLauncher(kind string) func(*api.Config) {
	return func(c *api.Config) {
		launchedBy(os.Args[0])(c)
		c.Env[launcherVariable] = kind
		c.Env["TMPDIR"] = filepath.Dir(c.ChildSocket)
	}
}

// startLaunched starts a pod whose launcher may write beside the socket.
func startLaunched(t *testing.T, change func(*api.Config)) *pod {
	t.Helper()
	p := newPod(t, change)
	if err := os.MkdirAll(filepath.Dir(p.cfg.ChildSocket), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A child that is killed takes its kernel with it, but not the launcher's own processes. In a pod they share its
		// container.
		if _, err := proctree.KillRemains(p.cfg.KernelID, -1); err != nil {
			t.Error(err)
		}
	})
	p.startSupervisor()
	p.startChild()
	return p.ready()
}

func TestLaunched_Life(t *testing.T) {
	p := startLaunched(t, withFakeLauncher("1"))
	c := p.attach("ann")
	p.result(c, "set x 42")
	t.Run("interrupt", func(t *testing.T) {
		id := c.execute("sleep 1h")
		c.running(id)
		if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
		c.result(id)
		eventually(t, "the launcher says that it got the signal", func() bool {
			return strings.Contains(p.child.out.String(), "launcher got {2 0}")
		})
	})
	t.Run("another supervisor adopts the kernel", func(t *testing.T) {
		p.supervisor.kill()
		p.startSupervisor()
		p.ready()
		c = p.attach("ann")
		if got := p.result(c, "get x"); got != "42" {
			t.Errorf("x is %q", got)
		}
		id := c.execute("sleep 1h")
		c.running(id)
		if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
		c.result(id)
	})
	t.Run("restart", func(t *testing.T) {
		if status, body := p.ask("POST", "/restart", ""); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		eventually(t, "the launcher says that it was told its end", func() bool {
			return strings.Contains(p.child.out.String(), "launcher got {0 1}")
		})
		if got := p.result(c, "get x"); got == "42" {
			t.Error("the kernel was not restarted")
		}
	})
	t.Run("the kernel ends itself", func(t *testing.T) {
		before := p.until("known", func(api.Status) bool { return true }).Epoch
		c.execute("exit 0")
		p.until("started again", func(st api.Status) bool { return st.Epoch > before && st.State == api.Idle })
	})
	t.Run("killed", func(t *testing.T) {
		id := c.execute("exit -9")
		if text := output(c.result(id), id); !strings.Contains(text, "the kernel's process was killed (SIGKILL)") {
			t.Errorf("the cell says %q", text)
		}
		p.until("started again", func(st api.Status) bool { return st.State == api.Idle })
	})
}

// TestLaunched_Deaf: a launcher that does not read its communication port does not prevent an interrupt.
func TestLaunched_Deaf(t *testing.T) {
	p := startLaunched(t, withFakeLauncher("deaf"))
	c := p.attach("ann")
	id := c.execute("sleep 1h")
	c.running(id)
	if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	c.result(id)
}

func TestLaunched_NoAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		limit  time.Duration
		want   string
	}{
		"silent": {"sleep 1000", 300 * time.Millisecond, "the kernel's launcher has not answered within 300ms"},
		"wrong answer": {"echo no-sense >/dev/tcp/${RESPONSE_ADDRESS/:/\\/}; sleep 1000", testLimit,
			"the answer of the kernel's launcher cannot be used: it is not base64"},
		"ends": {"echo PUBLIC_KEY is too short >&2; exit 4", testLimit,
			"the kernel's process ended with exit code 4: PUBLIC_KEY is too short"},
		"placeholders": {`[ "{response_address}{public_key}" = "$RESPONSE_ADDRESS$PUBLIC_KEY" ]; exit $((10 + $?))`,
			testLimit, "the kernel's process ended with exit code 10"},
		"hides how its kernel ended": {`python() { :; }; python; sh -c 'kill -9 $$'; exit $?`, testLimit,
			"the kernel's process was killed (SIGKILL), which also happens when memory runs out"},
		"bootstrap": {`python -c 'exit(5)'; exit 0`, testLimit, "the kernel's process ended with exit code 5"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod(t, func(c *api.Config) {
				launchedBy("bash", "-c", tc.script)(c)
				c.LaunchLimit, c.DeadLinger = tc.limit, 100*time.Millisecond
			})
			p.startSupervisor()
			p.startChild()
			p.exitCode(p.supervisor)
			if got := p.ending().Reason; !strings.HasPrefix(got, tc.want) {
				t.Errorf("reason is %q", got)
			}
		})
	}
}

// TestLaunched_Enterprise runs the launcher of Enterprise Gateway's kernel images, unchanged. EKG_TEST_PYTHON has
// ipykernel, and EKG_TEST_ENTERPRISE is what hack/env/peers prints.
func TestLaunched_Enterprise(t *testing.T) {
	python, peers := os.Getenv("EKG_TEST_PYTHON"), os.Getenv("EKG_TEST_ENTERPRISE")
	if python == "" || peers == "" {
		t.Skip("EKG_TEST_PYTHON and EKG_TEST_ENTERPRISE are not set")
	}
	launchers := filepath.Join(peers, "eg-source", "etc", "kernel-launchers")
	modules, err := filepath.Glob(filepath.Join(peers, "eg", "lib", "python3*", "site-packages", "Cryptodome"))
	if err != nil || len(modules) != 1 {
		t.Fatalf("Cryptodome is at %v, %v", modules, err)
	}
	path := t.TempDir() // only this module, beside those of the kernel's own environment
	if err := os.Symlink(modules[0], filepath.Join(path, "Cryptodome")); err != nil {
		t.Fatal(err)
	}
	p := startLaunched(t, func(c *api.Config) {
		launchedBy("bash", filepath.Join(launchers, "bootstrap", "bootstrap-kernel.sh"))(c)
		c.Env = map[string]string{"KERNEL_LANGUAGE": "python", "KERNEL_LAUNCHERS_DIR": launchers, "PYTHONPATH": path,
			"PATH": filepath.Dir(python) + ":" + os.Getenv("PATH"), "EG_LOG_LEVEL": "20"}
		c.StopGrace = 10 * time.Second
	})
	c := p.attach("ann")
	text := func(code string) string {
		id := c.execute(code)
		return output(c.result(id), id)
	}
	if got := text("x = 41 + 1; print(x)"); got != "42\n" {
		t.Errorf("got %q", got)
	}
	id := c.execute("import time; print('began', flush=True); time.sleep(1000)")
	c.collect("the cell's output", func(g got) bool { return g.msgType == "stream" })
	if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	c.result(id)
	eventually(t, "the launcher says that it got the signal", func() bool {
		return strings.Contains(p.child.out.String(), "server_listener got request: {'signum': 2}")
	})
	p.supervisor.kill()
	p.startSupervisor()
	p.ready()
	c = p.attach("ann")
	if got := text("print(x)"); !strings.HasSuffix(got, "42\n") {
		t.Errorf("the kernel was not adopted: %q", got)
	}
	ended := filepath.Join(path, "ended") // later than SIGTERM comes to a kernel that is not free of its listener
	text(fmt.Sprintf("import atexit, pathlib, time\n"+
		"_ = atexit.register(lambda: (time.sleep(%v), pathlib.Path('%s').touch()))",
		(launchedGrace + time.Second/2).Seconds(), ended))
	began := time.Now()
	if status, body := p.ask("POST", "/restart", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	t.Logf("the restart took %v without what atexit runs", time.Since(began)-launchedGrace-time.Second/2)
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("the kernel's atexit did not run to its end: %v", err)
	}
	if got := text("print('x' in globals())"); got != "False\n" {
		t.Errorf("the kernel was not restarted: %q", got)
	}
	before := p.until("known", func(api.Status) bool { return true }).Epoch
	c.execute("exit()")
	p.until("started again", func(st api.Status) bool { return st.Epoch > before && st.State == api.Idle })
	before = p.until("known", func(api.Status) bool { return true }).Epoch
	if got := text("import os; os.kill(os.getpid(), 9)"); !strings.Contains(got, "was killed (SIGKILL)") {
		t.Errorf("the cell says %q", got)
	}
	p.until("started again", func(st api.Status) bool { return st.Epoch > before && st.State == api.Idle })
	began = time.Now()
	if status, body := p.ask("DELETE", "", ""); status != 204 {
		t.Fatalf("%d %s", status, body)
	}
	t.Logf("a DELETE took %v", time.Since(began))
	if code := p.exitCode(p.child); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
}
