// Package starter starts a kernel's process, apart from what speaks for the kernel. The process is a child of this
// program, or of the child in the kernel's container, and a launcher of Enterprise Gateway may stand between. A kernel
// that an earlier supervisor has started is adopted. Package supervisor calls Start for each life of its kernel, and
// waits for the container. Begin with Starter.Start; Process is what it returns. This package starts no goroutine.
package starter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/enterprise"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// Starter starts the processes of one kernel. One goroutine at a time may call its methods, except for Signal.
type Starter struct {
	// Fixed.
	Config    *api.Config      // only fields that an assignment does not change
	Container *child.Container // nil: the process is a child of this program
	Reaper    *proctree.Reaper // of this program; nil: orphans do not become its children
	Logger    *slog.Logger
	Measured  func()           // called when there is a look at the GPUs of a child of this program
	Sampled   func()           // called when there are samples of them
	Answered  func(gpu.Answer) // called with the answers to Process.AskGPU
	Called    func()           // called while calls of CUDA wait, each second; nil: they do not wait

	key      *enterprise.Key // of the answers of launchers; nil: not made yet
	replaces bool            // see Replace
}

// Life says how one life of the kernel begins.
type Life struct {
	Env   map[string]string
	Dir   string     // the working directory
	First bool       // this supervisor has not run the kernel yet
	Found func(Fate) // called in the first life: the fate of the kernel of an earlier supervisor, if there was one
}

// Fate is what became of the kernel of an earlier supervisor.
type Fate int

// Fates of a kernel. Start reports the first two.
const (
	Lives     Fate = iota // it is adopted
	Died                  // it ended while no supervisor was there
	Restarted             // a user restarts it
)

// Started is a process that was started or adopted. Await must be called once at least.
type Started struct {
	Process    Process
	Connection connectionfile.Connection // known after Await
	Adopted    bool
}

// PlaceOf returns where a kernel's process runs.
func PlaceOf(cfg *api.Config) process.Place {
	if cfg.ChildSocket == "" || cfg.SameMachine {
		return process.OnMachine
	}
	return process.InContainer
}

// Replace makes the next Start end the kernel of an earlier supervisor, which it would adopt else.
func (s *Starter) Replace() { s.replaces = true }

// Start starts the kernel's process, or adopts the one that an earlier supervisor has started. The error is
// child.ErrNoContainer while no child is connected, and child.ErrSilent if the child may start the process yet.
func (s *Starter) Start(ctx context.Context, l Life) (*Started, error) {
	if s.Container != nil {
		return s.startRemote(ctx, l)
	}
	c, err := connectionfile.New(s.Config)
	if err != nil {
		return nil, err
	}
	if err := files.Write(s.Config.ConnectionFile, c.File); err != nil {
		return nil, fmt.Errorf("connection file: %w", err)
	}
	var called func(*process.Process)
	if s.Called != nil {
		called = func(*process.Process) { s.Called() }
	}
	p, err := process.Start(process.Options{
		GPUCalled: called,
		KernelID:  s.Config.KernelID, Argv: process.Command(s.Config.Argv, s.Config.ConnectionFile), Env: l.Env,
		WorkingDir: l.Dir, Reaper: s.Reaper, Logger: s.Logger,
		GPUSeen:    func(*process.Process) { s.Measured() },
		GPUSampled: func(*process.Process, gpu.Samples) { s.Sampled() },
		GPUAnswer:  func(_ *process.Process, a gpu.Answer) { s.Answered(a) },
	})
	if err != nil {
		return nil, err
	}
	return &Started{Process: p, Connection: c}, nil
}

// startRemote makes the child start the kernel, or adopts the kernel that the child runs already.
func (s *Starter) startRemote(ctx context.Context, l Life) (*Started, error) {
	if !s.Container.Connected() {
		return nil, child.ErrNoContainer
	}
	if k := s.Container.Inherited(); k != nil && s.replaces {
		s.endInherited(k)
	} else if k != nil && l.First {
		c, ok, err := connectionfile.Adopt(s.Config, k.ConnectionFile)
		if err != nil {
			return nil, err
		}
		if ok {
			l.Found(Lives)
			return s.adopt(k, c, l.Env), nil
		}
	}
	if l.First {
		l.Found(Died)
	}
	c, err := connectionfile.New(s.Config)
	if err != nil {
		return nil, err
	}
	st := child.StartOptions{
		KernelID: s.Config.KernelID, Argv: s.Config.Argv, ImageKernelspec: s.Config.ImageKernelspec,
		Env: l.Env, WorkingDir: l.Dir, ConnectionFile: c.File, HoldGPUCalls: s.Called != nil,
	}
	if s.Config.SameMachine {
		st.ConnectionPath = s.Config.ConnectionFile
		if err := files.Write(st.ConnectionPath, c.File); err != nil {
			return nil, fmt.Errorf("connection file: %w", err)
		}
	}
	e, err := s.expectLauncher(&st)
	if err != nil {
		return nil, err
	}
	p, err := s.Container.Start(ctx, st)
	if err != nil {
		if e != nil {
			e.Close()
		}
		return nil, err
	}
	s.replaces = false
	if e == nil {
		return &Started{Process: p, Connection: c}, nil
	}
	launched := s.newLaunched(p, l.Env)
	launched.answer, launched.cfg = e, s.Config
	return &Started{Process: launched}, nil
}

// adopt makes a kernel that the child runs already the present process.
func (s *Starter) adopt(k *child.Kernel, c connectionfile.Connection, env map[string]string) *Started {
	p := s.Container.Adopt(k)
	if s.Config.ResponseAddress == "" {
		return &Started{Process: p, Connection: c, Adopted: true}
	}
	l := s.newLaunched(p, env)
	l.connected(&c)
	return &Started{Process: l, Connection: c, Adopted: true}
}

// endInherited ends the kernel of the previous supervisor, which is not connected.
func (s *Starter) endInherited(k *child.Kernel) {
	s.Logger.Info("the kernel of the previous supervisor is replaced, as its restart was requested", logkey.PID, k.PID)
	p := s.Container.Adopt(k)
	s.Signal(p, syscall.SIGTERM)
	if goroutines.Within(p.Done(), s.Config.StopGrace) {
		return
	}
	p.Kill()
	<-p.Done()
}

// Signal sends a signal to a process that may have ended.
func (s *Starter) Signal(p Process, sig syscall.Signal) {
	err := p.Signal(sig)
	if err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, child.ErrNoContainer) {
		s.Logger.Warn("signal was not delivered", logkey.Signal, sig.String(), logkey.Err, err)
	}
}
