package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parent"
)

// runParent runs a kernel and its supervisor, as its children.
func runParent(args []string, logger *slog.Logger) int {
	flags := flag.NewFlagSet("parent", flag.ContinueOnError)
	config := flags.String("config", "", "file with the kernel's configuration")
	readyFD := flags.Int("ready-fd", -1, "descriptor that gets \"ok\" when the supervisor listens")
	var held heldFiles
	flags.Var(&held, "held-fds", heldUsage)
	if flags.Parse(args) != nil {
		return 2
	}
	ready := readyFile(*readyFD)
	cfg, err := api.ReadConfig(*config)
	if err == nil && !cfg.SameMachine {
		err = fmt.Errorf("%s: same_machine is missing", *config)
	}
	var lock *os.File
	var program *parent.Program
	if err == nil {
		program, err = parent.OpenProgram(selfProgram, os.Args[0])
	}
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
	upgrades := make(chan os.Signal, 1)
	signal.Notify(upgrades, syscall.SIGHUP)
	defer signal.Stop(upgrades)
	return parent.Run(ctx, parent.Options{Config: cfg, ConfigFile: *config, Program: program, Upgrades: upgrades,
		Ready: ready, Lock: lock, Held: held, Log: logger.With(logkey.Component, "parent")})
}

// leaveOnSignal ends this program when its parent asks for that, and the supervisor can leave its kernel to another.
// Else the reason is noted beside the file config. SIGHUP, which is for the parent, is ignored. The returned function
// ends the wait.
func leaveOnSignal(s *supervisor.Supervisor, config string, logger *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1) // no goroutine reads it; signal.Ignore would hold for programs that are started
	signal.Notify(hangups, syscall.SIGHUP)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, parent.LeaveIfComplete, parent.LeaveAnyway)
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	waiting.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case sig := <-asked:
				id := parent.RequestID(config)
				err := s.Leave(ctx, sig == parent.LeaveAnyway)
				if err == nil {
					os.Exit(parent.LeaveCode)
				}
				if err := parent.Refuse(config, id, err); err != nil {
					logger.Error("the reason of a refused upgrade cannot be noted", logkey.Err, err)
				}
			}
		}
	})
	return func() { signal.Stop(asked); signal.Stop(hangups); cancel(); waiting.Wait() }
}
