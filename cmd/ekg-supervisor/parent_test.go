package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// hangupConfig writes the configuration of a kernel into a new folder below dir, and returns the program's arguments.
func hangupConfig(t *testing.T, dir, kernel string, below bool) (cfg api.Config, args []string) {
	t.Helper()
	state := filepath.Join(dir, uuid.NewString()[:4])
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg = api.Config{Protocol: api.ProtocolVersion, KernelID: uuid.NewString(), SpecName: "fake", Owner: "ann",
		Argv: []string{kernel, "-f", "{connection_file}"}, Env: map[string]string{"PATH": os.Getenv("PATH")},
		InterruptMode: "signal", WorkingDir: "/", Listen: "unix:" + filepath.Join(state, "s"), Transport: "ipc",
		RunDir: state, ConnectionFile: filepath.Join(state, "connection.json"),
		LockFile: filepath.Join(state, "lock"), EndFile: filepath.Join(state, "ended.json"), SpillDir: state,
		LogLimit: 64 << 20, StopGrace: time.Second, DeadLinger: time.Second, RestartLimit: 3}
	config := filepath.Join(state, "supervisor.json")
	args = []string{"--config", config}
	if below {
		cfg.SameMachine, cfg.ChildSocket = true, filepath.Join(state, "c")
		args = append([]string{"parent"}, args...)
	}
	b, err := json.Marshal(cfg)
	if err == nil {
		err = os.WriteFile(config, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cfg, args
}

// TestHangup: SIGHUP stops a supervisor without a parent, as SIGTERM does. Without a request to upgrade, a parent and
// its supervisor ignore it.
func TestHangup(t *testing.T) {
	dir, err := os.MkdirTemp("", "ekg-h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := build(t, dir, "github.com/elastic-kernel-gateway/ekg/cmd/ekg-supervisor")
	kernel := build(t, dir, "github.com/elastic-kernel-gateway/ekg/launcher/launchertest/kernel")
	for name, below := range map[string]bool{"a supervisor without a parent": false, "below a parent": true} {
		t.Run(name, func(t *testing.T) {
			cfg, args := hangupConfig(t, dir, kernel, below)
			cmd := exec.Command(program, args...)
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() }) // most often it has ended
			p := &testPod{t: t, dir: cfg.RunDir, cfg: cfg}
			p.until("idle", func(st api.Status) bool {
				if !idle(st) {
					return false
				}
				if below {
					_ = syscall.Kill(st.PID, syscall.SIGHUP) // a failure shows below
				}
				return true
			})
			_ = cmd.Process.Signal(syscall.SIGHUP)
			if below {
				p.until("idle", func(st api.Status) bool { return idle(st) && st.Counts.Failed == 0 })
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("it ends with %v", err)
				}
			case <-ctx.Done():
				t.Fatal("it does not end")
			}
			var e api.Ending
			if b, err := os.ReadFile(cfg.EndFile); err != nil || json.Unmarshal(b, &e) != nil || !e.Stopped ||
				e.Reason != api.SignalReason {
				t.Errorf("the kernel's end is %+v, %v", e, err)
			}
		})
	}
}

// TestParent_ChildSocket: a supervisor that cannot listen for its parent says so to the program that has started them.
// Otherwise that program would take the start for a success.
func TestParent_ChildSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "ekg-c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program := build(t, dir, "github.com/elastic-kernel-gateway/ekg/cmd/ekg-supervisor")
	cfg, args := hangupConfig(t, dir, "/no/kernel", true)
	if err := os.MkdirAll(filepath.Join(cfg.ChildSocket, "occupied"), 0o700); err != nil {
		t.Fatal(err)
	}
	ready, answer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(args, "--ready-fd", "3")...)
	cmd.ExtraFiles = []*os.File{answer}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = answer.Close() // the program has a copy
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := ready.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(ready); err != nil || !strings.HasPrefix(string(b), "child_socket: ") {
		t.Errorf("the answer is %q, %v", b, err)
	}
}
