package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// exitLimit bounds the wait for a supervisor's own end, once its kernel is gone or it has been killed.
const exitLimit = 5 * time.Second

// stop is a Stop in progress. Everybody who wants the kernel stopped meanwhile joins it.
type stop struct {
	done chan struct{}
	err  error // valid once done is closed
}

func (s *stop) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop ends a kernel and removes it. Once begun it is carried out, whether or not its caller waits.
func (l *Launcher) Stop(ctx context.Context, id, reason string) error {
	k, err := l.find(ctx, id)
	if err != nil {
		return err
	}
	return l.beginStop(ctx, k, reason, false).wait(ctx)
}

// beginStop starts to stop a kernel, or joins who does; ctx only tells which request wants it. With silent, no trace of the kernel
// is to stay.
func (l *Launcher) beginStop(ctx context.Context, k *kernel, reason string, silent bool) *stop {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.stop != nil {
		return k.stop
	}
	op := &stop{done: make(chan struct{})}
	run := func() {
		op.err = l.stopKernel(k, reason, launcher.RequestID(ctx), silent)
		l.mu.Lock()
		k.stop = nil
		l.mu.Unlock()
		close(op.done)
	}
	if !l.ownLocked(run) {
		op.err = errClosed
		close(op.done)
		return op
	}
	k.stop = op
	return op
}

// stopKernel does what Stop promises. It holds the kernel's turn throughout: nobody else concludes anything from a
// supervisor that is ending.
func (l *Launcher) stopKernel(k *kernel, reason, request string, silent bool) error {
	limit := 2*l.opts.StopGrace + l.timing.stopMargin
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.ready+limit+3*exitLimit)
	defer cancel()
	if err := k.takeTurn(ctx); err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	defer k.giveTurn()
	l.mu.Lock()
	ask, already := k.end == nil, k.gone
	l.mu.Unlock()
	if already != nil {
		return already
	}
	patience := exitLimit
	if ask {
		asking, cancel := context.WithTimeout(ctx, limit)
		client := l.client(k)
		client.Request = request
		err := client.Stop(asking, reason)
		cancel()
		if err != nil {
			l.log.Warn("supervisor did not stop its kernel", "kernel", k.id, "err", err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			patience = 0 // it has had its time
		}
	}
	if l.ctx.Err() != nil {
		return errClosed
	}
	return l.finishStop(ctx, k, patience, reason, silent)
}

// finishStop sees to it that the supervisor ends, and removes the kernel.
func (l *Launcher) finishStop(ctx context.Context, k *kernel, patience time.Duration, reason string, silent bool) error {
	folder, err := waitFolder(ctx, k.dir)
	if errors.Is(err, fs.ErrNotExist) { // another gateway has stopped it too
		l.enterGone(k, l.layout.goneError(k.id))
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock(folder)
	end, err := l.endSupervisor(ctx, k, patience)
	if err != nil {
		return err
	}
	switch {
	case end != nil && end.Culled:
		end.Stopped = true // why it ended is still the same
	case end == nil || !end.Stopped:
		end = &supervisor.Ending{KernelID: k.id, Reason: reason, At: l.timing.now().UTC(), Stopped: true}
	}
	if !silent {
		return l.bury(k, *end)
	}
	if err := l.remove(k); err != nil {
		return err
	}
	l.enterGone(k, launcher.ErrNotFound)
	return nil
}

// endSupervisor returns when no supervisor holds the kernel's lock and none of its processes is left, with what the
// supervisor has left in writing. It is killed if it has not ended by itself after patience.
func (l *Launcher) endSupervisor(ctx context.Context, k *kernel, patience time.Duration) (*supervisor.Ending, error) {
	var p processes
	if err := readJSON(l.layout.file(k.id, processFile), &p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("process ids of a kernel cannot be read", "kernel", k.id, "err", err)
	}
	if err := l.awaitUnlocked(ctx, k, patience); err != nil {
		l.log.Warn("supervisor does not end and is killed", "kernel", k.id, "pid", p.Supervisor)
		if err := l.killSupervisor(k, p.Supervisor); err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if err := l.awaitUnlocked(ctx, k, exitLimit); err != nil {
			return nil, err
		}
	}
	end, err := l.layout.readEnding(k.id)
	if err != nil {
		l.log.Error("record of a kernel's end cannot be read", "kernel", k.id, "err", err)
	}
	if end == nil { // it did not end its kernel itself
		if _, err := supervisor.KillRemains(k.id, p.Kernel); err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
	}
	return end, nil
}

// awaitUnlocked waits for the end of the supervisor. A flock tells nobody that it is free, so it is tried again.
func (l *Launcher) awaitUnlocked(ctx context.Context, k *kernel, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		held, err := l.layout.supervised(k.id)
		if err != nil {
			return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if !held {
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return fmt.Errorf("%w: its supervisor does not end", launcher.ErrUnavailable)
		}
	}
}

// killSupervisor kills the process that holds the kernel's lock. Process ids are reused, so the program's arguments
// have to name the kernel's configuration; the handle is taken before that look.
func (l *Launcher) killSupervisor(k *kernel, pid int) error {
	if pid <= 1 {
		return errors.New("the supervisor's process id is not known")
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	defer p.Release() //nolint:errcheck // it has no error to give
	args, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	if !bytes.Contains(args, []byte("\x00"+l.layout.file(k.id, configFile)+"\x00")) {
		return fmt.Errorf("process %d is not the supervisor of the kernel", pid)
	}
	return p.Kill()
}
