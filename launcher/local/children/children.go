// Package children starts programs and reaps them when they end. launcher/local starts the parents of its supervisors
// with it. Begin with New. A Set has one goroutine, which Close ends and waits for.
package children

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// Set has the programs that were started with it and run. One goroutine, woken by SIGCHLD, reaps those that have
// ended; os/exec would need a blocked thread for each. The goroutine waits for these processes only, so it reaps no
// child of other parts of the program. All methods may be called concurrently.
type Set struct {
	reaper  *proctree.Reaper // of this program; nil: orphans do not become its children
	signals chan os.Signal
	stop    chan struct{}
	stopped chan struct{}

	// Guarded by mu, which is held during a start: a child cannot end before it is recorded.
	mu      sync.Mutex
	running map[int]*Child
}

// Child is one process.
type Child struct {
	PID    int
	Exited <-chan struct{} // closed when it has been reaped

	owner  *Set
	exited chan struct{}
}

// New returns an empty Set. reaper is that of this program, which must not take their exit status; nil: there is none.
func New(reaper *proctree.Reaper) *Set {
	c := &Set{reaper: reaper, signals: make(chan os.Signal, 1), stop: make(chan struct{}),
		stopped: make(chan struct{}),
		running: make(map[int]*Child)}
	signal.Notify(c.signals, syscall.SIGCHLD)
	go c.reap()
	return c
}

func (c *Set) reap() {
	defer close(c.stopped)
	for {
		select {
		case <-c.signals:
			c.reapEnded()
		case <-c.stop:
			return
		}
	}
}

func (c *Set) reapEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid, ch := range c.running {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR || (err == nil && got == 0) {
			continue // the process runs; after an interrupted wait another SIGCHLD follows
		}
		delete(c.running, pid)
		c.reaper.Forget(pid)
		close(ch.exited)
	}
}

// Close ends the goroutine. Children keep running; init reaps them.
func (c *Set) Close() {
	signal.Stop(c.signals)
	close(c.stop)
	<-c.stopped
}

// Start runs a program in a session of its own. files become its descriptors 0, 1, 2 and so on.
func (c *Set) Start(argv, env []string, dir string, files []*os.File) (*Child, error) {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var pid int
	err := c.reaper.Start(func() (p int, err error) {
		pid, err = syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Dir: dir, Env: env, Files: fds,
			Sys: &syscall.SysProcAttr{Setsid: true}})
		return pid, err
	})
	if err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	ch := &Child{PID: pid, Exited: exited, owner: c, exited: exited}
	c.running[pid] = ch
	return ch, nil
}

// Kill ends the process unless it has been reaped. After that, another process may have its id.
func (ch *Child) Kill() {
	ch.owner.mu.Lock()
	defer ch.owner.mu.Unlock()
	if ch.owner.running[ch.PID] == ch {
		_ = syscall.Kill(ch.PID, syscall.SIGKILL) // at worst it is a zombie already
	}
}

// Count returns the number of running children.
func (c *Set) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running)
}
