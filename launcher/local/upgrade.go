package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	upgradeLimit  = 20 * time.Second // for another supervisor to answer
	stayLimit     = 8 * time.Second  // after which a supervisor of an earlier version that gives no reason stays
	upgradeLook   = 50 * time.Millisecond
	upgradeTurn   = time.Minute      // for other programs that upgrade the same kernel
	upgradeAgain  = 10 * time.Minute // between two attempts at one supervisor
	upgradeStatus = 5 * time.Second  // for a supervisor's status
	upgradeIdle   = time.Minute      // for which a kernel is idle before a gateway upgrades its supervisor by itself
)

var errUpgradeFailed = errors.New("the new supervisor failed, and the earlier program runs again; " +
	"supervisor.log in the kernel's folder says why")

// Upgrades replaces supervisors of this machine by those of another program. Kernels keep running.
type Upgrades struct {
	StateDir string // as Options.StateDir; absolute
	Program  string // absolute path of ekg-supervisor
	Busy     bool   // also if a client would miss output
}

// Upgraded is what Upgrades.Kernel has done.
type Upgraded struct {
	From, To string // versions of the programs
	Already  bool   // the program was the same, so nothing was done
}

// Kernels returns the ids of the kernels in the state directory, in order.
func (u Upgrades) Kernels() ([]string, error) {
	entries, err := os.ReadDir(layout{state: u.StateDir}.kernels())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if launcher.ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Kernel replaces the supervisor of one kernel, and waits until the new one answers. The error is one sentence.
func (u Upgrades) Kernel(ctx context.Context, id string) (Upgraded, error) {
	l := layout{state: u.StateDir}
	if !launcher.ValidID(id) {
		return Upgraded{}, fmt.Errorf("%q is not a kernel id", id)
	}
	rec, err := l.readRecord(id)
	if errors.Is(err, fs.ErrNotExist) {
		return Upgraded{}, errors.New("no kernel has this id")
	}
	if err != nil {
		return Upgraded{}, err
	}
	lock, err := u.takeTurn(ctx, id)
	if err != nil {
		return Upgraded{}, err
	}
	defer flock.Unlock(lock)
	before, err := firstStatus(ctx, rec)
	switch {
	case err != nil:
		return Upgraded{}, fmt.Errorf("its supervisor does not answer: %w", err)
	case before.State == api.Dead:
		return Upgraded{}, errors.New("it is dead; its next start uses the new program")
	case before.ParentPID == 0:
		return Upgraded{}, errors.New("an earlier version has started it, whose supervisors cannot be replaced")
	case u.runs(before.PID):
		return Upgraded{From: before.Build, To: before.Build, Already: true}, nil
	}
	if err := api.CheckProgram(u.Program); err != nil {
		return Upgraded{}, err
	}
	if err := os.Remove(l.file(id, api.RefusedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Upgraded{}, err
	}
	request := api.Upgrade{ID: rand.Text(), Program: u.Program, Busy: u.Busy}
	if err := files.WriteJSON(l.file(id, api.UpgradeFile), request); err != nil {
		return Upgraded{}, err
	}
	defer os.Remove(l.file(id, api.UpgradeFile)) //nolint:errcheck // parents of this version have moved it away
	if err := l.signal(id, before.ParentPID, syscall.SIGHUP); err != nil {
		return Upgraded{}, err
	}
	return u.await(ctx, rec, before, request.ID)
}

// takeTurn takes the lock for upgrades of a kernel: programs that upgrade the same kernel do so one after the other.
func (u Upgrades) takeTurn(ctx context.Context, id string) (*os.File, error) {
	limited, cancel := context.WithTimeout(ctx, upgradeTurn)
	defer cancel()
	lock, err := flock.Wait(limited, layout{state: u.StateDir}.file(id, upgradeLock))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("no kernel has this id")
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return nil, errors.New("other programs upgrade it at present")
	}
	return lock, err
}

// await waits for the supervisor that follows the one with this status. request is the id of the request.
func (u Upgrades) await(ctx context.Context, rec record, before api.Status, request string) (Upgraded, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeLimit)
	defer cancel()
	for began := time.Now(); ; {
		late := goroutines.Sleep(ctx, upgradeLook) != nil
		if why := u.refused(rec.ID, request); why != nil {
			return Upgraded{}, why
		}
		now, err := firstStatus(ctx, rec)
		switch {
		case err == nil && now.PID != before.PID && u.runs(now.PID):
			return Upgraded{From: before.Build, To: now.Build}, nil
		case err == nil && now.PID != before.PID:
			return Upgraded{}, errUpgradeFailed
		case err == nil && time.Since(began) > stayLimit:
			return Upgraded{}, errors.New("its supervisor stays: it is busy, or a page has not received all output")
		case late:
			return Upgraded{}, errors.New("the new supervisor does not answer")
		}
	}
}

// refused returns why supervisor or parent have refused the request; nil if they have not. A refusal of another
// request, which came late, is ignored.
func (u Upgrades) refused(id, request string) error {
	var r api.Refused
	err := files.ReadJSON(layout{state: u.StateDir}.file(id, api.RefusedFile), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("it was refused, and the reason cannot be read: %w", err)
	}
	if r.ID != "" && r.ID != request {
		return nil
	}
	return errors.New(r.Reason)
}

// runs reports whether a process runs the program.
func (u Upgrades) runs(pid int) bool {
	want, err := os.Stat(u.Program)
	return err == nil && runsProgram(pid, want)
}

// runsProgram reports whether a process runs a program.
func runsProgram(pid int, want os.FileInfo) bool {
	runs, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	return err == nil && os.SameFile(want, runs)
}

// firstStatus returns the present status of a kernel's supervisor.
func firstStatus(ctx context.Context, rec record) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeStatus)
	defer cancel()
	client := &api.Client{KernelID: rec.ID, Dial: func(ctx context.Context) (net.Conn, error) {
		return dialSocket(ctx, rec.Socket)
	}}
	var first *api.Status
	err := client.Watch(ctx, func(st api.Status) {
		if first == nil {
			first = &st
			cancel()
		}
	})
	if first == nil {
		return api.Status{}, err
	}
	return *first, nil
}

// signal sends a signal to a supervisor or its parent. Process ids are reused, so it checks that the arguments of the
// process name the kernel's configuration. The handle of the process is opened before that check.
func (l layout) signal(id string, pid int, sig os.Signal) error {
	if pid <= 1 {
		return errors.New("the supervisor's process id is not known")
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	defer p.Release() //nolint:errcheck // it has no error to give
	if err := l.checkSupervisor(id, pid); err != nil {
		return err
	}
	return p.Signal(sig)
}

// checkSupervisor returns an error unless a living process is a supervisor of the kernel, or the parent of one.
func (l layout) checkSupervisor(id string, pid int) error {
	if l.supervisorOf(pid) != id {
		return fmt.Errorf("process %d is not the supervisor of the kernel", pid)
	}
	return nil
}

// idleUpgrades replaces supervisors of idle kernels by those of the program that new kernels get, one at a time.
type idleUpgrades struct {
	l       *Launcher
	running atomic.Bool // a supervisor is being replaced
	failed  os.FileInfo // of the last program that failed as a new supervisor; guarded by running
}

// begin starts to replace the supervisor of one idle kernel, if no other is replaced.
func (i *idleUpgrades) begin() {
	if !i.running.CompareAndSwap(false, true) {
		return
	}
	if !i.l.goroutines.Go(func() { defer i.running.Store(false); i.one() }) {
		i.running.Store(false)
	}
}

// one replaces the supervisor of one kernel that has been idle, if it runs another program than those of new kernels. A
// program that has failed once is not tried again.
func (i *idleUpgrades) one() {
	l := i.l
	u := Upgrades{StateDir: l.layout.state, Program: l.opts.Supervisor}
	program, err := os.Stat(u.Program)
	if err != nil || i.failed != nil && os.SameFile(program, i.failed) &&
		program.ModTime().Equal(i.failed.ModTime()) {
		return // while a program is replaced, it may be missing
	}
	for _, k := range l.snapshot() {
		l.mu.Lock()
		st, now := k.supervisor.Status, l.timing.now()
		due := k.supervisor.Streaming && k.livesLocked() && k.stop == nil && st.State == api.Idle && st.ParentPID != 0 &&
			now.After(k.upgradeNext) && now.Sub(st.LastActivity) >= l.timing.upgradeIdle
		l.mu.Unlock()
		if !due || runsProgram(st.PID, program) {
			continue
		}
		done, err := u.Kernel(l.ctx, k.id)
		l.mu.Lock()
		k.upgradeNext = now.Add(upgradeAgain)
		l.mu.Unlock()
		if errors.Is(err, errUpgradeFailed) {
			i.failed = program
		}
		if err != nil {
			l.log.Warn("supervisor was not upgraded", logkey.Kernel, k.id, logkey.Err, err)
			return
		}
		l.log.Info("supervisor upgraded", logkey.Kernel, k.id, logkey.Version, done.To)
		return
	}
}
