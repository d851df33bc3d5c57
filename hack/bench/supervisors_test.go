package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestSupervisors: a launcher starts kernels whose supervisors are in one process, another launcher adopts them, and
// they can be stopped.
func TestSupervisors(t *testing.T) {
	const kernels = 20
	dir, err := os.MkdirTemp("", "ekg-t") // t.TempDir is too long for socket paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stub := filepath.Join(dir, "stub")
	if out, err := exec.Command("cc", "-static", "-o", stub, "stub/stub.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "supervisors"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h := supervisors{log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	served := make(chan error)
	go func() { served <- h.serve(ctx, l, kernels) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil { // nil if it is closed
			t.Error(err)
		}
	})

	open := func() *local.Launcher {
		t.Helper()
		l, err := local.Open(t.Context(), local.Options{Supervisor: stub, Log: h.log,
			StateDir: filepath.Join(dir, "s"), RuntimeDir: filepath.Join(dir, "r")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	idle := func(l *local.Launcher) (n int) {
		list, err := l.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if k.State == api.Idle && !k.Stale {
				n++
			}
		}
		return n
	}
	first := open()
	spec := kernelspecs.Spec{Name: "hosted", Argv: []string{"hosted", "{connection_file}"}}
	var last string
	for range kernels {
		last = uuid.NewString()
		if _, _, err := first.Start(ctx, launcher.Request{ID: last, Owner: "ann", Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	poll.Until(t, "all kernels are idle", func() bool { return idle(first) == kernels })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open()
	poll.Until(t, "all kernels are adopted", func() bool { return idle(second) == kernels })
	if err := second.Stop(ctx, last, "the test stops it"); err != nil {
		t.Fatal(err)
	}
	if n := idle(second); n != kernels-1 {
		t.Errorf("%d kernels are idle after one was stopped", n)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	close(served)
	poll.Until(t, "the host has stopped all kernels", func() bool {
		list, err := second.Kernels(t.Context())
		return err == nil && len(list) == 0
	})
}
