package process

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

// reapInterval is the least time between two searches for orphans that have ended.
const reapInterval = 100 * time.Millisecond

// Reaper takes the exit status of orphans, which become children of this program when their parents end. It spares the
// processes that package process starts with it, and everything that is started within Hold. A nil Reaper reaps
// nothing. All methods may be called concurrently.
type Reaper struct {
	mu     sync.Mutex
	spared map[int]bool // process ids; another goroutine waits for their end
}

// NewReaper returns a Reaper that reaps nothing until Run.
func NewReaper() *Reaper { return &Reaper{spared: map[int]bool{}} }

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

// spare excludes a process from reaping. It is called within Hold.
func (r *Reaper) spare(pid int) {
	if r != nil {
		r.spared[pid] = true
	}
}

// forget ends spare, after the process was waited for.
func (r *Reaper) forget(pid int) {
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
		r.Hold(r.reapLocked)
		if sleep.For(ctx, reapInterval) != nil { // a kernel may leave thousands of orphans
			return
		}
	}
}

// reapLocked reaps the orphans that have ended by now.
func (r *Reaper) reapLocked() {
	for _, p := range proctree.List() {
		if p.Parent != os.Getpid() || p.State != 'Z' || r.spared[p.PID] {
			continue
		}
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(p.PID, &status, syscall.WNOHANG, nil) // an error means that it is reaped already
	}
}
