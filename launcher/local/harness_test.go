package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// place is a state directory and the launchers opened on it.
type place struct {
	t              *testing.T
	state, runtime string
	log            transcript.Buffer
	change         func(*Options, *timing)
}

// newPlace makes a place. At the end of the test, all its kernels and goroutines must be gone.
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
		_ = os.RemoveAll(run)
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

// clear stops the kernels that the test has left.
func (p *place) clear() {
	l := p.open()
	defer l.Close() //nolint:errcheck // nothing depends on it
	all, err := l.Kernels(context.Background())
	if err != nil {
		p.t.Error(err)
	}
	for _, k := range all {
		if err := l.Stop(context.Background(), k.ID, "the test is over"); err != nil &&
			!errors.Is(err, launcher.ErrNotFound) {
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

// launcher opens a launcher that is closed before the place is cleared.
func (p *place) launcher() *Launcher {
	l := p.open()
	p.t.Cleanup(func() { _ = l.Close() })
	return l
}

func fakeSpec(mode string) kernelspecs.Spec {
	return kernelspecs.Spec{Name: "fake", Argv: []string{"fake", mode}, InterruptMode: "signal"}
}

// idsVariable passes idPrefix on to the other gateways of this run.
const idsVariable = "TEST_KERNEL_IDS"

// idPrefix begins the ids of this run's kernels. A launcher kills what is left of a kernel by its id, wherever on the
// machine it runs. Two runs of these tests with the same ids would kill each other's kernels.
var idPrefix = func() string {
	if prefix := os.Getenv(idsVariable); prefix != "" {
		return prefix
	}
	prefix := fmt.Sprintf("%08x-1d2c-4b7a-9e10-", rand.Uint32())
	if err := os.Setenv(idsVariable, prefix); err != nil {
		panic(err)
	}
	return prefix
}()

func id(n int) string { return fmt.Sprintf("%s%012d", idPrefix, n) }

func (p *place) start(l *Launcher, n int, mode string) launcher.Kernel {
	p.t.Helper()
	k, created, err := l.Start(p.t.Context(), launcher.Request{ID: id(n), Owner: "ann", Spec: fakeSpec(mode)})
	if err != nil || !created {
		p.t.Fatalf("start: created %v, %v", created, err)
	}
	return k
}

// wait waits until cond is true for a kernel.
func wait(t *testing.T, l *Launcher, n int, what string, cond func(launcher.Kernel) bool) launcher.Kernel {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	k, err := l.Wait(ctx, id(n), cond)
	if err != nil {
		t.Fatalf("waiting until it is %s: %v (%+v)", what, err, k)
	}
	return k
}

func isIdle(k launcher.Kernel) bool { return k.State == api.Idle && !k.Stale }
func isDead(k launcher.Kernel) bool { return k.State == api.Dead }

func processesOf(t *testing.T, p *place, n int) processIDs {
	t.Helper()
	var ps processIDs
	eventually(t, "both process ids are noted", func() bool {
		return files.ReadJSON(filepath.Join(p.state, "kernels", id(n), processFile), &ps) == nil && ps.Kernel != 0
	})
	return ps
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// carriers counts the living processes that have a kernel's id in their environment.
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

// exists reports whether there is a file.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
