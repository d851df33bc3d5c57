package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

const (
	configVariable  = "EKG_SUPERVISOR_CONFIG"
	terminationFile = "/dev/termination-log" // of a container, by default
	childSocket     = "/ekg/run/child.sock"
	childHome       = "/ekg-home"

	installLimit = 10 * time.Second      // for the copy of the program to be there
	installLook  = 10 * time.Millisecond // between two looks
)

// pod runs the supervisor in a pod.
func pod(logger *slog.Logger) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, err := supervisor.ParseConfig([]byte(os.Getenv(configVariable)))
	if err != nil {
		return refuse(logger, terminationFile, cfg.KernelID, err)
	}
	told := cfg.TerminationFile
	for _, p := range []struct{ from, to string }{{besideSelf("ekg-gpu"), cfg.GPUProgram}, {selfProgram, cfg.Program}} {
		if p.to == "" {
			continue
		}
		if err := install(p.from, p.to); err != nil {
			return refuse(logger, told, cfg.KernelID, err)
		}
	}
	run, err := prepareConfig(cfg, logger)
	if err != nil {
		return refuse(logger, told, cfg.KernelID, err)
	}
	if err := run(ctx); err != nil {
		logger.Error("supervisor ended", "err", err)
		return 1
	}
	return 0
}

// refuse says why the supervisor does not start, where the cluster shows it.
func refuse(logger *slog.Logger, file, kernelID string, err error) int {
	logger.Error("supervisor cannot start", "err", err)
	if _, serr := os.Stat(file); serr == nil {
		e := supervisor.Ending{KernelID: kernelID, Reason: "its supervisor could not start: " + err.Error(), At: time.Now().UTC()}
		if werr := supervisor.WriteTermination(file, e); werr != nil {
			logger.Warn("termination message cannot be written", "err", werr)
		}
	}
	return 1
}

// selfProgram is this program, wherever it lies.
const selfProgram = "/proc/self/exe"

// besideSelf is where a program lies that is shipped with this one.
func besideSelf(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name // opening it says what is wrong
	}
	return filepath.Join(filepath.Dir(self), name)
}

// install puts a copy of a program at path, whole or not at all: the one that is there may be running.
func install(program, path string) (err error) {
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer from.Close()
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o755); err == nil {
		err = os.Chmod(dir, 0o755) // another user looks into it, whatever the umask
		if err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	copied, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(copied.Name()) //nolint:errcheck // the first error is the one that matters
		}
	}()
	_, err = io.Copy(copied, from)
	err = errors.Join(err, copied.Chmod(0o755), copied.Close())
	if err != nil {
		return err
	}
	return os.Rename(copied.Name(), path)
}

// installed waits until the program's copy is there. It never fails: what it would be good for is speed, and the kernel's
// container is started again if the program is missing.
func installed() int {
	cfg, err := supervisor.ParseConfig([]byte(os.Getenv(configVariable)))
	if err != nil || cfg.Program == "" {
		return 0 // the supervisor says why
	}
	look := time.NewTicker(installLook)
	defer look.Stop()
	for limit := time.After(installLimit); ; {
		if _, err := os.Stat(cfg.Program); err == nil {
			return 0
		}
		select {
		case <-look.C:
		case <-limit:
			return 0
		}
	}
}

// child runs kernels in their own container.
func child(args []string) int {
	flags := flag.NewFlagSet("child", flag.ContinueOnError)
	socket := flags.String("socket", childSocket, "unix socket of the supervisor")
	home := flags.String("home", childHome, "folder that stands for those that cannot be written to")
	if flags.Parse(args) != nil {
		return 2
	}
	// The container's log is the kernel's; the supervisor's tells what happens.
	logger := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if _, err := os.Stat(*home); err != nil {
		*home = ""
	}
	return supervisor.RunChild(ctx, supervisor.ChildOptions{Socket: *socket, Home: *home, Argv: flags.Args(),
		Stdout: os.Stdout, Stderr: os.Stderr, Log: logger.With("component", "child")})
}
