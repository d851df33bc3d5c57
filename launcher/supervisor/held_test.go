package supervisor

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// heldFile returns a file that is locked, and a function that reports whether another program could lock it.
func heldFile(t *testing.T) (f *os.File, free func() bool) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "GPU-1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // nothing was written
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return f, func() bool {
		other, err := os.Open(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close() //nolint:errcheck // it was only read
		err = unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatal(err)
		}
		return err == nil
	}
}

// TestSupervisor_Held: a lock that the kernel's launcher has taken is released when the kernel is dead, also while
// others have a copy of the descriptor. It stays through restarts. A dead kernel is not restarted without it.
func TestSupervisor_Held(t *testing.T) {
	f, free := heldFile(t)
	copied, err := unix.Dup(int(f.Fd())) // as a process has that is left
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied) //nolint:errcheck // nothing was written
	r := startSupervisorTuned(t, func(c *api.Config) { c.RestartLimit = 0 },
		func(s *Supervisor) { s.SetHeld([]*os.File{f}) }).ready()
	if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	r.ready()
	if free() {
		t.Fatal("a restart releases the lock")
	}
	r.dial(dialOption{session: "ann"}).execute("exit 4")
	r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	if !free() {
		t.Error("a dead kernel holds the lock")
	}
	if status, body := r.request("POST", "/restart", ""); status < 400 || !strings.Contains(body, "given back") {
		t.Errorf("restart of the dead kernel: %d %s", status, body)
	}
	select {
	case <-r.done:
	case <-time.After(testLimit):
		t.Error("the supervisor does not end")
	}
}

// lostProcess is a process that counts as ended because its child does not answer.
type lostProcess struct{ starter.Process }

func (lostProcess) Exit() process.Exit { return process.Exit{Code: -1, Lost: true} }

func (lostProcess) LastOutput(int, time.Time) string { return "" }

// TestSupervisor_HeldByLost: a process that was lost may live. The locks of its GPUs are not released before it and all
// others have ended that have inherited them: another kernel would use the GPUs at the same time.
func TestSupervisor_HeldByLost(t *testing.T) {
	f, free := heldFile(t)
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20}, "test", quiet())
	s.SetHeld([]*os.File{f})
	(&life{s: s, proc: lostProcess{}}).finish(&outcome{})
	s.recordEnding(api.Ending{Reason: "its process was lost"})
	if free() {
		t.Error("the lock is released")
	}
}

// TestSupervisor_HeldByUnseen: a supervisor never reaches its child, which may run the kernel of an earlier one. The
// locks of the GPUs stay with that kernel.
func TestSupervisor_HeldByUnseen(t *testing.T) {
	f, free := heldFile(t)
	synctest.Test(t, func(t *testing.T) {
		s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 20, SameMachine: true,
			ChildSocket: f.Name() + "-child"}, "test", quiet())
		s.SetHeld([]*os.File{f})
		out := outcome{}
		if (&life{s: s}).awaitContainer(t.Context(), &out) || !out.fatal {
			t.Fatalf("a child is there: %+v", out)
		}
		s.recordEnding(api.Ending{Reason: out.reason})
	})
	if free() {
		t.Error("the lock is released")
	}
}
