//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// script runs one of testdata's scripts against the gateway. Each of its lines "PASS name" and "FAIL name: why" is a
// subtest. A script without any such line fails.
func (g *gateway) script(limit time.Duration, env []string, program string, args ...string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = g.env(append([]string{
		"EKG_URL=" + g.url,
		"EKG_TOKEN=" + g.token,
		"EKG_KERNELS=python3,ipykernel6,xpython",
		"EKG_NODE=" + filepath.Join(g.in.dir, "node"),
		"EKG_LAB=" + filepath.Join(g.in.dir, "lab"),
		"EKG_ONLY=" + os.Getenv("EKG_ONLY"),
		"PYTHONDONTWRITEBYTECODE=1",
	}, env...)...)
	log, err := os.Create(strings.TrimSuffix(g.log, ".log") + "-script.log")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	failed := cmd.Run()
	if _, err := log.Seek(0, 0); err != nil {
		g.t.Fatal(err)
	}
	checks := 0
	for lines := bufio.NewScanner(log); lines.Scan(); {
		verdict, rest, _ := strings.Cut(lines.Text(), " ")
		switch verdict {
		case "PASS":
			checks++
			g.t.Run(rest, func(*testing.T) {})
		case "FAIL":
			name, why, _ := strings.Cut(rest, ": ")
			g.t.Run(name, func(t *testing.T) { t.Error(why) })
		case "SKIP", "#":
			g.t.Log(lines.Text())
		}
	}
	if failed != nil || checks == 0 {
		g.t.Errorf("%s: %v after %d passed checks; see %s", filepath.Base(args[len(args)-1]), failed, checks, log.Name())
	}
}

// python runs a Python script with the newest versions of Jupyter's packages.
func (g *gateway) python(script string) {
	g.t.Helper()
	g.script(10*time.Minute, nil, filepath.Join(g.in.dir, "lab/bin/python"),
		filepath.Join(g.in.repository, "e2e/testdata/python", script))
}

func TestE2E_Direct(t *testing.T) { newGateway(t).python("direct.py") }

// TestE2E_DirectUnmodified uses an unmodified nbclient, which sends no token on its websocket.
func TestE2E_DirectUnmodified(t *testing.T) {
	g := newGatewayWithout(t)
	g.python("direct.py")
}

func TestE2E_ThroughServer(t *testing.T) {
	t.Parallel()
	newGateway(t).python("through_server.py")
}

func TestE2E_KernelTests(t *testing.T) { newGateway(t).python("kernel_tests.py") }

func TestE2E_Services(t *testing.T) {
	g := newGateway(t)
	g.script(10*time.Minute, nil, "node", filepath.Join(g.in.repository, "e2e/testdata/js/services.mjs"))
}

func TestE2E_JupyterLab(t *testing.T) {
	g := newGateway(t)
	control := httptest.NewServer(g.control())
	defer control.Close()
	env := []string{"EKG_CONTROL=" + control.URL, "EKG_ARTIFACTS=" + filepath.Join(g.in.artifacts, "jupyterlab")}
	g.script(20*time.Minute, env, "node",
		filepath.Join(g.in.repository, "e2e/testdata/browser/jupyterlab.mjs"))
}

// control lets a script kill the gateway and start it again.
func (g *gateway) control() http.Handler {
	var running atomic.Bool
	running.Store(true)
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
	mux.HandleFunc("POST /kill", func(w http.ResponseWriter, _ *http.Request) {
		if running.CompareAndSwap(true, false) {
			answer(w, g.signal(syscall.SIGKILL))
		}
	})
	mux.HandleFunc("POST /start", func(w http.ResponseWriter, _ *http.Request) {
		if running.CompareAndSwap(false, true) {
			answer(w, g.tryStart())
		}
	})
	return mux
}

// TestE2E_Demo runs `make demo`, which runs a notebook here instead of waiting for a person.
func TestE2E_Demo(t *testing.T) {
	in := theInstallation(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(in.repository, "hack/demo"))
	cmd.Env = append(os.Environ(), "DEMO_CHECK=1", "DEMO_BIN="+in.bin)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "demo: the notebook ran") {
		t.Errorf("%v\n%s", err, out)
	}
	if left := processes(t, func(p process) bool {
		return strings.Contains(p.environ, "EKG_DEMO=") && p.pid != os.Getpid()
	}); len(left) > 0 {
		t.Errorf("the demo has ended and left %v", left)
	}
}
