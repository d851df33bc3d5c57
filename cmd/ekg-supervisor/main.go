// Command ekg-supervisor runs one Jupyter kernel and is a Jupyter gateway for exactly that kernel. Launchers start it;
// people do not have to, but can, and any Jupyter client can speak to it.
//
//	ekg-supervisor --config FILE [--ready-fd N]
//
// FILE is a supervisor.Config in JSON. Once it listens it writes "ok" and a newline to the descriptor N and closes it;
// if it cannot start it writes one sentence instead and exits with 1. It logs to standard error as JSON lines, ends when
// its kernel is gone for good, and stops its kernel on SIGTERM and SIGINT.
//
//	ekg-supervisor pod
//
// is the same in a pod, in a container beside the kernel's. The configuration is the variable EKG_SUPERVISOR_CONFIG. Before
// anything else it puts a copy of its program where the configuration says, for the kernel's container to run. It exits with
// 0 when the kernel has ended for good, and with 1 when it cannot start, and says why in /dev/termination-log.
//
//	ekg-supervisor installed
//
// is for the postStart hook of that container: it waits until the copy is there, for ten seconds at most, and exits with 0.
//
//	ekg-supervisor child [--socket PATH] [--home DIR] [-- ARGV...]
//
// is the first process of the kernel's container. It runs the kernel at the word of the supervisor behind the socket
// (/ekg/run/child.sock), reaps orphans, and copies what the kernel writes to its own output. HOME, TMPDIR and IPYTHONDIR fall
// back to folders in DIR (/ekg-home) where they cannot be written to. ARGV, with {connection_file}, is the kernel's command
// where the supervisor names none; with neither it is that of a kernelspec of the image. It exits with 0 when the supervisor
// has ended for good. SIGTERM goes to all containers of a pod at once: the child waits for the supervisor's word, and exits
// with 1 if that has not come 3 seconds before the end of the pod's grace.
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
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// version is set by the linker.
var version = "dev"

func main() { os.Exit(run()) }

func run() int {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "pod":
			return pod(logger)
		case "installed":
			return installed()
		case "child":
			return child(os.Args[2:])
		}
	}
	config := flag.String("config", "", "file with the kernel's configuration")
	readyFD := flag.Int("ready-fd", -1, "descriptor to tell on that the supervisor listens")
	showVersion := flag.Bool("version", false, "print the version")
	flag.Parse()
	if *showVersion {
		fmt.Println("ekg-supervisor", version)
		return 0
	}
	ready := io.WriteCloser(os.Stderr)
	if *readyFD >= 0 {
		ready = os.NewFile(uintptr(*readyFD), "ready")
	}
	if err := serve(*config, ready, logger); err != nil {
		logger.Error("supervisor ended", "err", err)
		return 1
	}
	return 0
}

// serve runs one kernel to its end. What keeps it from starting is told on ready.
func serve(config string, ready io.WriteCloser, logger *slog.Logger) error {
	run, err := prepare(config, logger)
	answer := "ok"
	if err != nil {
		answer = err.Error()
	}
	if _, werr := fmt.Fprintln(ready, answer); werr != nil {
		logger.Warn("whoever started this supervisor has gone", "err", werr)
	}
	if ready != io.WriteCloser(os.Stderr) {
		if cerr := ready.Close(); cerr != nil {
			logger.Warn("ready descriptor cannot be closed", "err", cerr)
		}
	}
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return run(ctx)
}

// prepare does all that can fail before the kernel is started.
func prepare(config string, logger *slog.Logger) (run func(context.Context) error, err error) {
	cfg, err := supervisor.ReadConfig(config)
	if err != nil {
		return nil, err
	}
	return prepareConfig(cfg, logger)
}

// prepareConfig is prepare with the configuration.
func prepareConfig(cfg supervisor.Config, logger *slog.Logger) (run func(context.Context) error, err error) {
	unlock := func() {}
	if cfg.LockFile != "" {
		lock, err := supervisor.Lock(cfg.LockFile)
		if err != nil {
			return nil, err
		}
		unlock = func() { lock.Close() } //nolint:errcheck // nothing was written
	}
	l, err := supervisor.Listen(&cfg)
	if err != nil {
		unlock()
		return nil, err
	}
	return func(ctx context.Context) error {
		defer unlock() // the lock ends with the kernel
		return supervisor.Serve(ctx, supervisor.New(cfg, version, logger), l)
	}, nil
}
