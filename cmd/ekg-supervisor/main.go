// Command ekg-supervisor runs one Jupyter kernel and is a Jupyter gateway for exactly that kernel. Launchers start it.
// A person can start it too, and any Jupyter client can speak to it.
//
//	ekg-supervisor --config FILE [--ready-fd N] [--lock-fd M] [--held-fds K+COUNT]
//
// FILE is an api.Config in JSON. When the supervisor listens, it writes "ok" and a newline to descriptor N and closes
// it. If it cannot start, it writes one sentence instead and exits with 1. It logs to standard error as JSON lines. It
// ends when its kernel is gone for good, and stops its kernel on SIGTERM, SIGINT and SIGHUP. Orphans of the kernel
// become its children, and it reaps them. Descriptor M is the kernel's lock, if another program has taken it. COUNT
// descriptors from K on are locks of the kernel's GPUs, which the kernel inherits. They are released when it has ended
// for good. If standard error is the file supervisor.log beside FILE, the file is bounded: at 1 MiB its content moves
// to supervisor.log.1.
//
//	ekg-supervisor parent --config FILE [--ready-fd N] [--held-fds K+COUNT]
//
// does the same with two processes: a small parent that runs the kernel, and a supervisor, which is started again if it
// dies. The new supervisor adopts the kernel, which keeps its variables. FILE has same_machine and child_socket. The
// parent stops supervisor and kernel on SIGTERM and SIGINT. On SIGHUP it reads upgrade.json beside FILE and replaces
// the supervisor by the program that the file names; without that file it ignores SIGHUP. A supervisor below a parent
// ignores SIGHUP. SIGUSR1 and SIGUSR2 are the parent's request to the supervisor to leave.
//
//	ekg-supervisor pod
//
// does the same in a pod, in a container beside the kernel's. The variable EKG_SUPERVISOR_CONFIG has the configuration.
// First it copies its program to the path in the configuration, for the kernel's container to run. It exits with 0 when
// the kernel has ended for good. If it cannot start, it writes the reason to /dev/termination-log and exits with 1.
//
//	ekg-supervisor installed
//
// is for the postStart hook of that container: it waits until the copy exists, for ten seconds at most, and exits with
// 0.
//
//	ekg-supervisor install PATH
//
// copies this program to PATH, for other containers of the pod.
//
//	ekg-supervisor wait
//
// does nothing until SIGTERM or SIGINT, and exits with 0.
//
//	ekg-supervisor install-gpu DIR
//
// copies ekg-gpu and ekg-gpu-agent, which are shipped beside this program, for a container whose image has a libc.
//
//	ekg-supervisor child [--socket PATH] [--home DIR] [-- ARGV...]
//
// is the first process of the kernel's container. It starts the kernel when the supervisor asks for it through the
// socket (/ekg/run/child.sock). It reaps orphans, and copies the kernel's output to its own. If HOME, TMPDIR or
// IPYTHONDIR cannot be written to, folders in DIR (/ekg-home) replace them. If the supervisor names no command, ARGV,
// with {connection_file}, is the kernel's command; without ARGV the command comes from a kernelspec of the image. The
// child exits with 0 when the supervisor has ended for good. SIGTERM goes to all containers of a pod at once: the child
// waits for the supervisor, and exits with 1 if the supervisor has not told it to end 3 seconds before the end of the
// pod's grace.
//
//	ekg-supervisor --version
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/cmd/buildinfo"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/listener"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parent"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	limitProcessors()
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "pod":
			return pod(logger)
		case "installed":
			return installed()
		case "install":
			return installSelf(os.Args[2:])
		case "wait":
			return wait()
		case "install-gpu":
			return installGPU(os.Args[2:], besideSelf("ekg-gpu"), besideSelf("ekg-gpu-agent"))
		case "parent":
			return runParent(os.Args[2:], logger)
		case "child":
			return runChild(os.Args[2:])
		}
	}
	config := flag.String("config", "", "file with the kernel's configuration")
	readyFD := flag.Int("ready-fd", -1, "descriptor that gets \"ok\" when the supervisor listens")
	lockFD := flag.Int("lock-fd", -1, "descriptor of the kernel's lock, which another program has taken")
	var held heldFiles
	flag.Var(&held, "held-fds", heldUsage)
	showVersion := flag.Bool("version", false, "print version and commit")
	flag.Parse()
	if *showVersion {
		fmt.Println(buildinfo.Line("ekg-supervisor", version))
		return 0
	}
	logger = slog.New(slog.NewJSONHandler(logOutput(os.Stderr, *config), nil))
	if *lockFD >= 0 {
		syscall.CloseOnExec(*lockFD) // the lock ends with this process
	}
	if err := serve(*config, *lockFD >= 0, held, readyFile(*readyFD), logger); err != nil {
		logger.Error("supervisor ended", logkey.Err, err)
		return 1
	}
	return 0
}

// limitProcessors makes this program use few processors at once, unless the environment says how many. Launchers say it
// in the environment, but not to the child in a kernel's container: the kernel may be a Go program, and inherits that.
func limitProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(api.DefaultProcessors)
	}
}

// readyFile returns the file that gets the answer of the start: descriptor fd, or standard error if fd is negative.
func readyFile(fd int) io.WriteCloser {
	if fd < 0 {
		return keptOpen{os.Stderr}
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "ready")
}

// keptOpen is a writer whose Close does nothing.
type keptOpen struct{ io.Writer }

// Close does nothing.
func (keptOpen) Close() error { return nil }

// serve runs one kernel to its end. It writes "ok" to ready, or why it cannot start. With locked, another program holds
// the kernel's lock.
func serve(config string, locked bool, held heldFiles, ready io.WriteCloser, logger *slog.Logger) error {
	run, err := prepare(config, locked, held, logger)
	answer := "ok"
	if err != nil {
		answer = err.Error()
	}
	if _, werr := fmt.Fprintln(ready, answer); werr != nil {
		logger.Warn("the program that started this supervisor is gone", logkey.Err, werr)
	}
	if cerr := ready.Close(); cerr != nil {
		logger.Warn("ready descriptor cannot be closed", logkey.Err, cerr)
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return run(ctx)
}

// prepare does everything that can fail before the kernel is started. The returned function runs the kernel.
func prepare(config string, locked bool, held heldFiles, logger *slog.Logger) (
	run func(context.Context) error, err error) {
	cfg, err := api.ReadConfig(config)
	if err != nil {
		return nil, err
	}
	if locked {
		cfg.LockFile = ""
	}
	return prepareConfig(cfg, config, held, logger)
}

// prepareConfig prepares a configuration that was read already. file is its path, or "" if it came from elsewhere.
func prepareConfig(cfg api.Config, file string, held heldFiles, logger *slog.Logger) (
	run func(context.Context) error, err error) {
	unlock := func() {}
	if cfg.LockFile != "" {
		lock, err := parent.Lock(cfg.LockFile)
		if err != nil {
			return nil, err
		}
		unlock = func() { lock.Close() } //nolint:errcheck // nothing was written
	}
	l, err := listener.Open(&cfg)
	if err != nil {
		unlock()
		return nil, err
	}
	s := supervisor.New(cfg, version, logger)
	s.SetHeld(held)
	if at := devices.NewSeat(cfg.KernelID, held); at != nil {
		s.SetSeat(seat{at})
	}
	if err := s.ShareGPU(); err != nil {
		l.Close() //nolint:errcheck // nothing was sent
		unlock()
		return nil, err
	}
	if cfg.SameMachine { // the answer of the start tells the parent to dial
		if err := s.ListenForChild(); err != nil {
			l.Close() //nolint:errcheck // nothing was sent
			unlock()
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		defer unlock() // the lock ends with the kernel
		if cfg.SameMachine {
			defer leaveOnSignal(s, file, logger)()
		} else { // no parent uses SIGHUP for requests
			var stop func()
			ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
			defer stop()
		}
		if cfg.ChildSocket == "" { // else the child reaps
			stop := reapOrphans(s, logger)
			defer stop()
		}
		return supervisor.Serve(ctx, s, l)
	}, nil
}

// reapOrphans reaps what the kernel leaves running, in a goroutine that the returned function ends. Not every
// container's first process does that.
func reapOrphans(s *supervisor.Supervisor, logger *slog.Logger) (stop func()) {
	if err := proctree.AdoptOrphans(); err != nil {
		logger.Warn("orphans are not reaped", logkey.Err, err)
		return func() {}
	}
	reaper := proctree.NewReaper()
	s.SetReaper(reaper)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { reaper.Run(ctx) })
	return func() { cancel(); running.Wait() }
}
