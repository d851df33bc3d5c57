package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/enterprise"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// alternateInterrupt is the variable of Enterprise Gateway that names the signal of an interrupt.
const alternateInterrupt = "EG_ALTERNATE_SIGINT"

const (
	// launchedGrace is how long a kernel with a launcher has to end after shutdown_request, unless freeOfListener has
	// succeeded. Enterprise Gateway gives it no time.
	launchedGrace = 2 * time.Second

	// freeLimit bounds freeOfListener: for an idle kernel to run reapListener.
	freeLimit = time.Second
)

// reapListener waits until a child of a Python kernel has ended, for half a second, and reaps those that have. It
// leaves no name in the kernel's namespace.
const reapListener = `(lambda m: (m.connection.wait([p.sentinel for p in m.active_children()], 0.5), ` +
	`m.active_children()))(__import__('multiprocessing.connection')) and None`

// portLimit bounds the question whether a port of this pod is open.
const portLimit = time.Second

// launched is a kernel's process that a launcher of Enterprise Gateway has started. Its interrupts go through the
// launcher, which is also what a shell that started the launcher expects.
type launched struct {
	kernelProcess
	keep      func(json.RawMessage) // child.Process.Connected
	interrupt syscall.Signal        // what the launcher sends for SIGINT
	comm      atomic.Int32          // communication port; 0: not known, or there is none
	shell     atomic.Int32          // port of the kernel's shell channel; 0: not known
	logger    func(msg string, args ...any)
}

func (s *Supervisor) newLaunched(p *child.Process) *launched {
	sig := syscall.SIGINT
	if name := s.assigning.env[alternateInterrupt]; name != "" {
		if sig = unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); sig == 0 {
			s.logger.Warn("the kernelspec's signal for interrupts is ignored: no signal has its name", logkey.Signal, name)
			sig = syscall.SIGINT
		}
	}
	return &launched{kernelProcess: p, keep: p.Connected, interrupt: sig, logger: s.logger.Warn}
}

// connected notes how the kernel is reached.
func (p *launched) connected(c *connectionfile.Connection) {
	p.comm.Store(int32(c.CommPort))
	_, port, _ := strings.Cut(strings.TrimPrefix(c.Endpoints[jupyter.Shell], "tcp://"), ":")
	n, _ := strconv.Atoi(port) // 0 asks nothing
	p.shell.Store(int32(n))
}

// Signal sends SIGINT through the launcher, and as a signal if the launcher does not take it. It sends other signals to
// the process group.
func (p *launched) Signal(sig syscall.Signal) error {
	port := int(p.comm.Load())
	if sig != syscall.SIGINT || port == 0 {
		return p.kernelProcess.Signal(sig)
	}
	err := enterprise.Signal(port, p.interrupt)
	if err == nil {
		return nil
	}
	p.logger("the kernel's launcher does not accept the interrupt; it is sent as a signal", logkey.Err, err)
	return p.kernelProcess.Signal(sig)
}

// endListener makes the launcher end with its kernel. Without it, a launcher waits for further requests.
func endListener(proc kernelProcess) {
	p, ok := proc.(*launched)
	if !ok {
		return
	}
	if port := int(p.comm.Swap(0)); port != 0 {
		if err := enterprise.EndListener(port); err != nil {
			p.logger("the kernel's launcher does not accept its shutdown", logkey.Err, err)
		}
	}
}

// freeOfListener ends the listener of a launcher for Python, and reports whether the kernel has reaped it. Before it
// ends, ipykernel asks its children to end. It waits half a minute for those that it does not reap, and the listener is
// such a child. A kernel that is busy, or is not in Python, is left alone.
func (s *Supervisor) freeOfListener(b *bridge, proc kernelProcess) bool {
	p, ok := proc.(*launched)
	if !ok || p.comm.Load() == 0 {
		return false
	}
	s.mu.Lock()
	able := b.ready && !s.use.Works() && isPython(s.kernel.info) == nil
	s.mu.Unlock()
	if !able {
		return false
	}
	endListener(proc)
	ctx, cancel := context.WithTimeout(context.Background(), freeLimit)
	defer cancel()
	reply, err := s.own.execute(ctx, b, reapListener)
	if err != nil || jupyter.StringField(reply, "status") != "ok" {
		s.logger.Info("the kernel has not reaped its launcher's listener; its end takes longer", logkey.Err, err)
		return false
	}
	return true
}

// endSilentListener does so if the kernel has closed its sockets, as at its end.
func endSilentListener(proc kernelProcess) {
	p, ok := proc.(*launched)
	if !ok || p.shell.Load() == 0 {
		return
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", p.shell.Load()), portLimit)
	if err == nil {
		_ = conn.Close() // nothing was sent
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		endListener(proc)
		waitFor(proc.Done(), process.OutputGrace)
	}
}

// expectLauncher listens for the launcher's answer and completes the start with what the launcher must know. The caller
// closes the Expectation. It is nil for other kernels.
func (s *Supervisor) expectLauncher(st *child.StartOptions) (*enterprise.Expectation, error) {
	if s.cfg.ResponseAddress == "" {
		return nil, nil
	}
	if s.launcherKey == nil {
		key, err := enterprise.NewKey()
		if err != nil {
			return nil, err
		}
		s.launcherKey = key
	}
	e, err := enterprise.Expect(s.cfg.ResponseAddress, s.cfg.KernelID, s.launcherKey)
	if err != nil {
		return nil, err
	}
	vars := e.Variables()
	st.Launcher, st.ConnectionFile = true, nil
	all := map[string]string{}
	for _, env := range []map[string]string{st.Env, vars} {
		for name, value := range env {
			all[name] = value
		}
	}
	st.Env = all
	fill := strings.NewReplacer("{response_address}", vars["RESPONSE_ADDRESS"], "{public_key}", vars["PUBLIC_KEY"])
	st.Argv = make([]string, len(s.cfg.Argv))
	for i, arg := range s.cfg.Argv {
		st.Argv[i] = fill.Replace(arg)
	}
	return e, nil
}

// awaitLauncher waits for the answer of a kernel's launcher. It returns false if there will be no connection: the
// kernel is then killed with the reason, or has ended already.
func (l *life) awaitLauncher(ctx context.Context) bool {
	e := l.expected
	if e == nil {
		return true
	}
	s := l.s
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LaunchLimit)
	defer cancel()
	a, err := e.Await(ctx)
	var c connectionfile.Connection
	if err == nil {
		c, err = connectionfile.Launched(&s.cfg, &a)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return false
	case errors.Is(err, context.DeadlineExceeded):
		l.giveUp(fmt.Sprintf("the kernel's launcher has not answered within %v", s.cfg.LaunchLimit))
		return false
	case err != nil:
		l.giveUp(err.Error())
		return false
	}
	l.expected, l.ep, l.signer = nil, c.Endpoints, c.Signer
	if p, ok := l.proc.(*launched); ok {
		p.keep(c.File)
		p.connected(&c)
	}
	return true
}
