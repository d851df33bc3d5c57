package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
)

const (
	installLimit = 10 * time.Second      // for the copy of the program to exist
	installLook  = 10 * time.Millisecond // between two checks
)

// pod runs the supervisor in a pod.
func pod(logger *slog.Logger) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, err := api.ParseConfig([]byte(os.Getenv(api.PodConfigVariable)))
	if err != nil {
		return refuse(logger, api.PodTerminationLog, cfg.KernelID, err)
	}
	for _, p := range []struct{ from, to string }{{besideSelf("ekg-gpu"), cfg.GPUProgram}, {selfProgram, cfg.Program}} {
		if p.to == "" {
			continue
		}
		err := install(p.from, p.to)
		if errors.Is(err, fs.ErrNotExist) && p.to == cfg.GPUProgram && cfg.Cull.GPU == 0 &&
			!cfg.GPUSamples.Park.Shared {
			logger.Warn("GPUs are not sampled: the image has no ekg-gpu", logkey.Err, err)
			cfg.GPUProgram, cfg.GPUSamples = "", api.GPUSamples{}
			continue
		}
		if err != nil {
			return refuse(logger, cfg.TerminationFile, cfg.KernelID, err)
		}
	}
	run, err := prepareConfig(cfg, "", nil, logger)
	if err != nil {
		return refuse(logger, cfg.TerminationFile, cfg.KernelID, err)
	}
	if err := run(ctx); err != nil {
		logger.Error("supervisor ended", logkey.Err, err)
		return 1
	}
	return 0
}

// refuse writes why the supervisor does not start to the file that the cluster shows, and returns the exit code.
func refuse(logger *slog.Logger, file, kernelID string, err error) int {
	logger.Error("supervisor cannot start", logkey.Err, err)
	if _, serr := os.Stat(file); serr == nil {
		e := api.Ending{KernelID: kernelID, Reason: "its supervisor could not start: " + err.Error(), At: time.Now().UTC()}
		if werr := api.WriteTermination(file, e); werr != nil {
			logger.Warn("termination message cannot be written", logkey.Err, werr)
		}
	}
	return 1
}

// selfProgram is the path of this program, even if its file was replaced.
const selfProgram = "/proc/self/exe"

// besideSelf returns the path of a program that is shipped with this one.
func besideSelf(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name // opening it fails with a reason
	}
	return filepath.Join(filepath.Dir(self), name)
}

// install copies a program to path, whole or not at all, because the old one may be running.
func install(program, path string) error {
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // it was only read
	dir := filepath.Dir(path)
	if err := os.Mkdir(dir, 0o755); err == nil {
		err = os.Chmod(dir, 0o755) // another user reads it; the umask may have removed bits
		if err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrExist) {
		return err
	}
	return files.Replace(path, func(to *os.File) error {
		_, err := io.Copy(to, from)
		return errors.Join(err, to.Chmod(0o755))
	})
}

// installSelf copies this program to a path, for other containers of a pod.
func installSelf(args []string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: ekg-supervisor install PATH")
		return 2
	}
	if err := install(selfProgram, args[0]); err != nil {
		fmt.Fprintln(os.Stderr, "ekg-supervisor:", err)
		return 1
	}
	return 0
}

// wait waits for the signal that ends a container.
func wait() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-ctx.Done()
	return 0
}

// installGPU copies programs to a folder, for a container whose image has a libc.
func installGPU(args []string, programs ...string) int {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: ekg-supervisor install-gpu DIR")
		return 2
	}
	for _, program := range programs {
		if err := install(program, filepath.Join(args[0], filepath.Base(program))); err != nil {
			fmt.Fprintln(os.Stderr, "ekg-supervisor:", err)
			return 1
		}
	}
	return 0
}

// installed waits until the program's copy exists. It never fails: it only saves time, because the cluster restarts the
// kernel's container if the program is missing.
func installed() int {
	cfg, err := api.ParseConfig([]byte(os.Getenv(api.PodConfigVariable)))
	if err != nil || cfg.Program == "" {
		return 0 // the supervisor reports the error
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

// runChild runs kernels in their own container.
func runChild(args []string) int {
	flags := flag.NewFlagSet("child", flag.ContinueOnError)
	socket := flags.String("socket", api.PodChildSocket, "unix socket of the supervisor")
	home := flags.String("home", api.PodHomeDir, "folder that replaces folders that cannot be written to")
	if flags.Parse(args) != nil {
		return 2
	}
	// The container's log is for the kernel's output; the supervisor logs what happens.
	logger := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if _, err := os.Stat(*home); err != nil {
		*home = ""
	}
	return child.Run(ctx, child.Options{Socket: *socket, Home: *home, Argv: flags.Args(),
		Stdout: os.Stdout, Stderr: os.Stderr, Log: logger.With(logkey.Component, "child")})
}
