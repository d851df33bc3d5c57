package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

// ekgProcess starts the program as a process. It returns the process and the URL that it has printed.
func ekgProcess(t *testing.T, args ...string) (*exec.Cmd, string) {
	t.Helper()
	return startProcess(t, os.Args[:1], args...)
}

// startProcess is ekgProcess with the program and what stands before it.
func startProcess(t *testing.T, program []string, args ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(program[0], slices.Concat(program[1:], args)...)
	cmd.Env = append(os.Environ(), "RUN_AS_EKG=1")
	var log transcript.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("log:\n%s", log.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("printed no URL: %v\n%s", err, log.String())
	}
	at, ok := strings.CutPrefix(strings.TrimSpace(line), "ekg is ready at ")
	if !ok {
		t.Fatalf("printed %q", line)
	}
	return cmd, at
}

// waitFor waits for a process and returns its state.
func waitFor(t *testing.T, cmd *exec.Cmd) *os.ProcessState {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its state says more
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatal("has not ended after 30 s")
	}
	return cmd.ProcessState
}

// TestServe_Signals runs the real program with the local launcher, and ends it by signals.
func TestServe_Signals(t *testing.T) {
	clearEnvironment(t)
	supervisor := filepath.Join(t.TempDir(), "ekg-supervisor")
	if out, err := exec.Command("go", "build", "-o", supervisor, "../ekg-supervisor").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := func(more ...string) []string {
		runtime, err := os.MkdirTemp("", "ekg")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(runtime) })
		return append([]string{"serve", "--listen", "127.0.0.1:0", "--state-dir", t.TempDir(),
			"--runtime-dir", runtime, "--supervisor", supervisor}, more...)
	}
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		cmd, at := ekgProcess(t, args()...)
		resp, err := http.Get(strings.Replace(at, "/?", "/api/kernels?", 1))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("got %d", resp.StatusCode)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if state := waitFor(t, cmd); state.ExitCode() != 0 {
			t.Errorf("%v: ended with %v", sig, state)
		}
	}

	// A second signal ends the program at once.
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1") // in a cluster the end takes some seconds
	cmd, at := ekgProcess(t, args("--no-auth")...)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		resp, err := http.Get(at + "readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("/readyz does not fail")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if ws := waitFor(t, cmd).Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Errorf("after a second signal: %v", ws)
	}
}
