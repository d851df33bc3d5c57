package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/environment"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startAttempts bounds how often Start is repeated because the kernel that it found has gone.
const startAttempts = 3

// Start starts a kernel, or returns the kernel that has the id. It waits until the supervisor has executed the kernel's
// program.
func (l *Launcher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if !launcher.ValidID(req.ID) {
		return launcher.Kernel{}, false, fmt.Errorf("%q is not a kernel id", req.ID)
	}
	if k, taken, err := l.warm.Take(ctx, req); taken || err != nil {
		return k, taken, err
	}
	for range startAttempts {
		k, err := l.find(ctx, req.ID)
		switch {
		case err == nil:
			d, err := l.existing(ctx, k, req)
			if errors.Is(err, launcher.ErrNotFound) {
				continue // the kernel could not be started, or was stopped
			}
			return d, false, err
		case !errors.Is(err, launcher.ErrNotFound):
			return launcher.Kernel{}, false, err
		case launcher.OfOther(err, req.Owner):
			return launcher.Kernel{}, false, launcher.ErrConflict
		}
		d, err := l.create(ctx, req)
		if errors.Is(err, errLost) {
			continue
		}
		return d, err == nil, err
	}
	return launcher.Kernel{}, false, fmt.Errorf("%w: it is being started and stopped at the same time",
		launcher.ErrUnavailable)
}

// existing answers a Start for a kernel that exists, once its supervisor has answered.
func (l *Launcher) existing(ctx context.Context, k *kernel, req launcher.Request) (launcher.Kernel, error) {
	if k.rec.Owner != req.Owner || k.rec.SpecName != req.Spec.Name {
		return launcher.Kernel{}, launcher.ErrConflict
	}
	l.awaitFirstStatus(ctx, k, l.timing.ready)
	if err := ctx.Err(); err != nil {
		return launcher.Kernel{}, err
	}
	return l.describe(k)
}

// errLost says that another Start with the same id was faster.
var errLost = errors.New("another start was faster")

// create creates the kernel's folder and starts its supervisor. After an error nothing is left.
func (l *Launcher) create(ctx context.Context, req launcher.Request) (launcher.Kernel, error) {
	requested := l.timing.now()
	rec, cfg, err := l.prepare(req)
	if err != nil {
		return launcher.Kernel{}, err
	}
	k, err := l.createSupervisor(ctx, rec, cfg)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if k.place.Waits() {
		l.lender.Wake() // warm kernels may give way
		return l.describe(k)
	}
	admitted := l.timing.now()
	if err := l.awaitProgram(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	running := l.timing.now()
	l.trackStart(k, &start{since: running, phases: []launcher.Phase{
		{Name: launcher.PhaseAdmission, Took: admitted.Sub(requested)},
		{Name: launcher.PhaseStarted, Took: running.Sub(admitted)},
	}})
	l.log.Info("kernel started", logkey.Kernel, k.id, logkey.Spec, rec.SpecName)
	if cfg.Transport == kernelspecs.TransportTCP {
		l.warnOfTCP(rec.SpecName)
	}
	return l.describe(k)
}

// warnOfTCP says once for each kernelspec that other users of the machine can read what its kernels publish.
func (l *Launcher) warnOfTCP(spec string) {
	l.mu.Lock()
	warned := l.warnedSpecs[spec]
	l.warnedSpecs[spec] = true
	l.mu.Unlock()
	if !warned {
		l.log.Warn("kernels of this kernelspec listen on loopback TCP: every user of this machine can read their output and "+
			"the code of their cells; metadata.ekg.transport can be ipc if the kernel supports it", logkey.Spec, spec)
	}
}

// createSupervisor creates the folder and the process.
func (l *Launcher) createSupervisor(ctx context.Context, rec record, cfg api.Config) (*kernel, error) {
	ctx, leave, err := l.join(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	counted, err := l.starts.admit(ctx, heldBy(rec))
	if err != nil {
		return nil, err
	}
	l.logs.set(&cfg)
	k, folder, err := l.makeFolder(rec, cfg)
	counted()
	if err != nil {
		return nil, err
	}
	defer k.giveTurn()
	defer flock.Unlock(folder)
	loan, err := l.lender.Lend(ctx, k.place, nil)
	switch busy := (*devices.BusyError)(nil); {
	case errors.As(err, &busy):
		if err = l.beginWaiting(k, busy); err == nil {
			return k, nil
		}
	case errors.As(err, new(*devices.NeverError)):
		err = &launcher.RefusedError{Reason: err.Error()}
	case err == nil:
		if err = l.launchWith(ctx, k, &cfg, loan); err == nil && loan != nil {
			l.opts.Observer.GPUWaited(k.rec.Flavor, 0)
		}
	}
	if err != nil {
		if rerr := l.remove(k); rerr != nil {
			l.log.Error("kernel that could not be started cannot be removed", logkey.Kernel, k.id, logkey.Err, rerr)
		}
		l.markGone(k, launcher.ErrNotFound)
		return nil, err
	}
	l.ensureFollowed(k)
	return k, nil
}

// prepare builds the record and the supervisor's configuration, without the bounds of its log. Its errors are for the
// kernel's owner.
func (l *Launcher) prepare(req launcher.Request) (record, api.Config, error) {
	fail := func(err error) (record, api.Config, error) {
		return record{}, api.Config{}, &launcher.FailedError{Reason: err.Error(), Class: launcher.FailedInvalid}
	}
	if len(req.Spec.Argv) == 0 {
		return fail(fmt.Errorf("kernelspec %s has no argv: its kernel is part of an image", req.Spec.Name))
	}
	if req.Spec.Launcher != nil {
		return fail(fmt.Errorf("kernelspec %s is started by Enterprise Gateway's launcher, which ekg runs only in a pod",
			req.Spec.Name))
	}
	transport, err := req.Spec.Transport()
	if err != nil {
		return fail(err)
	}
	env, err := environment.For(l.environ, l.opts.InheritEnv, req.Spec, req.Env)
	if err != nil {
		return fail(err)
	}
	gpus, err := l.lender.Wish(req.Flavor, env)
	if err != nil {
		return record{}, api.Config{}, err
	}
	if gpus.Hide {
		env[lend.VisibleVariable] = ""
	}
	runDir := l.layout.runDir()
	ext, err := req.Spec.Extension()
	if err != nil {
		return fail(err)
	}
	rec := record{Protocol: api.ProtocolVersion, ID: req.ID, Owner: req.Owner, Groups: req.Groups, SpecName: req.Spec.Name,
		Created: l.timing.now().UTC(), Socket: filepath.Join(runDir, "s"), RunDir: runDir,
		Want: gpus.Want, GPUs: gpus.Size, Profile: req.Spec.Profile, Job: req.Job}
	if req.Flavor != nil {
		rec.Flavor = req.Flavor.Name
	}
	mode := req.Spec.InterruptMode
	if mode == "" {
		mode = "signal" // the default of kernel.json
	}
	cfg := api.Config{
		KernelID: req.ID, SpecName: req.Spec.Name, Owner: req.Owner,
		Argv: req.Spec.Command(map[string]string{"kernel_id": req.ID}), Env: env, InterruptMode: mode,
		WorkingDir:  environment.WorkingDir(req.WorkingDir, l.dir),
		Listen:      "unix:" + rec.Socket,
		ChildSocket: childSocket(runDir), SameMachine: true,
		ConnectionFile: l.layout.file(req.ID, connectionFile), Transport: transport, RunDir: runDir,
		ScanFile: l.layout.scanFile(), ControlGroup: l.processes.newGroup(req.ID),
		LockFile: l.layout.file(req.ID, lockFile), EndFile: l.layout.file(req.ID, endFile), SpillDir: l.layout.kernel(req.ID),
		StopGrace: l.opts.StopGrace, DeadLinger: l.opts.DeadLinger,
		RestartLimit: api.DefaultRestartLimit,
		Cull:         l.opts.Cull.For(req.Cull).With(ext.Cull),
		GPUSamples:   api.GPUSamples{Park: api.Park{Never: req.Job || ext.Park != nil && !*ext.Park}},
	}
	cfg.SetVersion()
	rec.Parks = !cfg.GPUSamples.Park.Never
	if cfg.Cull.GPU > 0 {
		cfg.GPUProgram = l.opts.GPUProgram
	}
	l.lender.Sample(&cfg)
	return rec, cfg, nil
}

// makeFolder creates the kernel's folder with its files in one step, and records the kernel. It returns while it holds
// the kernel's turn and the folder's lock. The error is errLost if the id has a folder already.
func (l *Launcher) makeFolder(rec record, cfg api.Config) (*kernel, *os.File, error) {
	dir := l.layout.temporary(newPrefix)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	folder, err := flock.Folder(dir) // a rename keeps the lock
	if err == nil {
		// They need no temporary names: no program reads them before the folder has its own.
		err = errors.Join(createJSON(filepath.Join(dir, recordFile), rec), createJSON(filepath.Join(dir, configFile), cfg))
	}
	var k *kernel
	if err == nil {
		k, err = l.publish(dir, rec)
	}
	if err == nil {
		return k, folder, nil
	}
	if folder != nil {
		flock.Unlock(folder)
	}
	if rerr := os.RemoveAll(dir); rerr != nil {
		l.log.Warn("half-made folder cannot be removed", logkey.Entry, dir, logkey.Err, rerr)
	}
	return nil, nil, err
}

// publish gives the folder its name and records the kernel. The kernel's turn is held.
func (l *Launcher) publish(dir string, rec record) (*kernel, error) {
	l.folders.Lock()
	defer l.folders.Unlock()
	if l.goroutines.Closed() {
		return nil, errClosed
	}
	switch err := os.Rename(dir, l.layout.kernel(rec.ID)); {
	case errors.Is(err, syscall.EEXIST), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.ENOTDIR):
		return nil, errLost
	case err != nil:
		return nil, err
	}
	k := l.newKernel(rec)
	k.turn <- struct{}{}
	if rec.Warm != "" {
		return k, nil // only its own pool knows it
	}
	l.mu.Lock()
	old := l.addLocked(k)
	l.mu.Unlock()
	if old != nil { // another gateway removed its folder
		l.markGone(old, l.layout.goneError(rec.ID))
	}
	l.logs.recountSoon()
	return k, nil
}

// awaitProgram waits until the supervisor has started the kernel's program. If the program could not be executed, the
// kernel is removed and the error says why.
func (l *Launcher) awaitProgram(ctx context.Context, k *kernel) error {
	wait, cancel := context.WithTimeout(ctx, l.timing.ready)
	defer cancel()
	var st api.Status
	var end *api.Ending
	var why error
	l.follower.Await(wait, &k.supervisor, func() bool {
		st, end, why = k.supervisor.Status, k.end, k.gone
		return k.supervisor.HasStatus && (st.KernelPID != 0 || st.State == api.Dead) || !k.livesLocked() ||
			k.supervisor.Unsupported != ""
	})
	reason := ""
	switch {
	case why != nil:
		return why // it was stopped
	case end != nil:
		reason = end.Reason
	case st.KernelPID == 0 && st.State == api.Dead:
		reason = st.Reason
	case ctx.Err() == nil:
		return nil
	}
	op := l.beginStop(ctx, k, "it could not be started", true)
	if err := ctx.Err(); err != nil {
		return err // the removal goes on
	}
	if err := op.wait(ctx); err != nil {
		l.log.Error("kernel that could not be started cannot be removed", logkey.Kernel, k.id, logkey.Err, err)
	}
	return &launcher.FailedError{Reason: reason, Class: launcher.FailedContainer}
}

// Revive starts a dead kernel's supervisor again. A supervisor that this gateway cannot speak to is ended before.
func (l *Launcher) Revive(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if err := l.revive(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitFirstStatus(ctx, k, l.timing.ready)
	return l.describe(k)
}

// revive starts the supervisor if it does not live.
func (l *Launcher) revive(ctx context.Context, k *kernel) error {
	ctx, leave, err := l.join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := k.takeTurn(ctx); err != nil {
		return err
	}
	defer k.giveTurn()
	folder, err := waitFolder(ctx, k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		why := l.layout.goneError(k.id)
		l.markGone(k, why)
		return why
	}
	if err != nil {
		return err
	}
	defer flock.Unlock(folder)
	v, err := l.reconcileFolder(k)
	if v == alive && err == nil {
		v, err = l.endUnsupported(ctx, k)
	}
	if v != dead || err != nil {
		return err // the kernel lives, or it is gone, which the caller will notice
	}
	counted, err := l.starts.countRestart(ctx, k)
	if err != nil {
		return err
	}
	defer counted()
	loan, err := l.lender.Lend(ctx, k.place, l.layout.devicesBefore(k))
	switch busy := (*devices.BusyError)(nil); {
	case errors.As(err, &busy):
		return l.beginWaiting(k, busy)
	case errors.As(err, new(*devices.NeverError)):
		return &launcher.RefusedError{Reason: err.Error()}
	case err != nil:
		return err
	}
	if err := l.launchAgain(ctx, k, loan); err != nil {
		return err // the kernel stays dead, with the old reason
	}
	if err := os.Remove(l.layout.file(k.id, endFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.markAlive(k)
	l.log.Info("kernel revived", logkey.Kernel, k.id, logkey.Spec, k.rec.SpecName)
	return nil
}

// childSocket returns the socket between a kernel's supervisor and its parent.
func childSocket(runDir string) string { return filepath.Join(runDir, "c") }
