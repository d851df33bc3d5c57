package launchertest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// kernelProcess starts the program.
func kernelProcess(t *testing.T, args ...string) (*exec.Cmd, Connection, *strings.Builder) {
	t.Helper()
	dir := shortDir(t)
	conn := NewConnection("ipc", dir)
	b, err := json.Marshal(conn)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "connection.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{"-f", file}, args...)...)
	cmd.Env = append(os.Environ(), runAsKernel+"=1")
	stderr := &strings.Builder{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, conn, stderr
}

// connectProcess waits until the program listens.
func connectProcess(t *testing.T, conn Connection) *client {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(testLimit); ; <-tick.C {
		raw, err := dialRaw(conn, conn.IOPubPort) // the kernel binds this socket last
		if err == nil {
			_ = raw.Close()
			c := connect(t, conn, "me")
			c.ready()
			return c
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestFakeKernelMain(t *testing.T) {
	t.Run("dies at start with last words", func(t *testing.T) {
		cmd, _, stderr := kernelProcess(t, "--exit-at-start", "3", "--stderr", "no module named fake")
		_ = cmd.Wait() // the test checks the exit code instead
		if code := cmd.ProcessState.ExitCode(); code != 3 || stderr.String() != "no module named fake\n" {
			t.Errorf("got exit code %d, stderr %q", code, stderr)
		}
	})
	t.Run("SIGINT interrupts, crash is a signal", func(t *testing.T) {
		cmd, conn, stderr := kernelProcess(t, "--start-delay", "50ms")
		c := connectProcess(t, conn)
		id := c.run("sleep 1h")
		c.recv(jupyter.IOPub)
		c.recv(jupyter.IOPub) // execute_input: the cell sleeps, or soon will
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if got := c.reply(id); got != "error KeyboardInterrupt" {
			t.Errorf("got %q", got)
		}
		c.run("complain aargh\ncrash")
		_ = cmd.Wait() // the test checks the exit code instead
		if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL || stderr.String() != "aargh\n" {
			t.Errorf("got %v, stderr %q", cmd.ProcessState, stderr)
		}
	})
	t.Run("it ignores interrupts and requests to end", func(t *testing.T) {
		cmd, conn, _ := kernelProcess(t, "--ignore-sigterm", "--ignore-shutdown", "--ignore-sigint")
		c := connectProcess(t, conn)
		c.send(jupyter.Control, "shutdown_request", content{"restart": false})
		for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
		// An answer after the three attempts to end the kernel shows that it still lives.
		id := c.run("sleep 50ms")
		if got := c.reply(id); got != "ok " {
			t.Errorf("got %q", got)
		}
		_ = cmd.Process.Kill() // seen by Wait
		_ = cmd.Wait()         // it was killed
	})
	t.Run("a bad flag", func(t *testing.T) {
		cmd, _, _ := kernelProcess(t, "--what")
		_ = cmd.Wait() // the test checks the exit code instead
		if code := cmd.ProcessState.ExitCode(); code != 2 {
			t.Errorf("exit code %d", code)
		}
	})
}
