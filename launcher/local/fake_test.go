package local

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parent"
)

// TestMain makes the test binary four programs: the tests; ekg-supervisor, if the arguments are a supervisor's; the
// fake kernel; and other gateways. The supervisor is the real one, or a small fake for a kernel whose command begins
// with "fake".
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 3 && os.Args[1] == "parent":
		os.Exit(parentMain(os.Args[3]))
	case len(os.Args) > 2 && os.Args[1] == "--config":
		os.Exit(supervisorMain(os.Args[2]))
	case len(os.Args) > 1 && os.Args[1] == "kernel":
		os.Exit(launchertest.FakeKernelMain(os.Args[2:]))
	case len(os.Args) > 4 && os.Args[1] == "gateway":
		os.Exit(gatewayMain(os.Args[2], os.Args[3], os.Args[4]))
	case len(os.Args) > 5 && os.Args[1] == "lender":
		os.Exit(lenderMain(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	case len(os.Args) > 6 && os.Args[1] == "limited":
		var numbers [3]int
		for i := range numbers {
			numbers[i], _ = strconv.Atoi(os.Args[4+i]) // a test wrote it
		}
		os.Exit(limitedMain(os.Args[2], os.Args[3], numbers[0], numbers[1], numbers[2]))
	}
	// Otherwise the race detector delays the end of every supervisor by a second.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // the name is a possible one
	os.Exit(m.Run())
}

// parentMain is the parent of a real supervisor, or a fake supervisor without a parent.
func parentMain(config string) int {
	ready := os.NewFile(3, "ready")
	cfg, err := api.ReadConfig(config)
	var lock *os.File
	held := heldFiles()
	if err == nil && cfg.Argv[0] == "fake" {
		return fakeMain(cfg, ready, held)
	}
	for _, f := range held {
		syscall.CloseOnExec(int(f.Fd()))
	}
	if err == nil {
		lock, err = parent.Lock(cfg.LockFile)
	}
	if err != nil {
		_, _ = fmt.Fprintln(ready, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	program, err := parent.OpenProgram("/proc/self/exe", os.Args[0])
	if err != nil {
		panic(err)
	}
	upgrades := make(chan os.Signal, 1)
	signal.Notify(upgrades, syscall.SIGHUP)
	return parent.Run(ctx, parent.Options{Config: cfg, ConfigFile: config, Program: program, Upgrades: upgrades,
		Ready: ready, Lock: lock, Held: held, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
}

// heldFiles returns the descriptors of --held-fds.
func heldFiles() (files []*os.File) {
	for i, a := range os.Args {
		var first, count int
		if a != "--held-fds" {
			continue
		}
		if _, err := fmt.Sscanf(os.Args[i+1], "%d+%d", &first, &count); err != nil {
			panic(err)
		}
		for fd := first; fd < first+count; fd++ {
			files = append(files, os.NewFile(uintptr(fd), "held"))
		}
	}
	return files
}

func fakeMain(cfg api.Config, ready *os.File, held []*os.File) int {
	f := &fakeSupervisor{
		held:    held,
		cfg:     cfg,
		mode:    cfg.Argv[1],
		changed: make(chan struct{}),
		over:    make(chan struct{}),
		ended:   make(chan struct{}),
		status: api.Status{
			Protocol: api.ProtocolVersion, Build: "fake", KernelID: cfg.KernelID, PID: os.Getpid(),
			State: "starting", LastActivity: time.Now().UTC(), LogBytes: 7, LogLimit: cfg.LogLimit},
	}
	return f.run(ready)
}

// supervisorMain is the real supervisor below its parent.
func supervisorMain(config string) int {
	ready := os.NewFile(3, "ready")
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4) // the lock
	cfg, err := api.ReadConfig(config)
	if err != nil {
		_, _ = fmt.Fprintln(ready, err)
		return 1
	}
	l, err := listener.Open(&cfg)
	if err != nil {
		_, _ = fmt.Fprintln(ready, err)
		return 1
	}
	_, _ = fmt.Fprintln(ready, "ok")
	_ = ready.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s := supervisor.New(cfg, "test", slog.New(slog.NewTextHandler(os.Stderr, nil)))
	held := heldFiles()
	for _, f := range held {
		syscall.CloseOnExec(int(f.Fd()))
	}
	s.SetHeld(held)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, parent.LeaveIfComplete)
	go func() {
		for range asked {
			id := parent.RequestID(config)
			err := s.Leave(ctx, false)
			if err == nil {
				os.Exit(parent.LeaveCode)
			}
			if err := parent.Refuse(config, id, err); err != nil {
				panic(err)
			}
		}
	}()
	err = supervisor.Serve(ctx, s, l)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// fakeSupervisor keeps a supervisor's side of the contract except for what its mode says: fine, refuse, silent, slow,
// leave, orphan, program, version, deaf, full, filling.
type fakeSupervisor struct {
	cfg   Config
	mode  string
	held  []*os.File    // locks of GPUs, which the kernel inherits
	over  chan struct{} // closed when it must end
	ended chan struct{} // closed when the kernel has ended

	mu      sync.Mutex
	status  api.Status
	changed chan struct{}
	stopped bool
}

// Config is the real configuration.
type Config = api.Config

// orphanVariable names the file to which an orphan fake supervisor writes the id of the process that it leaves behind.
const orphanVariable = "ORPHAN"

// slowPipe is the named pipe in a kernel's folder that holds up a slow fake supervisor.
const slowPipe = "slow"

// silentFile is the file in a kernel's folder that a silent fake supervisor makes once it ignores signals.
const silentFile = "silent"

// limitsFile is the file in a kernel's folder to which a fake supervisor adds a byte for each limit that it is sent.
const limitsFile = "limits"

// holdUp makes a named pipe and returns when it has been opened for writing.
func holdUp(path string) error {
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func (f *fakeSupervisor) run(ready *os.File) int {
	switch f.mode {
	case "refuse":
		_, _ = fmt.Fprintln(ready, "the moon is not full")
		return 1
	case "leave":
		return 3
	case "orphan":
		cmd := exec.Command("sleep", "1000") // nothing says whose process it is, but it has inherited the locks of GPUs
		cmd.Env = []string{}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		if err := files.WriteJSON(f.cfg.Env[orphanVariable], cmd.Process.Pid); err != nil {
			panic(err)
		}
		return 3
	case "slow":
		// It does not take its lock until the test opens the pipe, as if the machine were busy.
		if err := holdUp(filepath.Join(filepath.Dir(f.cfg.LockFile), slowPipe)); err != nil {
			_, _ = fmt.Fprintln(ready, err)
			return 1
		}
	case "silent":
		signal.Ignore(syscall.SIGTERM)
		if err := os.WriteFile(filepath.Join(filepath.Dir(f.cfg.LockFile), silentFile), nil, 0o600); err != nil {
			panic(err)
		}
		<-make(chan struct{})
	}
	lock, err := parent.Lock(f.cfg.LockFile)
	if err != nil {
		_, _ = fmt.Fprintln(ready, err)
		return 1
	}
	defer lock.Close() //nolint:errcheck // nothing depends on it
	path := strings.TrimPrefix(f.cfg.Listen, "unix:")
	_ = os.Remove(path) // of an earlier run
	l, err := net.Listen("unix", path)
	if err != nil {
		_, _ = fmt.Fprintln(ready, err)
		return 1
	}
	_, _ = fmt.Fprintln(ready, "ok")
	_ = ready.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/kernels/{id}/status", f.stream)
	mux.HandleFunc("DELETE /api/kernels/{id}", f.delete)
	mux.HandleFunc("PUT /api/kernels/{id}/limits", f.limits)
	srv := &http.Server{Handler: mux}
	go func() { _ = srv.Serve(l) }()
	f.kernel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = srv.Shutdown(ctx)
	return 0
}

// kernel runs "sleep" as the kernel, with a grandchild that survives it, until it ends or is stopped.
func (f *fakeSupervisor) kernel() {
	if f.mode == "program" {
		f.change(func(st *api.Status) { st.State, st.Reason = "dead", `the kernel's program "/x" does not exist` })
		<-f.over
		close(f.ended)
		return
	}
	cmd := exec.Command("sh", "-c", "sleep 1000 & exec sleep 1000")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "EKG_KERNEL_ID=" + f.cfg.KernelID,
		lend.VisibleVariable + "=" + f.cfg.Env[lend.VisibleVariable],
		lend.MemoryVariable + "=" + f.cfg.Env[lend.MemoryVariable]}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	f.change(func(st *api.Status) {
		st.KernelPID, st.Epoch, st.State = cmd.Process.Pid, 1, "idle"
		st.Counts = api.Counts{Since: time.Now(), LogLost: 3}
		switch f.mode {
		case "version":
			st.Protocol = 99
		case "never":
			st.State = "starting"
		case "full", "filling":
			st.LogBytes = st.LogLimit / 8 * 7
		}
	})
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	select {
	case <-exited:
		f.killKernel(cmd.Process.Pid)
		f.end("it died in a test", false)
		devices.Return(f.held)
		f.change(func(st *api.Status) { st.KernelPID, st.State, st.Reason = 0, "dead", "it died in a test" })
		select {
		case <-f.over:
		case <-time.After(f.cfg.DeadLinger):
		}
	case <-f.over:
		f.killKernel(cmd.Process.Pid)
		<-exited
		devices.Return(f.held) // after the kernel has ended, as the real supervisor
	}
	close(f.ended)
}

// killKernel kills the kernel's processes and waits until they have ended.
func (f *fakeSupervisor) killKernel(pid int) {
	if _, err := proctree.KillRemains(f.cfg.KernelID, pid); err != nil {
		panic(err)
	}
}

func (f *fakeSupervisor) end(reason string, stopped bool) {
	b, _ := json.Marshal(api.Ending{KernelID: f.cfg.KernelID, Reason: reason, At: time.Now().UTC(), Stopped: stopped})
	if err := os.WriteFile(f.cfg.EndFile, b, 0o600); err != nil {
		panic(err)
	}
}

func (f *fakeSupervisor) change(c func(*api.Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c(&f.status)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeSupervisor) stream(w http.ResponseWriter, r *http.Request) {
	_ = api.StreamStatus(w, r, func() (api.Status, <-chan struct{}) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.status, f.changed
	}, f.over)
}

func (f *fakeSupervisor) delete(w http.ResponseWriter, r *http.Request) {
	if f.mode == "deaf" {
		<-r.Context().Done()
		return
	}
	var body struct{ Reason string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		panic(err)
	}
	f.mu.Lock()
	if !f.stopped {
		f.stopped = true
		f.end(body.Reason, true)
		close(f.over)
	}
	f.mu.Unlock()
	<-f.ended
	w.WriteHeader(http.StatusNoContent)
}

func (f *fakeSupervisor) limits(w http.ResponseWriter, r *http.Request) {
	var body struct {
		LogLimit int64 `json:"log_limit"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		panic(err)
	}
	count, err := os.OpenFile(filepath.Join(filepath.Dir(f.cfg.LockFile), limitsFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o600)
	if err != nil {
		panic(err)
	}
	if _, err := count.Write([]byte{'.'}); err != nil {
		panic(err)
	}
	_ = count.Close()
	f.change(func(st *api.Status) {
		st.LogLimit, st.LogBytes = body.LogLimit, min(st.LogBytes, body.LogLimit)
		if f.mode == "filling" {
			st.LogBytes = st.LogLimit / 8 * 7
		}
	})
	w.WriteHeader(http.StatusNoContent)
}

// gatewayMain is a gateway that starts one kernel, prints that, and waits to be killed.
func gatewayMain(state, runtime, id string) int {
	l, err := Open(context.Background(), Options{StateDir: state, RuntimeDir: runtime, Supervisor: os.Args[0]})
	if err == nil {
		_, _, err = l.Start(context.Background(), launcher.Request{ID: id, Owner: "ann", Spec: fakeSpec("fine")})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("running")
	<-make(chan struct{})
	return 0
}
