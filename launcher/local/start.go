package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// startAttempts bounds how often Start begins anew because the kernel that it found went away at that moment.
const startAttempts = 3

// Start starts a kernel, or returns the one that has the id. It waits for the supervisor and for its word that the
// kernel's program could be executed.
func (l *Launcher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if !launcher.ValidID(req.ID) {
		return launcher.Kernel{}, false, fmt.Errorf("%q is no kernel id", req.ID)
	}
	for range startAttempts {
		k, err := l.find(ctx, req.ID)
		switch {
		case err == nil:
			d, err := l.existing(ctx, k, req)
			if errors.Is(err, launcher.ErrNotFound) {
				continue // it could not be started after all, or was stopped
			}
			return d, false, err
		case !errors.Is(err, launcher.ErrNotFound):
			return launcher.Kernel{}, false, err
		}
		d, err := l.create(ctx, req)
		if errors.Is(err, errLost) {
			continue
		}
		return d, err == nil, err
	}
	return launcher.Kernel{}, false, fmt.Errorf("%w: it is being started and stopped at the same time", launcher.ErrUnavailable)
}

// existing answers a Start for a kernel that is there, once its supervisor has answered.
func (l *Launcher) existing(ctx context.Context, k *kernel, req launcher.Request) (launcher.Kernel, error) {
	if k.rec.Owner != req.Owner || k.rec.SpecName != req.Spec.Name {
		return launcher.Kernel{}, launcher.ErrConflict
	}
	l.awaitWord(ctx, k, l.timing.ready)
	if err := ctx.Err(); err != nil {
		return launcher.Kernel{}, err
	}
	return l.describe(k)
}

// errLost says that another Start with the same id was faster.
var errLost = errors.New("another start was faster")

// create makes the kernel's folder and starts its supervisor. After an error nothing is left.
func (l *Launcher) create(ctx context.Context, req launcher.Request) (launcher.Kernel, error) {
	asked := l.timing.now()
	rec, cfg, err := l.prepare(req)
	if err != nil {
		return launcher.Kernel{}, err
	}
	k, err := l.createSupervisor(ctx, rec, cfg)
	if err != nil {
		return launcher.Kernel{}, err
	}
	admitted := l.timing.now()
	if err := l.awaitProgram(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	running := l.timing.now()
	l.follow(k, &start{since: running, phases: []launcher.Phase{{Name: launcher.PhaseAdmission, Took: admitted.Sub(asked)},
		{Name: launcher.PhaseStarted, Took: running.Sub(admitted)}}})
	l.log.Info("kernel started", "kernel", k.id, "spec", rec.SpecName)
	return l.describe(k)
}

// createSupervisor makes the folder and the process.
func (l *Launcher) createSupervisor(ctx context.Context, rec record, cfg supervisor.Config) (*kernel, error) {
	ctx, leave, err := l.join(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	counted, err := l.admit(ctx, heldBy(rec))
	if err != nil {
		return nil, err
	}
	k, folder, err := l.makeFolder(rec, cfg)
	counted()
	if err != nil {
		return nil, err
	}
	defer k.giveTurn()
	defer unlock(folder)
	if err := l.launch(ctx, k); err != nil {
		if rerr := l.remove(k); rerr != nil {
			l.log.Error("kernel that could not be started cannot be removed", "kernel", k.id, "err", rerr)
		}
		l.enterGone(k, launcher.ErrNotFound)
		return nil, err
	}
	l.ensureWatch(k)
	return k, nil
}

// prepare works out what will be run. The errors are the owner's to mend.
func (l *Launcher) prepare(req launcher.Request) (record, supervisor.Config, error) {
	fail := func(err error) (record, supervisor.Config, error) {
		return record{}, supervisor.Config{}, &launcher.FailedError{Reason: err.Error(), Class: launcher.FailedInvalid}
	}
	if len(req.Spec.Argv) == 0 {
		return fail(fmt.Errorf("kernelspec %s has no argv: its kernel is that of an image", req.Spec.Name))
	}
	transport, err := req.Spec.Transport()
	if err != nil {
		return fail(err)
	}
	env, err := kernelEnv(l.environ, l.opts.InheritEnv, req.Spec, req.Env)
	if err != nil {
		return fail(err)
	}
	runDir := l.layout.runDir()
	ext, err := req.Spec.Extension()
	if err != nil {
		return fail(err)
	}
	rec := record{Protocol: supervisor.ProtocolVersion, ID: req.ID, Owner: req.Owner, Groups: req.Groups, SpecName: req.Spec.Name,
		Created: l.timing.now().UTC(), Socket: filepath.Join(runDir, "s"), RunDir: runDir}
	mode := req.Spec.InterruptMode
	if mode == "" {
		mode = "signal" // the default of kernel.json
	}
	cfg := supervisor.Config{
		Protocol: supervisor.ProtocolVersion, KernelID: req.ID, SpecName: req.Spec.Name,
		Argv: req.Spec.Command(map[string]string{"kernel_id": req.ID}), Env: env, InterruptMode: mode,
		WorkingDir:     workingDir(req.WorkingDir, l.dir),
		Listen:         "unix:" + rec.Socket,
		ConnectionFile: l.layout.file(req.ID, connectionFile), Transport: transport, RunDir: runDir,
		LockFile: l.layout.file(req.ID, lockFile), EndFile: l.layout.file(req.ID, endFile), SpillDir: l.layout.kernel(req.ID),
		LogLimit: l.share(1), StopGrace: l.opts.StopGrace, DeadLinger: l.opts.DeadLinger, RestartLimit: restartLimit,
		Cull: l.opts.Cull.For(req.Cull).With(ext.Cull),
	}
	if cfg.Cull.GPU > 0 {
		cfg.GPUProgram = l.opts.GPUProgram
	}
	return rec, cfg, nil
}

// makeFolder makes the kernel's folder with everything in it, at one stroke, and enters the kernel. It returns with
// the kernel's turn and the folder's lock taken. The error is errLost if the id has a folder already.
func (l *Launcher) makeFolder(rec record, cfg supervisor.Config) (*kernel, *os.File, error) {
	dir := l.layout.temporary(newPrefix)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	folder, err := lockFolder(dir) // the lock stays with the folder when it is renamed
	if err == nil {
		err = errors.Join(writeJSON(filepath.Join(dir, recordFile), rec), writeJSON(filepath.Join(dir, configFile), cfg))
	}
	var k *kernel
	if err == nil {
		k, err = l.publish(dir, rec)
	}
	if err == nil {
		return k, folder, nil
	}
	if folder != nil {
		unlock(folder)
	}
	if rerr := os.RemoveAll(dir); rerr != nil {
		l.log.Warn("half-made folder cannot be removed", "entry", dir, "err", rerr)
	}
	return nil, nil, err
}

// publish gives the folder its name and enters the kernel, with its turn taken.
func (l *Launcher) publish(dir string, rec record) (*kernel, error) {
	l.folders.Lock()
	defer l.folders.Unlock()
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
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
	l.mu.Lock()
	old := l.kernels[rec.ID]
	l.kernels[rec.ID] = k
	l.mu.Unlock()
	if old != nil { // another gateway removed its folder, and nobody here has looked since
		l.enterGone(old, l.layout.goneError(rec.ID))
	}
	l.countChanged()
	return k, nil
}

// awaitProgram waits for the supervisor's word that the kernel's program is running. If it could not be executed the
// kernel is removed and the error says why.
func (l *Launcher) awaitProgram(ctx context.Context, k *kernel) error {
	wait, cancel := context.WithTimeout(ctx, l.timing.ready)
	defer cancel()
	var st supervisor.Status
	var end *supervisor.Ending
	var why error
	l.await(wait, k, func() bool {
		st, end, why = k.status, k.end, k.gone
		return k.heard && (st.KernelPID != 0 || st.State == string(launcher.Dead)) || !k.lives() || k.unsupported != ""
	})
	reason := ""
	switch {
	case why != nil:
		return why // stopped by somebody
	case end != nil:
		reason = end.Reason
	case st.KernelPID == 0 && st.State == string(launcher.Dead):
		reason = st.Reason
	case ctx.Err() == nil:
		return nil
	}
	op := l.beginStop(ctx, k, "it could not be started", true)
	if err := ctx.Err(); err != nil {
		return err // nobody waits for the removal
	}
	if err := op.wait(ctx); err != nil {
		l.log.Error("kernel that could not be started cannot be removed", "kernel", k.id, "err", err)
	}
	return &launcher.FailedError{Reason: reason, Class: launcher.FailedContainer}
}

// Revive starts a dead kernel's supervisor again.
func (l *Launcher) Revive(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if err := l.revive(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitWord(ctx, k, l.timing.ready)
	return l.describe(k)
}

// revive starts the supervisor if there is none.
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
		l.enterGone(k, why)
		return why
	}
	if err != nil {
		return err
	}
	defer unlock(folder)
	if v, err := l.judge(k); v != dead {
		return err // it lives; or it is gone, which the caller will see
	}
	counted, err := l.again(ctx, k)
	if err != nil {
		return err
	}
	defer counted()
	// The file of an earlier version may have other fields than this one.
	var cfg supervisor.Config
	b, err := os.ReadFile(l.layout.file(k.id, configFile))
	if err == nil {
		err = json.Unmarshal(b, &cfg)
	}
	if err != nil {
		return &launcher.FailedError{Reason: "how this kernel was started can no longer be read"}
	}
	cfg.Protocol, cfg.LogLimit = supervisor.ProtocolVersion, l.share(1)
	cfg.StopGrace, cfg.DeadLinger, cfg.RestartLimit = l.opts.StopGrace, l.opts.DeadLinger, restartLimit
	cfg.WorkingDir = workingDir(cfg.WorkingDir, l.dir)
	if err := writeJSON(l.layout.file(k.id, configFile), cfg); err != nil {
		return err
	}
	if err := l.launch(ctx, k); err != nil {
		return err // it stays dead, with the old reason
	}
	if err := os.Remove(l.layout.file(k.id, endFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.enterAlive(k)
	l.log.Info("kernel revived", "kernel", k.id, "spec", k.rec.SpecName)
	return nil
}

// launch starts the kernel's supervisor and waits until it listens. The folder's lock is held. Failing, it leaves no
// process.
func (l *Launcher) launch(ctx context.Context, k *kernel) error {
	if err := makePrivate(k.rec.RunDir); err != nil {
		return err
	}
	out, err := os.OpenFile(l.layout.file(k.id, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	argv := []string{l.opts.Supervisor, "--config", l.layout.file(k.id, configFile), "--ready-fd", "3"}
	ch, err := l.children.start(argv, supervisorEnv(l.environ), "/", []*os.File{null, out, out, told})
	told.Close() //nolint:errcheck // the supervisor's copy matters
	if err != nil {
		return &launcher.FailedError{Reason: fmt.Sprintf("the supervisor program %s cannot be started: %v", l.opts.Supervisor, err), Class: launcher.FailedContainer}
	}
	if err := l.awaitReady(ctx, ch, ready); err != nil {
		ch.kill()
		<-ch.exited // only SIGKILL can be pending: it comes
		if n, kerr := supervisor.KillRemains(k.id, 0); n > 0 || kerr != nil {
			l.log.Warn("processes of a kernel that could not be started", "kernel", k.id, "killed", n, "err", kerr)
		}
		return err
	}
	l.noteProcesses(k, processes{Supervisor: ch.pid})
	return nil
}

// awaitReady waits for a supervisor's "ok", or tells the sentence that it gave instead.
func (l *Launcher) awaitReady(ctx context.Context, ch *child, ready *os.File) error {
	limited, cancel := context.WithTimeout(ctx, l.timing.ready)
	defer cancel()
	stop := context.AfterFunc(limited, func() { ready.SetReadDeadline(l.timing.now()) }) //nolint:errcheck // a pipe has deadlines
	defer stop()
	line := make([]byte, 0, 4<<10)
	for {
		n, err := ready.Read(line[len(line):cap(line)])
		line = line[:len(line)+n]
		if err == nil && len(line) < cap(line) && !slices.Contains(line, '\n') {
			continue
		}
		break
	}
	text, _, whole := strings.Cut(string(line), "\n")
	switch {
	case whole && text == "ok":
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case limited.Err() != nil:
		return &launcher.FailedError{Reason: fmt.Sprintf("its supervisor did not answer within %s", l.timing.ready), Class: launcher.FailedSilent}
	case strings.TrimSpace(text) != "":
		return &launcher.FailedError{Reason: "its supervisor could not start: " + strings.ToValidUTF8(text, ""), Class: launcher.FailedContainer}
	}
	return &launcher.FailedError{Reason: fmt.Sprintf("its supervisor (pid %d) ended before it answered; its log may say why", ch.pid), Class: launcher.FailedContainer}
}

// supervisorEnv is what a supervisor gets: nothing of the gateway's secrets, and no sign of a kernel that the gateway
// itself may run in, lest it be taken for that kernel's leftover.
func supervisorEnv(environ []string) []string {
	env := selectEnv(environ, supervisorInherits)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
