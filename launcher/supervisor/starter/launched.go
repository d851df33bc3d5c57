package starter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/enterprise"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// alternateInterrupt is the variable of Enterprise Gateway that names the signal of an interrupt.
const alternateInterrupt = "EG_ALTERNATE_SIGINT"

// portLimit bounds the question whether a port of this pod is open.
const portLimit = time.Second

// launched is a kernel's process that a launcher of Enterprise Gateway has started. Its interrupts go through the
// launcher, which is also what a shell that started the launcher expects.
type launched struct {
	Process
	keep      func(json.RawMessage) // child.Process.Connected
	interrupt syscall.Signal        // what the launcher sends for SIGINT
	comm      atomic.Int32          // communication port; 0: not known, or there is none
	shell     atomic.Int32          // port of the kernel's shell channel; 0: not known
	logger    func(msg string, args ...any)

	answer *enterprise.Expectation // of the launcher; nil: it was here, and the connection is known
	cfg    *api.Config
}

func (s *Starter) newLaunched(p *child.Process, env map[string]string) *launched {
	sig := syscall.SIGINT
	if name := env[alternateInterrupt]; name != "" {
		if sig = unix.SignalNum("SIG" + strings.TrimPrefix(name, "SIG")); sig == 0 {
			s.Logger.Warn("the kernelspec's signal for interrupts is ignored: no signal has its name", logkey.Signal, name)
			sig = syscall.SIGINT
		}
	}
	return &launched{Process: p, keep: p.Connected, interrupt: sig, logger: s.Logger.Warn}
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
		return p.Process.Signal(sig)
	}
	err := enterprise.Signal(port, p.interrupt)
	if err == nil {
		return nil
	}
	p.logger("the kernel's launcher does not accept the interrupt; it is sent as a signal", logkey.Err, err)
	return p.Process.Signal(sig)
}

// IsLaunched reports whether a launcher of Enterprise Gateway has started the process.
func IsLaunched(proc Process) bool {
	_, ok := proc.(*launched)
	return ok
}

// HasListener reports whether the process has a launcher that waits for requests.
func HasListener(proc Process) bool {
	p, ok := proc.(*launched)
	return ok && p.comm.Load() != 0
}

// EndListener makes the launcher end with its kernel. Without it, a launcher waits for further requests.
func EndListener(proc Process) {
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

// EndSilentListener ends the launcher if the kernel has closed its sockets, as at its end.
func EndSilentListener(proc Process) {
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
		EndListener(proc)
		goroutines.Within(proc.Done(), process.OutputGrace)
	}
}

// expectLauncher listens for the launcher's answer and completes the start with what the launcher must know. The caller
// closes the Expectation. It is nil for other kernels.
func (s *Starter) expectLauncher(st *child.StartOptions) (*enterprise.Expectation, error) {
	if s.Config.ResponseAddress == "" {
		return nil, nil
	}
	if s.key == nil {
		key, err := enterprise.NewKey()
		if err != nil {
			return nil, err
		}
		s.key = key
	}
	e, err := enterprise.Expect(s.Config.ResponseAddress, s.Config.KernelID, s.key)
	if err != nil {
		return nil, err
	}
	vars := e.Variables()
	st.Launcher, st.ConnectionFile = true, nil
	env := map[string]string{}
	maps.Copy(env, st.Env)
	maps.Copy(env, vars)
	st.Env = env
	fill := strings.NewReplacer("{response_address}", vars["RESPONSE_ADDRESS"], "{public_key}", vars["PUBLIC_KEY"])
	st.Argv = make([]string, len(s.Config.Argv))
	for i, arg := range s.Config.Argv {
		st.Argv[i] = fill.Replace(arg)
	}
	return e, nil
}

// Await waits for the answer of the kernel's launcher, if it has one, and completes the Connection. The error is one
// sentence for the kernel's owner, or the end of ctx. Once it was called, it waits no more.
func (st *Started) Await(ctx context.Context) error {
	p, ok := st.Process.(*launched)
	if !ok || p.answer == nil {
		return nil
	}
	defer p.answer.Close()
	ctx, cancel := context.WithTimeout(ctx, p.cfg.LaunchLimit)
	defer cancel()
	a, err := p.answer.Await(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the kernel's launcher has not answered within %v", p.cfg.LaunchLimit)
	}
	if err == nil {
		st.Connection, err = connectionfile.Launched(p.cfg, &a)
	}
	if err != nil {
		return err
	}
	p.answer = nil
	p.keep(st.Connection.File)
	p.connected(&st.Connection)
	return nil
}
