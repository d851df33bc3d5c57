package local

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// children are the supervisors that this process has started. One goroutine, woken by SIGCHLD, reaps those that have
// ended; os/exec would need a blocked thread for each. The goroutine waits for these processes only, so it reaps no
// child of other parts of the program.
type children struct {
	reaper  *proctree.Reaper // of this program; nil: orphans do not become its children
	signals chan os.Signal
	stop    chan struct{}
	stopped chan struct{}

	// Guarded by mu, which is held during a start: a child cannot end before it is recorded.
	mu      sync.Mutex
	running map[int]*child
}

// child is one process.
type child struct {
	pid    int
	exited chan struct{} // closed when it has been reaped

	owner *children
}

func newChildren(reaper *proctree.Reaper) *children {
	c := &children{reaper: reaper, signals: make(chan os.Signal, 1), stop: make(chan struct{}),
		stopped: make(chan struct{}),
		running: make(map[int]*child)}
	signal.Notify(c.signals, syscall.SIGCHLD)
	go c.reap()
	return c
}

func (c *children) reap() {
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

func (c *children) reapEnded() {
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

// close ends the goroutine. Children keep running; init reaps them.
func (c *children) close() {
	signal.Stop(c.signals)
	close(c.stop)
	<-c.stopped
}

// start runs a program in a session of its own. files become its descriptors 0, 1, 2 and so on.
func (c *children) start(argv, env []string, dir string, files []*os.File) (*child, error) {
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
	ch := &child{pid: pid, exited: make(chan struct{}), owner: c}
	c.running[pid] = ch
	return ch, nil
}

// kill ends the process unless it has been reaped. After that, another process may have its id.
func (ch *child) kill() {
	ch.owner.mu.Lock()
	defer ch.owner.mu.Unlock()
	if ch.owner.running[ch.pid] == ch {
		_ = syscall.Kill(ch.pid, syscall.SIGKILL) // at worst it is a zombie already
	}
}

// count returns the number of running children.
func (c *children) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.running)
}
