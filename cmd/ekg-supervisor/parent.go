package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parent"
)

// runParent runs a kernel and its supervisor, as its children.
func runParent(args []string, logger *slog.Logger) int {
	flags := flag.NewFlagSet("parent", flag.ContinueOnError)
	config := flags.String("config", "", "file with the kernel's configuration")
	readyFD := flags.Int("ready-fd", -1, "descriptor that gets \"ok\" when the supervisor listens")
	if flags.Parse(args) != nil {
		return 2
	}
	runtime.GOMAXPROCS(1) // it only waits, and each processor costs memory
	ready := readyFile(*readyFD)
	cfg, err := api.ReadConfig(*config)
	if err == nil && !cfg.SameMachine {
		err = fmt.Errorf("%s: same_machine is missing", *config)
	}
	var lock *os.File
	if err == nil && cfg.LockFile != "" {
		lock, err = parent.Lock(cfg.LockFile)
	}
	if err != nil {
		logger.Error("supervisor cannot start", logkey.Err, err)
		_, _ = fmt.Fprintln(ready, err) // the log has it too
		return 1
	}
	if lock != nil {
		defer lock.Close() //nolint:errcheck // nothing was written
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return parent.Run(ctx, parent.Options{Config: cfg, ConfigFile: *config, Program: ownProgram(), Name: os.Args[0],
		Ready: ready, Lock: lock, Log: logger.With(logkey.Component, "parent")})
}

// ownProgram returns the path of this program. If its file was replaced, the path leads to the replaced file.
func ownProgram() string {
	running, err := os.Stat(selfProgram)
	if err != nil {
		return selfProgram
	}
	if named, err := os.Stat(os.Args[0]); err == nil && os.SameFile(running, named) {
		return os.Args[0] // the process table shows a readable name then
	}
	return selfProgram
}
