package proctree

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// reapInterval is the time from the end of a child until the search for orphans that have ended. It is also the least
// time between two searches.
const reapInterval = 100 * time.Millisecond

// Reaper takes the exit status of orphans, which become children of this program when their parents end. Without it
// they stay zombies. It spares the programs that this program runs and waits for: those that are started with Start or
// within Hold, and all in this program's own session. A nil Reaper reaps nothing. All methods may be called
// concurrently.
type Reaper struct {
	mu     sync.Mutex
	spared map[int]bool // process ids; another goroutine waits for their end
}

// NewReaper returns a Reaper that reaps nothing until Run.
func NewReaper() *Reaper { return &Reaper{spared: map[int]bool{}} }

// AdoptOrphans makes orphans children of this program, instead of the first process's, if this program has started them
// or their ancestors. Where the system cannot do that, it returns an error.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// Hold runs f while nothing is reaped. f must not call the Reaper.
func (r *Reaper) Hold(f func()) {
	if r == nil {
		f()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Start calls start, which starts a child, while nothing is reaped. The child is spared until Forget. start must not
// call the Reaper. Start returns its error.
func (r *Reaper) Start(start func() (pid int, err error)) (err error) {
	r.Hold(func() {
		var pid int
		if pid, err = start(); err == nil && r != nil {
			r.spared[pid] = true
		}
	})
	return err
}

// Forget ends the sparing of a child that was waited for.
func (r *Reaper) Forget(pid int) {
	r.Hold(func() {
		if r != nil {
			delete(r.spared, pid)
		}
	})
}

// Run reaps until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	for {
		select {
		case <-ctx.Done():
			return
		case <-chld:
		}
		// A kernel may leave thousands of orphans. And those who wait for their own children need a moment: the search reads
		// all of /proc, which the end of a child that was waited for is not worth.
		if goroutines.Sleep(ctx, reapInterval) != nil {
			return
		}
		if childEnded() {
			r.Hold(r.reapLocked)
		}
	}
}

// childEnded reports whether a child of this program has ended and was not waited for.
func childEnded() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	if err != nil {
		return !errors.Is(err, unix.ECHILD) // without children none has ended
	}
	return info.Signo != 0
}

// reapLocked reaps the orphans that have ended by now.
func (r *Reaper) reapLocked() {
	self := os.Getpid()
	session, err := unix.Getsid(0)
	if err != nil {
		return // it cannot fail for this process
	}
	for _, p := range List() {
		if p.Parent != self || p.State != 'Z' || p.Session == session || r.spared[p.PID] {
			continue
		}
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(p.PID, &status, syscall.WNOHANG, nil) // an error means that it is reaped already
	}
}
