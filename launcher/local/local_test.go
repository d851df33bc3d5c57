package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// place is a state directory and the launchers opened on it.
type place struct {
	t              *testing.T
	state, runtime string
	log            logBuffer
	change         func(*Options, *timing)
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// newPlace makes one whose kernels are all gone, and every goroutine with them, when the test ends.
func newPlace(t *testing.T) *place {
	t.Helper()
	before := goleak.IgnoreCurrent()
	run, err := os.MkdirTemp("", "ekg") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	p := &place{t: t, state: filepath.Join(t.TempDir(), "state"), runtime: run}
	t.Cleanup(func() {
		p.clear()
		goleak.VerifyNone(t, before)
		left, err := os.ReadDir(run)
		if err != nil || len(left) > 0 {
			t.Errorf("folders of sockets are left: %v %v", left, err)
		}
		os.RemoveAll(run)
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// clear stops what the test has left.
func (p *place) clear() {
	l := p.open()
	defer l.Close()
	all, err := l.Kernels(context.Background())
	if err != nil {
		p.t.Error(err)
	}
	for _, k := range all {
		if err := l.Stop(context.Background(), k.ID, "the test is over"); err != nil && !errors.Is(err, launcher.ErrNotFound) {
			p.t.Errorf("stop: %v", err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(p.state, "kernels")); err != nil || len(entries) > 0 {
		p.t.Errorf("folders are left: %v %v", entries, err)
	}
}

func (p *place) open() *Launcher {
	p.t.Helper()
	o := Options{StateDir: p.state, RuntimeDir: p.runtime, Supervisor: os.Args[0], StopGrace: 300 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&p.log, nil))}
	tm := realTiming()
	if p.change != nil {
		p.change(&o, &tm)
	}
	l, err := open(context.Background(), o, tm)
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// launcher opens one that is closed before the place is cleared.
func (p *place) launcher() *Launcher {
	l := p.open()
	p.t.Cleanup(func() { l.Close() })
	return l
}

func fakeSpec(mode string) kernelspecs.Spec {
	return kernelspecs.Spec{Name: "fake", Argv: []string{"fake", mode}, InterruptMode: "signal"}
}

func id(n int) string { return fmt.Sprintf("3f0a6f5e-1d2c-4b7a-9e10-%012d", n) }

func (p *place) start(l *Launcher, n int, mode string) launcher.Kernel {
	p.t.Helper()
	k, created, err := l.Start(p.t.Context(), launcher.Request{ID: id(n), Owner: "ann", Spec: fakeSpec(mode)})
	if err != nil || !created {
		p.t.Fatalf("start: created %v, %v", created, err)
	}
	return k
}

// wait waits for a condition of a kernel.
func wait(t *testing.T, l *Launcher, n int, what string, cond func(launcher.Kernel) bool) launcher.Kernel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	k, err := l.Wait(ctx, id(n), cond)
	if err != nil {
		t.Fatalf("waiting until it is %s: %v (%+v)", what, err, k)
	}
	return k
}

func isIdle(k launcher.Kernel) bool { return k.State == launcher.Idle && !k.Stale }
func isDead(k launcher.Kernel) bool { return k.State == launcher.Dead }

func processesOf(t *testing.T, p *place, n int) processes {
	t.Helper()
	var ps processes
	eventually(t, "both process ids are noted", func() bool {
		return readJSON(filepath.Join(p.state, "kernels", id(n), processFile), &ps) == nil && ps.Kernel != 0
	})
	return ps
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 15 s: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// carriers counts the living processes with a kernel's id in their environment.
func carriers(n int) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err == nil && bytes.Contains(b, []byte("EKG_KERNEL_ID="+id(n))) {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestSuite runs what every launcher must pass with the real supervisor and the fake kernel.
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
		{"runtime too long", func(o *Options) { o.RuntimeDir = "/tmp/" + strings.Repeat("x", 90) }, "too long for the path of a socket"},
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
				l.Close()
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
		defer l.Close()
		for _, d := range []string{o.StateDir, l.layout.kernels(), l.layout.ended(), o.RuntimeDir} {
			if st, err := os.Stat(d); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v %v", d, st.Mode(), err)
			}
		}
	})
}

func TestStart(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.ready = 2 * time.Second }
	l := p.launcher()
	for i, c := range []struct{ mode, want string }{
		{"refuse", "its supervisor could not start: the moon is not full"},
		{"leave", "ended before it answered"},
		{"silent", "its supervisor did not answer within 2s"},
		{"program", `the kernel's program "/x" does not exist`},
	} {
		t.Run(c.mode, func(t *testing.T) {
			_, created, err := l.Start(t.Context(), launcher.Request{ID: id(i), Spec: fakeSpec(c.mode)})
			var failed *launcher.FailedError
			if created || !errors.As(err, &failed) || !strings.Contains(failed.Reason, c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
			for _, dir := range []string{"kernels", "ended"} {
				if left, err := os.ReadDir(filepath.Join(p.state, dir)); err != nil || len(left) > 0 {
					t.Errorf("%s has %v %v", dir, left, err)
				}
			}
			if _, err := l.Kernel(t.Context(), id(i)); err != launcher.ErrNotFound {
				t.Errorf("afterwards: %v", err)
			}
			eventually(t, "no process is left", func() bool { return l.children.count() == 0 })
		})
	}
	t.Run("an impossible variable", func(t *testing.T) {
		_, _, err := l.Start(t.Context(), launcher.Request{ID: id(9), Spec: fakeSpec("fine"), Env: map[string]string{"KERNEL_A": "\x00"}})
		var failed *launcher.FailedError
		if !errors.As(err, &failed) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("its caller leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		_, _, err := l.Start(ctx, launcher.Request{ID: id(10), Spec: fakeSpec("silent")})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if left, err := os.ReadDir(filepath.Join(p.state, "kernels")); err != nil || len(left) > 0 {
			t.Errorf("left: %v %v", left, err)
		}
	})
	t.Run("the launcher closes", func(t *testing.T) {
		other := p.open()
		time.AfterFunc(100*time.Millisecond, func() { other.Close() })
		_, _, err := other.Start(t.Context(), launcher.Request{ID: id(11), Spec: fakeSpec("silent")})
		if !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		other.Close()
	})
}

func TestStart_Concurrent(t *testing.T) {
	p := newPlace(t)
	launchers := []*Launcher{p.launcher(), p.launcher()}
	var all sync.WaitGroup
	created := make(chan bool, 8)
	for i := range cap(created) {
		all.Go(func() {
			k, c, err := launchers[i%2].Start(t.Context(), launcher.Request{ID: id(1), Spec: fakeSpec("fine")})
			if err != nil || k.ID != id(1) {
				t.Errorf("start: %v", err)
			}
			created <- c
		})
	}
	all.Wait()
	close(created)
	n := 0
	for c := range created {
		if c {
			n++
		}
	}
	if n != 1 {
		t.Errorf("created %d times", n)
	}
	wait(t, launchers[1], 1, "idle", isIdle)
	if _, _, err := launchers[1].Start(t.Context(), launcher.Request{ID: id(1), Owner: "bob", Spec: fakeSpec("fine")}); !errors.Is(err, launcher.ErrConflict) {
		t.Errorf("another owner gets %v", err)
	}
}

// TestStart_Watched has a second gateway look at a kernel while its supervisor has not got to its lock yet. It must
// neither take it for dead nor be in the supervisor's way.
func TestStart_Watched(t *testing.T) {
	p := newPlace(t)
	a, b := p.launcher(), p.launcher()
	started := make(chan error, 1)
	go func() {
		_, _, err := a.Start(context.Background(), launcher.Request{ID: id(1), Owner: "ann", Spec: fakeSpec("slow")})
		started <- err
	}()
	for {
		k, err := b.Kernel(t.Context(), id(1))
		if k.State == launcher.Dead || (err != nil && !errors.Is(err, launcher.ErrNotFound)) {
			t.Errorf("a kernel that is being started: %+v, %v", k, err)
		}
		select {
		case err := <-started:
			if err != nil {
				t.Error(err)
			}
			wait(t, b, 1, "idle", isIdle)
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func TestAdoption(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	for n := range 3 {
		p.start(l, n, "fine")
	}
	l.Close()
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
	heard := l.kernels[id(0)].status
	l.mu.Unlock()
	if heard.PID != ps.Supervisor || heard.KernelPID != ps.Kernel {
		t.Errorf("noted %+v, heard %+v", ps, heard)
	}
}

func TestSupervisorKilled(t *testing.T) {
	check := func(t *testing.T, p *place, l *Launcher, pid int) {
		t.Helper()
		k := wait(t, l, 1, "dead", isDead)
		want := fmt.Sprintf("its supervisor process (pid %d) ended unexpectedly; its log and variables are lost", pid)
		if k.Reason != want || k.Stale || k.Connections != 0 {
			t.Errorf("got %+v, want %s", k, want)
		}
		if left := carriers(1); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		var gone *launcher.GoneError
		if _, err := l.Dial(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != want {
			t.Errorf("dial gives %v", err)
		}
	}
	t.Run("while a gateway watches", func(t *testing.T) {
		p := newPlace(t)
		l := p.launcher()
		p.start(l, 1, "fine")
		ps := processesOf(t, p, 1)
		eventually(t, "the kernel has a child", func() bool { return len(carriers(1)) == 2 })
		begin := time.Now()
		kill(t, ps.Supervisor)
		check(t, p, l, ps.Supervisor)
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("noticed after %v", took)
		}
		// It can be started again, and is the same kernel.
		if _, err := l.Revive(t.Context(), id(1)); err != nil {
			t.Fatal(err)
		}
		k := wait(t, l, 1, "idle", isIdle)
		if k.Owner != "ann" || k.Reason != "" {
			t.Errorf("revived: %+v", k)
		}
		if again := processesOf(t, p, 1); again.Supervisor == ps.Supervisor {
			t.Error("no new process")
		}
		if k, err := l.Revive(t.Context(), id(1)); err != nil || k.State != launcher.Idle {
			t.Errorf("a living one is revived: %+v, %v", k, err)
		}
	})
	t.Run("while none does", func(t *testing.T) {
		p := newPlace(t)
		l := p.open()
		p.start(l, 1, "fine")
		ps := processesOf(t, p, 1)
		l.Close()
		kill(t, ps.Supervisor)
		check(t, p, p.launcher(), ps.Supervisor)
	})
}

func TestStop(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) { o.StopGrace, tm.stopMargin = 100*time.Millisecond, time.Second }
	l := p.launcher()
	gone := func(t *testing.T, l *Launcher, n int, reason string) {
		t.Helper()
		var g *launcher.GoneError
		_, err := l.Kernel(t.Context(), id(n))
		if !errors.As(err, &g) || g.Reason != reason || !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("afterwards: %v", err)
		}
		if left := carriers(n); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		if err := l.Stop(t.Context(), id(n), "again"); !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("again: %v", err)
		}
	}
	t.Run("by several at once", func(t *testing.T) {
		p.start(l, 1, "fine")
		other := p.launcher()
		wait(t, other, 1, "idle", isIdle)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				if err := []*Launcher{l, other}[i%2].Stop(context.Background(), id(1), "enough"); err != nil && !errors.Is(err, launcher.ErrNotFound) {
					t.Errorf("stop: %v", err)
				}
			})
		}
		all.Wait()
		gone(t, l, 1, "enough")
		gone(t, other, 1, "enough")
		// Whoever comes later knows too; and the id may be used again.
		later := p.launcher()
		gone(t, later, 1, "enough")
		p.start(later, 1, "fine")
	})
	t.Run("a supervisor that does not hear", func(t *testing.T) {
		k := p.start(l, 2, "deaf")
		wait(t, l, 2, "idle", isIdle)
		pid := processesOf(t, p, 2).Supervisor
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := l.Stop(ctx, k.ID, "enough"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("who does not wait gets %v", err)
		}
		if err := l.Stop(t.Context(), k.ID, "enough"); err != nil {
			t.Fatal(err)
		}
		gone(t, l, 2, "enough")
		if err := syscall.Kill(pid, 0); err == nil {
			eventually(t, "supervisor is gone", func() bool { return syscall.Kill(pid, 0) != nil })
		}
	})
	t.Run("behind the launcher's back", func(t *testing.T) {
		p.start(l, 4, "fine")
		l.mu.Lock()
		k := l.kernels[id(4)]
		l.mu.Unlock()
		if err := l.client(k).Stop(t.Context(), "its client said so"); err != nil {
			t.Fatal(err)
		}
		_, err := l.Wait(t.Context(), id(4), func(launcher.Kernel) bool { return false })
		if !errors.Is(err, launcher.ErrNotFound) {
			t.Errorf("who waits gets %v", err)
		}
		gone(t, l, 4, "its client said so")
	})
	t.Run("a dead one", func(t *testing.T) {
		p.start(l, 3, "fine")
		kill(t, processesOf(t, p, 3).Supervisor)
		wait(t, l, 3, "dead", isDead)
		if err := l.Stop(t.Context(), id(3), "enough"); err != nil {
			t.Fatal(err)
		}
		gone(t, l, 3, "enough")
	})
}

func TestDeadLinger(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, tm *timing) { o.DeadLinger, tm.tend = time.Second, 100*time.Millisecond }
	l := p.launcher()
	p.start(l, 1, "fine")
	kill(t, processesOf(t, p, 1).Kernel)
	k := wait(t, l, 1, "dead", isDead)
	if k.Reason != "it died in a test" {
		t.Errorf("dead: %+v", k)
	}
	eventually(t, "the dead kernel is removed", func() bool {
		all, err := l.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 0
	})
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "it died in a test" {
		t.Errorf("then: %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.state, "kernels", id(1))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder: %v", err)
	}
}

func TestTwoGateways(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.tend = time.Hour } // what is seen is seen by looking
	a, b := p.launcher(), p.launcher()
	p.start(a, 1, "fine")
	if k, err := b.Kernel(t.Context(), id(1)); err != nil || k.State != launcher.Idle {
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
	if k, err := b.Kernel(t.Context(), id(1)); err != nil || k.State == launcher.Dead {
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

// TestGatewayKilled kills a gateway that is another process, which holds the reaper's lock and has started a kernel.
func TestGatewayKilled(t *testing.T) {
	p := newPlace(t)
	p.change = func(_ *Options, tm *timing) { tm.tend, tm.halfMade = 20*time.Millisecond, 0 }
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
	// While the other gateway lives, it is the one that clears away.
	halfMade := filepath.Join(p.state, "kernels", ".new-1")
	if err := os.Mkdir(halfMade, 0o700); err != nil {
		t.Fatal(err)
	}
	<-time.After(200 * time.Millisecond)
	if _, err := os.Stat(halfMade); err != nil {
		t.Errorf("two gateways clear away: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	eventually(t, "the gateway that is left clears away", func() bool {
		_, err := os.Stat(halfMade)
		return errors.Is(err, fs.ErrNotExist)
	})
	if k := wait(t, l, 1, "idle", isIdle); k.Owner != "ann" || processesOf(t, p, 1) != ps {
		t.Errorf("after its gateway's death the kernel is %+v", k)
	}
}

func TestOtherProtocol(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.StopGrace = 100 * time.Millisecond }
	l := p.launcher()
	k := p.start(l, 1, "version")
	k = wait(t, l, 1, "left alone", func(k launcher.Kernel) bool { return strings.Contains(k.Reason, "99") })
	if !k.Stale || k.State != launcher.Busy {
		t.Errorf("it is %+v", k)
	}
	if _, err := l.Dial(t.Context(), id(1)); !errors.Is(err, launcher.ErrUnavailable) || !strings.Contains(err.Error(), "99") {
		t.Errorf("dial: %v", err)
	}
	if all, err := l.Kernels(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("list: %d, %v", len(all), err)
	}
	if len(carriers(1)) == 0 {
		t.Error("it was not left running")
	}
}

func TestLogTotal(t *testing.T) {
	p := newPlace(t)
	p.change = func(o *Options, _ *timing) { o.LogLimit, o.LogTotal = 4<<20, 10<<20 }
	l := p.launcher()
	limits := func() (all []int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range l.kernels {
			all = append(all, k.status.LogLimit)
		}
		return all
	}
	for n, want := range []int64{4 << 20, 4 << 20, 10 << 20 / 3, 10 << 20 / 4} {
		p.start(l, n, "fine")
		eventually(t, fmt.Sprintf("each of %d has its share", n+1), func() bool {
			got := limits()
			for _, g := range got {
				if g != want {
					return false
				}
			}
			return len(got) == n+1
		})
	}
	for n := range 2 {
		if err := l.Stop(t.Context(), id(n), ""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "they get more when others go", func() bool {
		got := limits()
		return len(got) == 2 && got[0] == 4<<20 && got[1] == 4<<20
	})
	if got := (&Launcher{opts: Options{LogLimit: 4 << 20, LogTotal: 10 << 20}}).share(1000); got != 1<<20 {
		t.Errorf("with very many kernels each has %d", got)
	}
}

func TestBadEntries(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	p.start(l, 1, "fine")
	l.Close()
	kernels := filepath.Join(p.state, "kernels")
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(kernels, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(id(2)+"/kernel.json", "{half")
	write(id(3)+"/other", "")
	write(id(4)+"/kernel.json", `{"id":"`+id(5)+`"}`)
	write(id(6)+"/kernel.json", `{"id":"`+id(6)+`"}`)
	write(id(7), "a file")
	write("not-an-id/kernel.json", "{}")
	write(".new-1/kernel.json", "{}")
	write(id(1)+"/sessions.json", "{half")
	old := time.Now().Add(-time.Hour)
	write(".old-2/kernel.json", "{}")
	if err := os.Chtimes(filepath.Join(kernels, ".old-2"), old, old); err != nil {
		t.Fatal(err)
	}
	l = p.launcher()
	all, err := l.Kernels(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != id(1) || len(all[0].Sessions) != 0 {
		t.Errorf("listed: %+v, %v", all, err)
	}
	aside, err := os.ReadDir(filepath.Join(p.state, "aside"))
	if err != nil || len(aside) != 6 {
		t.Errorf("set aside: %v, %v", aside, err)
	}
	if n := strings.Count(p.log.String(), "set aside"); n != 6 {
		t.Errorf("told %d times", n)
	}
	// Somebody is at work on this one: it is neither there nor not, and stays where it is.
	write(id(8)+"/other", "")
	held, err := lockFolder(filepath.Join(kernels, id(8)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Kernel(t.Context(), id(8)); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("one that is being worked on: %v", err)
	}
	unlock(held)
	if _, err := l.Kernel(t.Context(), id(8)); err != launcher.ErrNotFound {
		t.Errorf("a bad one: %v", err)
	}
	eventually(t, "what was half removed is removed, what may be in the making is not", func() bool {
		left, err := os.ReadDir(kernels)
		return err == nil && len(left) == 2
	})
	if err := os.RemoveAll(filepath.Join(kernels, ".new-1")); err != nil {
		t.Fatal(err)
	}
}

func TestSweep(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	stone := func(name string, age time.Duration) {
		t.Helper()
		path := filepath.Join(p.state, "ended", name)
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	stone("old.json", endedAge+time.Hour)
	stone("older.json", endedAge-time.Hour)
	for i := range endedKept {
		stone(strconv.Itoa(i)+".json", time.Hour)
	}
	run := filepath.Join(p.runtime, l.layout.mark+"00000000")
	foreign := filepath.Join(p.runtime, "00000000000000")
	for _, d := range []string{run, foreign} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(d, old, old); err != nil {
			t.Fatal(err)
		}
	}
	l.sweep()
	left, err := os.ReadDir(filepath.Join(p.state, "ended"))
	if err != nil || len(left) != endedKept {
		t.Errorf("%d tombstones, %v", len(left), err)
	}
	for _, name := range []string{"old.json", "older.json"} {
		if _, err := os.Stat(filepath.Join(p.state, "ended", name)); err == nil {
			t.Errorf("%s is kept", name)
		}
	}
	if _, err := os.Stat(run); err == nil {
		t.Error("sockets of nobody are kept")
	}
	if err := os.Remove(foreign); err != nil {
		t.Error("another state directory's sockets were removed")
	}
}

func TestGoneError(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	write := func(content string) {
		if err := os.WriteFile(l.layout.tombstone(id(1)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(supervisor.Ending{KernelID: id(1), Reason: "r", At: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	write(string(b))
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(1)); !errors.As(err, &gone) || gone.Reason != "r" {
		t.Errorf("got %v", err)
	}
	write("{half")
	if _, err := l.Kernel(t.Context(), id(1)); err != launcher.ErrNotFound {
		t.Errorf("a broken tombstone: %v", err)
	}
	if _, err := l.Kernel(t.Context(), "../"+id(1)); err != launcher.ErrNotFound {
		t.Errorf("no id: %v", err)
	}
	// What cannot be read does not exist for sure.
	if err := os.RemoveAll(l.layout.kernels()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Kernels(t.Context()); !errors.Is(err, launcher.ErrUnavailable) {
		t.Errorf("without a folder: %v", err)
	}
	if err := os.Mkdir(l.layout.kernels(), 0o700); err != nil {
		t.Fatal(err)
	}
}
