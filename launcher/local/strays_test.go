package local

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// damages are what a hostile program of this user puts in place of a file.
var damages = map[string]func(path string) error{
	"a folder":             func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) },
	"a FIFO":               func(path string) error { return syscall.Mkfifo(path, 0o600) },
	"a link to /dev/zero":  func(path string) error { return os.Symlink("/dev/zero", path) },
	"a link to itself":     func(path string) error { return os.Symlink(path, path) },
	"a link to a file":     func(path string) error { return os.Symlink("/proc/self/stat", path) },
	"a socket":             func(path string) error { return syscall.Mknod(path, syscall.S_IFSOCK|0o600, 0) },
	"no rights":            func(path string) error { return os.WriteFile(path, nil, 0) },
	"no JSON":              func(path string) error { return os.WriteFile(path, []byte("{half"), 0o600) },
	"a file of null bytes": func(path string) error { return os.WriteFile(path, make([]byte, 100), 0o600) },
	"a file of 1 TiB": func(path string) error {
		return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40))
	},
}

// damage replaces a file.
func damage(t *testing.T, path string, with func(string) error) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := with(path); err != nil {
		t.Fatal(err)
	}
}

// removeAll removes a folder into which its supervisor and a gateway may be writing.
func removeAll(dir string) (err error) {
	for range removeAttempts {
		if err = os.RemoveAll(dir); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	return err
}

// quiet opens a launcher whose first round of maintenance is over, and with it the only look for strays. The second
// round may still read the state directory. There is no third.
func (p *place) quiet() *Launcher {
	p.t.Helper()
	rounds, change := make(chan time.Time), p.change
	p.change = func(o *Options, tm *timing) {
		if change != nil {
			change(o, tm)
		}
		tm.rounds = rounds
	}
	l := p.launcher()
	rounds <- time.Now() // is received after the first round
	return l
}

// endedFor returns the reason that the owner of a kernel reads which was ended.
func endedFor(t *testing.T, l *Launcher, n int) string {
	t.Helper()
	var gone *launcher.GoneError
	if _, err := l.Kernel(t.Context(), id(n)); !errors.As(err, &gone) || gone.Owner != "ann" {
		t.Fatalf("its owner reads %v", err)
	}
	return gone.Reason
}

// TestDamagedRecord: whatever is in place of a kernel's record, the next gateway starts, ends what runs of this kernel,
// tells its owner, and serves the others.
func TestDamagedRecord(t *testing.T) {
	for name, with := range damages {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			l := p.open()
			p.start(l, 1, "fine")
			p.start(l, 2, "fine")
			_ = l.Close()
			damage(t, filepath.Join(p.state, "kernels", id(1), recordFile), with)
			l = p.launcher()
			all, err := l.Kernels(t.Context())
			if err != nil || len(all) != 1 || all[0].ID != id(2) {
				t.Errorf("listed: %+v, %v", all, err)
			}
			if reason := endedFor(t, l, 1); !strings.Contains(reason, "kernel.json") {
				t.Errorf("the reason is %q", reason)
			}
			if left := carriers(1); len(left) > 0 {
				t.Errorf("processes %v run", left)
			}
			if aside, err := os.ReadDir(l.layout.aside()); err != nil || len(aside) != 1 {
				t.Errorf("set aside: %v, %v", aside, err)
			}
			if n := strings.Count(p.log.String(), "set aside"); n != 1 {
				t.Errorf("named %d times", n)
			}
		})
	}
}

// TestDamagedFiles: the next gateway serves a kernel whose other files are damaged. One without its lock is ended.
func TestDamagedFiles(t *testing.T) {
	for name, with := range damages {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			l := p.open()
			p.start(l, 1, "fine")
			p.start(l, 2, "fine")
			pid := processesOf(t, p, 1).Kernel
			_ = l.Close()
			for _, file := range []string{notesFile, processFile, endFile, notesLock} {
				damage(t, filepath.Join(p.state, "kernels", id(1), file), with)
			}
			damage(t, filepath.Join(p.state, "kernels", id(2), lockFile), with)
			for _, file := range []string{"ended/" + id(3) + ".json", "warm/" + id(3) + ".json", "records/a/b",
				"records/a/.lock"} {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(p.state, file)), 0o700); err != nil {
					t.Fatal(err)
				}
				damage(t, filepath.Join(p.state, file), with)
			}
			l = p.launcher()
			if k := wait(t, l, 1, "idle", isIdle); !k.SharedToUse { // its notes may have said so
				t.Errorf("its notes are %+v", k.Notes)
			}
			if got := processesOf(t, p, 1).Kernel; got != pid {
				t.Errorf("its process is %d, not %d", got, pid)
			}
			reason := wait(t, l, 2, "dead", isDead).Reason
			if !strings.Contains(reason, "removed or damaged") || len(carriers(2)) > 0 {
				t.Errorf("without its lock: %q, and processes %v run", reason, carriers(2))
			}
			if ended, err := l.Ended(t.Context(), ""); err != nil || len(ended) != 1 || ended[0].ID != id(2) {
				t.Errorf("ended: %+v, %v", ended, err)
			}
			if all, err := l.Records(t.Context(), "a"); err != nil || len(all) != 1 {
				t.Errorf("records: %v, %v", all, err)
			}
			if _, err := l.CreateRecord(t.Context(), launcher.Record{Kind: "a", ID: "c", Data: []byte("{}")}); err != nil {
				t.Errorf("a new record: %v", err)
			}
		})
	}
}

// TestDamagedFolders: a gateway starts, and starts kernels, with anything in place of its folders and locks.
func TestDamagedFolders(t *testing.T) {
	for name, with := range damages {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			_ = p.open().Close()
			dirs := []string{"kernels", "ended", "aside", "warm", gpusDir, recordsDir}
			for _, dir := range dirs {
				if name == "a folder" {
					continue
				}
				damage(t, filepath.Join(p.state, dir), with)
			}
			for _, lock := range []string{reaperLock, startsLock, warmLock} {
				damage(t, filepath.Join(p.state, lock), with)
			}
			p.limited(1, 1)
			p.start(p.quiet(), 1, "fine")
			if strings.Contains(p.log.String(), "cannot be taken") {
				t.Error("it does not clean up")
			}
		})
	}
}

// TestDiskAway: a gateway whose folder of kernels is a link to a disk that is away does not start, and leaves it alone.
func TestDiskAway(t *testing.T) {
	state := t.TempDir()
	link, away := filepath.Join(state, "kernels"), filepath.Join(state, "disk", "away")
	if err := os.Symlink(away, link); err != nil {
		t.Fatal(err)
	}
	if _, err := newLayout(state, "", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("the state directory is used")
	}
	if to, err := os.Readlink(link); err != nil || to != away {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

// awaitUnlisted waits until no kernel is listed: a round of maintenance may have the kernel's turn.
func awaitUnlisted(t *testing.T, l *Launcher) {
	t.Helper()
	eventually(t, "no kernel is listed", func() bool {
		all, err := l.Kernels(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 0
	})
}

// TestRemovedFolder: a kernel that removes its own folder is ended at once, and its owner learns why.
func TestRemovedFolder(t *testing.T) {
	p := newPlace(t)
	l := p.quiet()
	for n, remove := range map[int]func(dir string) error{
		1: removeAll,
		2: func(dir string) error { return os.Rename(dir, filepath.Join(p.state, "mine")) },
	} {
		p.start(l, n, "fine")
		if err := remove(l.layout.kernel(id(n))); err != nil {
			t.Fatal(err)
		}
		awaitUnlisted(t, l)
		if reason := endedFor(t, l, n); !strings.Contains(reason, "was removed while it ran") {
			t.Errorf("%d: the reason is %q", n, reason)
		}
		if left := carriers(n); len(left) > 0 {
			t.Errorf("%d: processes %v run", n, left)
		}
	}
}

// TestRemovedFolder_Ended: what remains of a kernel that another gateway has stopped is ended. The reason stays.
func TestRemovedFolder_Ended(t *testing.T) {
	p := newPlace(t)
	l := p.quiet()
	for n, want := range map[int]struct {
		at     time.Duration // of an ending that is stored, since the start
		reason string
	}{
		1: {time.Hour, "stopped on request"},
		2: {-time.Hour, "was removed while it ran"}, // an earlier kernel's
	} {
		k := p.start(l, n, "fine")
		end := storedEnding{Ending: api.Ending{KernelID: k.ID, Reason: "stopped on request"}, Owner: "ann"}
		end.At = k.Created.Add(want.at)
		if err := files.WriteJSON(l.layout.endingFile(k.ID), end); err != nil {
			t.Fatal(err)
		}
		if err := removeAll(l.layout.kernel(k.ID)); err != nil {
			t.Fatal(err)
		}
		awaitUnlisted(t, l)
		if reason := endedFor(t, l, n); !strings.Contains(reason, want.reason) || len(carriers(n)) > 0 {
			t.Errorf("%d: the reason is %q, and processes %v run", n, reason, carriers(n))
		}
	}
}

// TestReadEntry_Unknown: a gateway that cannot lock a kernel's folder for now does not end the kernel.
func TestReadEntry_Unknown(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	p.start(l, 1, "fine")
	_ = l.Close()
	if err := os.Remove(l.layout.file(id(1), recordFile)); err != nil {
		t.Fatal(err)
	}
	for _, why := range []error{syscall.EMFILE, syscall.EIO} {
		s := strays{l: l, lock: func(string) (*os.File, error) { return nil, why }}
		if _, err := s.readEntry(id(1)); !errors.Is(err, why) || len(carriers(1)) == 0 || !exists(l.layout.kernel(id(1))) {
			t.Errorf("%v: the kernel was ended: %v", why, err)
		}
	}
}

// TestRemovedFolder_Unseen: a kernel whose folder was removed while no gateway ran is found by its processes.
func TestRemovedFolder_Unseen(t *testing.T) {
	p := newPlace(t)
	l := p.open()
	k := p.start(l, 1, "fine")
	_ = l.Close()
	if err := removeAll(filepath.Join(p.state, "kernels", id(1))); err != nil {
		t.Fatal(err)
	}
	p.change = func(_ *Options, tm *timing) { tm.halfMade = time.Nanosecond }
	l = p.launcher()
	eventually(t, "its processes are gone", func() bool { return len(carriers(1)) == 0 })
	eventually(t, "its end is stored", func() bool {
		_, err := l.Kernel(t.Context(), k.ID)
		return errors.As(err, new(*launcher.GoneError))
	})
	if reason := endedFor(t, l, 1); !strings.Contains(reason, "was removed while it ran") {
		t.Errorf("the reason is %q", reason)
	}
}

// TestRemovedFolder_Container: processes of a gateway in a container are left alone, which has another folder at the
// path of this gateway's state.
func TestRemovedFolder_Container(t *testing.T) {
	p := newPlace(t)
	l := p.quiet()
	look := func(n int, container bool) (killed bool) {
		ready, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer ready.Close() //nolint:errcheck // it was only read
		script := "echo; read x"
		cmd := exec.Command("sh", "-c", script, "--config", l.layout.file(id(n), configFile))
		if container {
			cmd.Args[2] = `mount -t tmpfs none "${1%/kernels/*}" && mkdir -p "${1%/*/*}" && ` + script
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		}
		cmd.Stdout = out
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		_ = out.Close() // the process has it
		if err != nil {
			t.Skipf("a namespace of mounts must be allowed, which it is for root: %v", err)
		}
		if _, err := ready.Read(make([]byte, 1)); err != nil {
			t.Fatalf("the process has not begun: %v, %v", err, cmd.Wait())
		}
		(&strays{l: l}).look()
		_ = in.Close() // it ends, if it was not killed
		_ = cmd.Wait()
		return cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
	}
	if look(1, true) || exists(l.layout.endingFile(id(1))) {
		t.Error("a container's process was ended")
	}
	if !look(2, false) || !exists(l.layout.endingFile(id(2))) {
		t.Error("a process without its folder was not ended")
	}
}

// TestSupervisorOf: only programs whose arguments name a kernel's configuration are its supervisors.
func TestSupervisorOf(t *testing.T) {
	p := newPlace(t)
	l := p.launcher()
	p.start(l, 1, "fine")
	ps := processesOf(t, p, 1)
	for pid, want := range map[int]string{ps.Supervisor: id(1), ps.Kernel: "", os.Getpid(): ""} {
		if got := l.layout.supervisorOf(pid); got != want {
			t.Errorf("process %d is of kernel %q, want %q", pid, got, want)
		}
	}
}
