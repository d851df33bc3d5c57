package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/children"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// exitLimit bounds the wait for a supervisor's end after its kernel has ended or the supervisor was killed.
const exitLimit = 5 * time.Second

// processes starts and ends the processes of kernels: supervisors, their parents, and what they leave behind. It knows
// kernels by their folders only, and not whether the launcher shows them as dead. All methods may be called
// concurrently, and for one kernel by the holder of its turn and of its folder's lock.
type processes struct {
	// Fixed.
	layout  layout
	program string        // ekg-supervisor
	environ []string      // of supervisors
	groups  string        // Options.ControlGroups
	ready   time.Duration // for a supervisor to answer after its start
	now     func() time.Time
	log     *slog.Logger

	children *children.Set
}

// launch starts the parent of the kernel's supervisor, and waits until the supervisor listens. The caller holds the
// folder's lock. The kernel inherits the files in held. After an error no process is left.
func (ps *processes) launch(ctx context.Context, k *kernel, held []*os.File) error {
	if err := files.MakePrivate(k.rec.RunDir); err != nil {
		return err
	}
	out, err := os.OpenFile(ps.layout.file(k.id, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND|
		syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0o600) // a FIFO is refused
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // it was only read
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close() //nolint:errcheck // it was only read
	ready, readyWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close() //nolint:errcheck // it was only read
	argv := []string{ps.program, "parent", "--config", ps.layout.file(k.id, configFile), "--ready-fd", "3"}
	files := []*os.File{null, out, out, readyWriter}
	if len(held) > 0 {
		argv = append(argv, "--held-fds", fmt.Sprintf("%d+%d", len(files), len(held)))
		files = append(files, held...)
	}
	environ := append(slices.Clip(ps.environ), ownerVariable+"="+k.rec.Owner)
	ch, err := ps.children.Start(argv, environ, "/", files)
	_ = readyWriter.Close() // the supervisor has a copy
	if err != nil {
		return &launcher.FailedError{
			Reason: fmt.Sprintf("the supervisor program %s cannot be started: %v", ps.program, err),
			Class:  launcher.FailedContainer,
		}
	}
	if err := ps.awaitReady(ctx, ch, ready); err != nil {
		ch.Kill()
		<-ch.Exited // after SIGKILL this does not take long
		if n, kerr := ps.kill(k.id, 0, false); n > 0 || kerr != nil {
			ps.log.Warn("processes of a kernel that could not be started", logkey.Kernel, k.id, logkey.Killed, n, logkey.Err,
				kerr)
		}
		return err
	}
	return nil
}

// awaitReady waits for a supervisor's "ok". If the supervisor writes another line, that is returned.
func (ps *processes) awaitReady(ctx context.Context, ch *children.Child, ready *os.File) error {
	limited, cancel := context.WithTimeout(ctx, ps.ready)
	defer cancel()
	// a pipe has deadlines
	stop := context.AfterFunc(limited, func() { _ = ready.SetReadDeadline(ps.now()) })
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
		return &launcher.FailedError{
			Reason: fmt.Sprintf("its supervisor did not answer within %s", ps.ready),
			Class:  launcher.FailedSilent,
		}
	case strings.Contains(text, syscall.ENOSPC.Error()):
		return fmt.Errorf("its supervisor could not start: %w", syscall.ENOSPC)
	case strings.Contains(text, syscall.EDQUOT.Error()):
		return fmt.Errorf("its supervisor could not start: %w", syscall.EDQUOT)
	case strings.TrimSpace(text) != "":
		return &launcher.FailedError{
			Reason: "its supervisor could not start: " + strings.ToValidUTF8(text, ""),
			Class:  launcher.FailedContainer,
		}
	}
	return &launcher.FailedError{
		Reason: fmt.Sprintf("its supervisor (pid %d) ended before it answered; its log may say why", ch.PID),
		Class:  launcher.FailedContainer,
	}
}

// endSupervisor waits until no supervisor holds the kernel's lock and none of its processes is left. It returns the
// ending that the supervisor has stored. A supervisor that still runs after patience is killed.
func (ps *processes) endSupervisor(ctx context.Context, k *kernel, patience time.Duration) (*api.Ending, error) {
	p, orderly := ps.readProcesses(k.id), true
	if err := ps.awaitUnlocked(ctx, k, patience); err != nil {
		orderly = false
		ps.log.Warn("supervisor does not end and is killed", logkey.Kernel, k.id, logkey.PID, p.holder())
		// The process that holds the lock: the supervisor's parent, or a supervisor without one. All end with it.
		if err := ps.layout.signal(k.id, p.holder(), os.Kill); err != nil {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if err := ps.awaitUnlocked(ctx, k, exitLimit); err != nil {
			return nil, err
		}
	}
	end, err := ps.layout.readEnding(k.id)
	if err != nil {
		ps.log.Error("record of a kernel's end cannot be read", logkey.Kernel, k.id, logkey.Err, err)
	}
	// A supervisor that has recorded the end has killed the kernel's processes before.
	_, err = ps.kill(k.id, p.Kernel, orderly && end != nil)
	switch {
	case err != nil && end != nil: // the supervisor has said that the kernel has ended
		ps.log.Error("processes of a dead kernel remain", logkey.Kernel, k.id, logkey.Err, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
	}
	return end, nil
}

// awaitUnlocked waits for the end of the supervisor. A flock does not signal its release, so awaitUnlocked polls it.
func (ps *processes) awaitUnlocked(ctx context.Context, k *kernel, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		held, err := ps.layout.supervised(k.id)
		if err != nil {
			return fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if !held {
			return nil
		}
		if err := goroutines.Sleep(ctx, pause); err != nil {
			return fmt.Errorf("%w: its supervisor does not end", launcher.ErrUnavailable)
		}
	}
}

// cleanUp kills the processes that a killed supervisor left, and records the ending.
func (ps *processes) cleanUp(k *kernel) (*api.Ending, error) {
	p := ps.readProcesses(k.id)
	reason := "its supervisor process ended unexpectedly; its log and variables are lost"
	switch {
	case p.Parent != 0:
		reason = fmt.Sprintf("the parent of its supervisor (pid %d) ended unexpectedly; its log and variables are lost",
			p.Parent)
	case p.Supervisor != 0:
		reason = fmt.Sprintf("its supervisor process (pid %d) ended unexpectedly; its log and variables are lost",
			p.Supervisor)
	}
	if ps.killSupervisors(k.id) > 0 {
		reason = "it was ended: its files in the gateway's state folder were removed or damaged; its variables are lost"
	}
	n := ps.killRemains(k, p)
	ps.log.Warn("kernel's supervisor ended unexpectedly", logkey.Kernel, k.id, logkey.PID, p.holder(), logkey.Killed, n)
	end := &api.Ending{KernelID: k.id, Reason: reason, At: ps.now().UTC()}
	return end, files.WriteJSON(ps.layout.file(k.id, endFile), end)
}

// readProcesses returns the process ids of a kernel, as far as they are known.
func (ps *processes) readProcesses(id string) (p processIDs) {
	holder, err := api.ReadHolder(ps.layout.file(id, lockFile))
	for _, err := range []error{err, ps.layout.readState(id, processFile, &p)} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			ps.log.Warn("process ids of a kernel cannot be read", logkey.Kernel, id, logkey.Err, err)
		}
	}
	if holder != 0 && holder != p.holder() && ps.layout.lockIsRight(id, holder, p.holder()) {
		p.Parent = holder
	}
	return p
}

// writeProcesses stores the process ids that a later gateway needs if the supervisor is killed. It does not take the
// turn: the file is replaced as a whole.
func (ps *processes) writeProcesses(k *kernel, p processIDs) {
	if err := ps.layout.keepState(k.id, processFile, p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		ps.log.Warn("process ids of a kernel cannot be noted", logkey.Kernel, k.id, logkey.Err, err)
	}
}
