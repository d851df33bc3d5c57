package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// stop is a Stop in progress. Further calls of Stop for the kernel join it.
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

// Stop ends a kernel and removes it. It goes on if its caller does not wait.
func (l *Launcher) Stop(ctx context.Context, id, reason string) error {
	k, err := l.find(ctx, id)
	if err != nil {
		return err
	}
	return l.beginStop(ctx, k, reason, false).wait(ctx)
}

// beginStop starts to stop a kernel, or joins a Stop in progress. ctx is used only for the id of the request. With
// silent, the kernel's ending is not stored.
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
	if !l.goroutines.Go(run) {
		op.err = errClosed
		close(op.done)
		return op
	}
	k.stop = op
	return op
}

// stopKernel does what Stop promises. It holds the kernel's turn until it returns, so that the supervisor's end is not
// taken for an unexpected one.
func (l *Launcher) stopKernel(k *kernel, reason, request string, silent bool) error {
	ctx, cancel := context.WithTimeout(l.ctx, l.timing.ready+l.stopLimit()+3*exitLimit)
	defer cancel()
	if err := k.takeTurn(ctx); err != nil {
		return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	defer k.giveTurn()
	l.mu.Lock()
	alive, already := k.end == nil && !k.place.Waits(), k.gone
	l.mu.Unlock()
	if already != nil {
		return already
	}
	patience := exitLimit
	if alive {
		patience = l.askToStop(ctx, k, reason, request)
	}
	if l.ctx.Err() != nil {
		return errClosed
	}
	return l.finishStop(ctx, k, patience, reason, silent)
}

// stopLimit bounds the wait for a supervisor's answer to a stop.
func (l *Launcher) stopLimit() time.Duration { return 2*l.opts.StopGrace + l.timing.stopMargin }

// askToStop asks the supervisor to end its kernel, and waits for its answer. It returns how much longer the supervisor
// may take to end.
func (l *Launcher) askToStop(ctx context.Context, k *kernel, reason, request string) (patience time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, l.stopLimit())
	defer cancel()
	client := k.client()
	client.Request = request
	err := client.Stop(ctx, reason)
	if err != nil {
		l.log.Warn("supervisor did not stop its kernel", logkey.Kernel, k.id, logkey.Err, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return 0 // the supervisor has had its time already
	}
	return exitLimit
}

// endUnsupported ends a supervisor that this gateway cannot speak to, and its kernel, so that both can be started
// again. Another supervisor is left alone. The turn and the folder's lock are held.
func (l *Launcher) endUnsupported(ctx context.Context, k *kernel) (liveness, error) {
	l.mu.Lock()
	unsupported := k.supervisor.Unsupported
	l.mu.Unlock()
	if unsupported == "" {
		return alive, nil
	}
	l.log.Info("kernel is ended for a restart", logkey.Kernel, k.id, logkey.Reason, unsupported)
	end := &api.Ending{KernelID: k.id, Reason: "it was ended for a restart: " + unsupported}
	// DELETE and the lock are the same in every version.
	patience := l.askToStop(ctx, k, end.Reason, launcher.RequestID(ctx))
	if _, err := l.processes.endSupervisor(ctx, k, patience); err != nil {
		return uncertain, err
	}
	end.At = l.timing.now().UTC()
	// The supervisor's own ending says that it is not shown.
	if err := files.WriteJSON(l.layout.file(k.id, endFile), end); err != nil {
		return uncertain, err
	}
	l.markDead(k, end)
	return dead, nil
}

// finishStop makes sure that the supervisor ends, and removes the kernel.
func (l *Launcher) finishStop(ctx context.Context, k *kernel, patience time.Duration, reason string,
	silent bool) error {
	folder, err := waitFolder(ctx, k.dir)
	if errors.Is(err, fs.ErrNotExist) { // another gateway has stopped it
		l.markGone(k, l.layout.goneError(k.id))
		return nil
	}
	if err != nil {
		return err
	}
	defer flock.Unlock(folder)
	for {
		end, err := l.processes.endSupervisor(ctx, k, patience)
		if err != nil {
			return err
		}
		switch {
		case end != nil:
			*end = end.Removed()
		default:
			end = &api.Ending{KernelID: k.id, Reason: reason, At: l.timing.now().UTC(), Stopped: true}
		}
		if silent {
			err = l.removeEnded(k)
		} else {
			err = l.removeWithEnding(k, *end)
		}
		if !errors.Is(err, errStarts) {
			return err
		}
		patience = 0 // it was not asked to stop
	}
}
