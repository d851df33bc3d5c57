package local

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestSuite runs the suite of all launchers with the real supervisor and the fake kernel.
func TestSuite(t *testing.T) {
	p := newPlace(t)
	launchertest.Run(t, func(*testing.T) launcher.Launcher { return p.open() }, kernelspecs.Spec{
		Name: "fakekernel", Argv: []string{os.Args[0], "kernel", "-f", "{connection_file}"}, InterruptMode: "signal"})
}

func TestOpen(t *testing.T) {
	good := Options{StateDir: t.TempDir(), RuntimeDir: t.TempDir(), Supervisor: os.Args[0]}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"relative state", func(o *Options) { o.StateDir = "x" }, "StateDir:"},
		{"state is a file", func(o *Options) { o.StateDir = os.Args[0] }, "StateDir:"},
		{"relative runtime", func(o *Options) { o.RuntimeDir = "x" }, "RuntimeDir:"},
		{
			"runtime too long",
			func(o *Options) { o.RuntimeDir = "/tmp/" + strings.Repeat("x", 90) },
			"too long for the path of a socket",
		},
		{"no supervisor", func(o *Options) { o.Supervisor = "" }, "Supervisor:"},
		{"supervisor missing", func(o *Options) { o.Supervisor = "/x/y" }, "Supervisor:"},
		{"supervisor is a folder", func(o *Options) { o.Supervisor = "/tmp" }, "Supervisor:"},
		{"negative", func(o *Options) { o.LogLimit = -1 }, "LogLimit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good
			c.change(&o)
			l, err := Open(t.Context(), o)
			if err == nil {
				_ = l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	t.Run("folders are private, though made by others' umask", func(t *testing.T) {
		o := good
		o.StateDir = filepath.Join(t.TempDir(), "s")
		if err := os.Mkdir(o.StateDir, 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nothing depends on it
		for _, d := range []string{o.StateDir, l.layout.kernels(), l.layout.ended(), o.RuntimeDir} {
			if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v %v", d, st.Mode(), err)
			}
		}
	})
}

func TestAdoption(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	for n := range 3 {
		p.start(l, n, "fine")
	}
	_ = l.Close()
	if _, err := l.Kernel(t.Context(), id(0)); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("a closed launcher says %v", err)
	}
	l = p.launcher()
	all, err := l.Kernels(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%d kernels, %v", len(all), err)
	}
	for n, k := range all {
		if k.ID != id(n) || k.Owner != "ann" || k.SpecName != "fake" {
			t.Errorf("%d is %+v", n, k)
		}
		wait(t, l, n, "idle", isIdle)
	}
	ps := processesOf(t, p, 0)
	l.mu.Lock()
	received := l.kernels.byID[id(0)].supervisor.Status
	l.mu.Unlock()
	if received.PID != ps.Supervisor || received.KernelPID != ps.Kernel {
		t.Errorf("noted %+v, received %+v", ps, received)
	}
}

func TestTwoGateways(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.maintenance = time.Hour } // so that only requests read the folder
	a, b := p.launcher(), p.launcher()
	p.start(a, 1, "fine")
	if k, err := b.Kernel(t.Context(), id(1)); err != nil || k.State != api.Idle {
		t.Errorf("the other sees %+v, %v", k, err)
	}
	p.start(b, 2, "fine")
	if all, err := a.Kernels(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("the first lists %d, %v", len(all), err)
	}
	kill(t, processesOf(t, p, 1).Supervisor)
	wait(t, a, 1, "dead", isDead)
	wait(t, b, 1, "dead", isDead)
	if _, err := a.Revive(t.Context(), id(1)); err != nil {
		t.Fatal(err)
	}
	if k, err := b.Kernel(t.Context(), id(1)); err != nil || k.State == api.Dead {
		t.Errorf("after the revival the other sees %+v, %v", k, err)
	}
	if err := b.Stop(t.Context(), id(1), "enough"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first sees the stop", func() bool {
		_, err := a.Kernel(t.Context(), id(1))
		return errors.Is(err, launcher.ErrNotFound)
	})
}

// TestGatewayKilled kills a gateway in another process, which holds the reaper's lock and has started a kernel.
func TestGatewayKilled(t *testing.T) {
	p := newPlace(t)
	rounds := make(chan time.Time)
	p.change = func(_ *Options, tm *timing) { tm.rounds, tm.halfMade = rounds, 0 }
	wholeRound := func() {
		rounds <- time.Now()
		rounds <- time.Now() // is received after the first round
	}
	cmd := exec.Command(os.Args[0], "gateway", p.state, p.runtime, id(1))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "running\n" || err != nil {
		t.Errorf("the gateway says %q, %v", line, err)
	}
	l := p.launcher()
	wait(t, l, 1, "idle", isIdle)
	ps := processesOf(t, p, 1)
	// While the other gateway lives, it holds the reaper's lock.
	halfMade := filepath.Join(p.state, "kernels", ".new-1")
	if err := os.Mkdir(halfMade, 0o700); err != nil {
		t.Fatal(err)
	}
	wholeRound()
	if _, err := os.Stat(halfMade); err != nil {
		t.Errorf("two gateways clean up: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	wholeRound()
	if _, err := os.Stat(halfMade); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the gateway that is left does not clean up: %v", err)
	}
	if k := wait(t, l, 1, "idle", isIdle); k.Owner != "ann" || processesOf(t, p, 1) != ps {
		t.Errorf("after its gateway's death the kernel is %+v", k)
	}
}
