package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/environment"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// gpusDir has the locks of the GPUs; see package devices.
const gpusDir = "gpus"

// beginWaiting makes a kernel without a supervisor wait for a GPU. The turn and the folder's lock are held.
func (l *Launcher) beginWaiting(k *kernel, why error) error {
	since, err := k.place.Store()
	if err != nil {
		return err
	}
	if err := os.Remove(l.layout.file(k.id, endFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.markWaiting(k, since, why)
	l.log.Info("kernel waits", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Reason, why.Error())
	return nil
}

// seemsToWait reads without the folder's lock whether a kernel waits for a GPU. Another gateway may be starting it.
func (l layout) seemsToWait(k *kernel) (since time.Time, is bool) {
	if since, is = k.place.Stored(); !is {
		return since, false
	}
	end, err := l.readEnding(k.id)
	return since, err == nil && end == nil
}

// markWaiting records that a kernel waits. why is nil if it is not known yet.
func (l *Launcher) markWaiting(k *kernel, since time.Time, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.unsure = false
	if k.gone != nil {
		return
	}
	first, changed := k.place.Enter(since, why)
	if first {
		l.kernels.setEnd(k, nil)
		k.supervisor.HasStatus, k.supervisor.Unsupported, k.pushedLimit = false, "", 0
		k.supervisor.LeaveLocked()
	}
	if changed {
		k.supervisor.ChangedLocked()
	}
}

// endWaiting forgets that a kernel waits. Its supervisor lives, or its end is on record.
func (l *Launcher) endWaiting(k *kernel) {
	if k.place == nil {
		return
	}
	k.place.Erase()
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.place.Leave() {
		k.supervisor.ChangedLocked()
	}
}

// tryWaiting starts a kernel that waits, if the GPUs are there that it needs; see lend.Options.
func (l *Launcher) tryWaiting(t lend.Turn) (looked bool) {
	l.mu.Lock()
	k := l.kernels.byID[t.ID()]
	l.mu.Unlock()
	if k == nil || k.place != t.Place || !k.tryTurn() {
		return false // it is being entered at this moment, has gone, or another goroutine works on it
	}
	defer k.giveTurn()
	folder, err := flock.Folder(k.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.markGone(k, l.layout.goneError(k.id))
		return true
	case err != nil:
		if !errors.Is(err, flock.ErrBusy) {
			l.log.Warn("kernel cannot be looked at", logkey.Kernel, k.id, logkey.Err, err)
		}
		return false
	}
	defer flock.Unlock(folder)
	if v, err := l.reconcileFolder(k); v != inLine || err != nil {
		if err != nil {
			l.log.Warn("kernel that waits cannot be looked at", logkey.Kernel, k.id, logkey.Err, err)
		}
		return err == nil
	}
	if t.Hopeless() {
		return true
	}
	since, _ := t.Stored()
	loan, err := l.lender.LendTo(l.ctx, t)
	if err != nil {
		l.markWaiting(k, since, err)
		if errors.As(err, new(*devices.BusyError)) {
			l.giveWay(k, func(uuid string) bool { return t.Promised[uuid] })
		}
		return true
	}
	lent := l.timing.now()
	err = l.launchAgain(l.ctx, k, loan)
	switch {
	case l.ctx.Err() != nil && err != nil: // another gateway starts it
	case err != nil:
		end := &api.Ending{KernelID: k.id, Reason: "it could not be started: " + err.Error(), At: l.timing.now().UTC()}
		if failed := (*launcher.FailedError)(nil); errors.As(err, &failed) {
			end.Reason = failed.Reason
		} else {
			l.log.Error("kernel that has waited cannot be started", logkey.Kernel, k.id, logkey.Err, err)
		}
		if err := files.WriteJSON(l.layout.file(k.id, endFile), end); err != nil {
			l.log.Error("kernel's end cannot be recorded", logkey.Kernel, k.id, logkey.Err, err)
			return true
		}
		l.endWaiting(k)
		l.markDead(k, end)
	default:
		running := l.timing.now()
		l.trackStart(k, &start{since: running, phases: []launcher.Phase{
			{Name: launcher.PhaseAdmission, Took: lent.Sub(since)},
			{Name: launcher.PhaseStarted, Took: running.Sub(lent)},
		}})
		l.markAlive(k)
		l.opts.Observer.GPUWaited(k.rec.Flavor, l.timing.now().Sub(since))
		l.log.Info("kernel started", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName, logkey.Took,
			l.timing.now().Sub(since))
	}
	return true
}

// launchAgain starts a kernel from its stored configuration, with the GPUs of loan, which may be nil. After an error
// they are free as launchWith says. The turn and the folder's lock are held.
func (l *Launcher) launchAgain(ctx context.Context, k *kernel, loan *devices.Loan) error {
	// The file may be an earlier version's, with other fields.
	var cfg api.Config
	if err := files.ReadJSON(l.layout.file(k.id, configFile), &cfg); err != nil {
		if loan != nil {
			loan.Return()
		}
		return &launcher.FailedError{Reason: "the record of how this kernel was started cannot be read"}
	}
	cfg.SetVersion()
	cfg.GPUSamples.Park.Never = cfg.GPUSamples.Park.Never || k.rec.Job // an older gateway has not stored it
	l.logs.set(&cfg)
	cfg.StopGrace, cfg.DeadLinger, cfg.RestartLimit = l.opts.StopGrace, l.opts.DeadLinger, api.DefaultRestartLimit
	cfg.WorkingDir = environment.WorkingDir(cfg.WorkingDir, l.dir)
	cfg.ChildSocket, cfg.SameMachine = childSocket(k.rec.RunDir), true
	l.processes.removeGroup(k) // the file will not name it any more
	cfg.ScanFile, cfg.ControlGroup = l.layout.scanFile(), l.processes.newGroup(k.id)
	// Its ids are those of processes that have ended.
	if err := os.Remove(l.layout.file(k.id, processFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("process ids of a kernel cannot be removed", logkey.Kernel, k.id, logkey.Err, err)
	}
	return l.launchWith(ctx, k, &cfg, loan)
}

// launchWith stores the configuration and starts the kernel with the GPUs of loan, which may be nil. After an error
// they are free once the last process has ended that has inherited their locks: one that is killed may take a moment.
func (l *Launcher) launchWith(ctx context.Context, k *kernel, cfg *api.Config, loan *devices.Loan) error {
	var held []*os.File
	if loan != nil {
		l.lender.Equip(cfg, loan)
		held = loan.Files
		defer loan.Close()
		if loan.Pinned {
			l.giveWay(k, func(uuid string) bool { return uuid != loan.Devices[0] })
		}
	}
	err := l.layout.keepState(k.id, configFile, cfg)
	if err == nil {
		err = l.processes.launch(ctx, k, held)
	}
	if err == nil {
		l.endWaiting(k)
	}
	return err
}

// devicesBefore returns the GPUs that a kernel had when it was started last.
func (l layout) devicesBefore(k *kernel) []string {
	var cfg struct {
		Env map[string]string `json:"env"`
	}
	if k.rec.Want == nil || files.ReadJSON(l.file(k.id, configFile), &cfg) != nil { // then any others will do
		return nil
	}
	return lend.Visible(cfg.Env[lend.VisibleVariable])
}

// endLingering ends the supervisor of a dead kernel that had GPUs. It has given them back. So a restart takes others,
// or waits for them.
func (l *Launcher) endLingering(ctx context.Context, k *kernel) error {
	if k.rec.Want == nil {
		return nil
	}
	if err := k.takeTurn(ctx); err != nil {
		return err
	}
	defer k.giveTurn()
	folder, err := waitFolder(ctx, k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // whoever asks next learns of it
	}
	if err != nil {
		return err
	}
	defer flock.Unlock(folder)
	held, err := l.layout.supervised(k.id)
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	end, err := l.layout.readEnding(k.id)
	if err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	if !held || end == nil {
		return nil
	}
	pid := l.processes.readProcesses(k.id).holder()
	if err := l.layout.signal(k.id, pid, syscall.SIGTERM); err != nil {
		l.log.Warn("supervisor of a dead kernel cannot be signaled", logkey.Kernel, k.id, logkey.PID, pid, logkey.Err, err)
	}
	if err := l.processes.awaitUnlocked(ctx, k, exitLimit); err != nil {
		return err
	}
	_, err = l.reconcileFolder(k)
	return err
}
