package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parent"
)

// supervisorsVariable makes the harness's program a host of supervisors and their fake kernels. Its value is the most
// that it runs. Descriptor 3 is the listening socket, which several hosts share.
const supervisorsVariable = "EKG_BENCH_SUPERVISORS"

// hostSupervisors is the program of a host. It ends with the process that started it, or with SIGTERM.
func hostSupervisors(most string) error {
	n, err := strconv.Atoi(most)
	if err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(3, "supervisors"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGHUP) // a gateway asks a supervisor's parent to upgrade it in this way
	h := supervisors{log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	return h.serve(ctx, l, n)
}

// supervisors are real supervisors in this process, each with a fake kernel. Between them is the protocol of a
// supervisor's parent. So a gateway sees no difference to supervisors in processes of their own.
type supervisors struct {
	log *slog.Logger
	all sync.WaitGroup
}

// serve runs a supervisor for each connection from stub/stub.c, and at most this many. Other hosts accept the others.
// At the end of ctx it stops all of them, and waits.
func (h *supervisors) serve(ctx context.Context, l net.Listener, most int) error {
	defer h.all.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // it ends Accept
	for range most {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		h.all.Go(func() { h.run(ctx, conn) })
	}
	<-ctx.Done()
	return nil
}

// run runs one supervisor to its end. It answers on conn as a supervisor answers its launcher.
func (h *supervisors) run(ctx context.Context, conn net.Conn) {
	s, l, cfg, lock, err := h.prepare(conn)
	answer := "ok"
	if err != nil {
		answer = err.Error()
	}
	_, werr := fmt.Fprintln(conn, answer)
	_ = conn.Close() // nothing more is written
	if err != nil {
		return
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	if werr != nil {
		h.log.Error("the launcher is gone", logkey.Kernel, cfg.KernelID, logkey.Err, werr)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var child sync.WaitGroup
	child.Go(func() {
		if err := runHosted(ctx, cfg.ChildSocket); err != nil {
			h.log.Error("hosted kernel", logkey.Kernel, cfg.KernelID, logkey.Err, err)
		}
		cancel() // without its kernel a supervisor is useless here
	})
	defer child.Wait()
	defer cancel()
	if err := supervisor.Serve(ctx, s, l); err != nil {
		h.log.Error("supervisor ended", logkey.Kernel, cfg.KernelID, logkey.Err, err)
	}
}

// prepare does what can fail before a supervisor runs.
func (h *supervisors) prepare(conn net.Conn) (
	s *supervisor.Supervisor, l net.Listener, cfg api.Config, lock io.Closer, err error) {
	file, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return nil, nil, cfg, nil, err
	}
	if cfg, err = api.ReadConfig(strings.TrimSuffix(file, "\n")); err != nil {
		return nil, nil, cfg, nil, err
	}
	if cfg.ChildSocket == "" {
		return nil, nil, cfg, nil, errors.New("the configuration has no child_socket")
	}
	if lock, err = parent.Lock(cfg.LockFile); err != nil {
		return nil, nil, cfg, nil, err
	}
	if l, err = listener.Open(&cfg); err != nil {
		_ = lock.Close() // nothing was written
		return nil, nil, cfg, nil, err
	}
	return supervisor.New(cfg, "bench", h.log), l, cfg, lock, nil
}

// line is what supervisor and parent send each other about a kernel; see launcher/supervisor/child/protocol.go.
type line struct {
	Type    string         `json:"type"`
	Version int            `json:"version,omitempty"`
	Life    string         `json:"life,omitempty"`
	PID     int            `json:"pid,omitempty"`
	Text    string         `json:"text,omitempty"`
	Signal  syscall.Signal `json:"signal,omitempty"`
	Memory  int64          `json:"memory,omitempty"`
	Start   struct {
		Connection launchertest.Connection `json:"connection"`
	} `json:"start,omitzero"`
	Exit *exited `json:"exit,omitempty"`
}

type exited struct {
	Code   int            `json:"code"`
	Signal syscall.Signal `json:"signal"`
}

// hosted is what a supervisor takes for its parent. It runs the kernel in this process.
type hosted struct {
	mu     sync.Mutex // of out
	out    *json.Encoder
	life   string
	kernel *launchertest.FakeKernel // nil: none was started
	ends   sync.WaitGroup           // of reports of ends
}

// runHosted dials a supervisor's socket until it listens, and then serves it until it tells the end or ctx ends.
func runHosted(ctx context.Context, socket string) error {
	conn, err := dialSoon(ctx, socket)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // it ends the read
	h := &hosted{out: json.NewEncoder(conn)}
	defer h.ends.Wait()
	defer h.stop()
	defer conn.Close() //nolint:errcheck // what is unsent is lost
	if err := h.send(line{Type: "hello", Version: 1}); err != nil {
		return err
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var l line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return err
		}
		if l.Type == "end" {
			return nil
		}
		if err := h.handle(l); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return in.Err()
}

func (h *hosted) send(l line) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.out.Encode(l)
}

// handle does what a line asks for.
func (h *hosted) handle(l line) error {
	if l.Type == "start" {
		return h.start(l)
	}
	if h.kernel == nil || l.Life != h.life {
		return nil
	}
	switch l.Type {
	case "signal":
		if l.Signal == syscall.SIGINT {
			h.kernel.Interrupt()
		}
	case "kill":
		h.stop()
	case "memory":
		return h.send(line{Type: "memory", Life: h.life, Memory: 1})
	case "measure":
		return h.send(line{Type: "used", Life: h.life})
	}
	return nil
}

// start replaces the kernel, and reports its end when it comes.
func (h *hosted) start(l line) error {
	h.stop()
	k, err := launchertest.StartFakeKernel(l.Start.Connection, launchertest.FakeKernelOptions{})
	if err != nil {
		return h.send(line{Type: "failed", Life: l.Life, Text: err.Error()})
	}
	h.kernel, h.life = k, l.Life
	if err := h.send(line{Type: "started", Life: l.Life, PID: os.Getpid()}); err != nil {
		return err
	}
	h.ends.Go(func() {
		e := &exited{Code: k.Wait()}
		if e.Code < 0 {
			e.Code, e.Signal = -1, syscall.Signal(-e.Code)
		}
		_ = h.send(line{Type: "exit", Life: l.Life, Exit: e}) // the supervisor may have ended
	})
	return nil
}

func (h *hosted) stop() {
	if h.kernel != nil {
		h.kernel.Close()
	}
}

// dialSoon connects to a socket that another goroutine is about to open.
func dialSoon(ctx context.Context, socket string) (net.Conn, error) {
	for end := time.Now().Add(listenLimit); ; {
		conn, err := net.Dial("unix", socket)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return conn, err
		}
		time.Sleep(time.Millisecond)
	}
}

// listenLimit bounds the wait for a supervisor to listen to its parent.
const listenLimit = 30 * time.Second
