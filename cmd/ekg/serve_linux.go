package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// Bounds of the shutdown. A step that takes longer is abandoned and reported.
const (
	finishRequests = 10 * time.Second // for REST requests in progress
	drainSockets   = 15 * time.Second // for websockets, which package gateway closes over 10 s
	drainDelay     = 5 * time.Second  // in a cluster, until its Services and load balancers notice
	stopAtOnce     = 32               // number of kernels that are stopped at the same time
)

// discard is a logger without output.
var discard = slog.New(slog.DiscardHandler)

// launcherOpener opens the launcher of the settings.
type launcherOpener func(
	context.Context, *settings.Settings, launcher.Limits, *slog.Logger, launcher.Observer,
) (launcher.Launcher, error)

// server is `ekg serve`. It starts all parts in the order of their dependencies.
type server struct {
	// Fixed before Run.
	settings     *settings.Settings
	stdout       io.Writer
	log          *slog.Logger
	openLauncher launcherOpener
	ready        func(url string) // called once requests are answered; may be nil
	measured     func(url string) // called with the address of --metrics-listen; may be nil
	drain        time.Duration    // for which it still serves after the end of ctx, while /readyz fails

	// Owned by Run.
	steps  []step
	reaper *proctree.Reaper // nil: this is not a container's first process
	warm   func() []launcher.Warm

	file atomic.Pointer[client.GatewayFile] // as register has written it; nil before
}

// step undoes the start of a part.
type step struct {
	name string
	undo func(context.Context) error
}

func newServer(s *settings.Settings, stdout io.Writer, log *slog.Logger) *server {
	v := &server{settings: s, stdout: stdout, log: log}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" { // this is a pod
		v.drain = drainDelay
	}
	v.openLauncher = func(ctx context.Context, s *settings.Settings, limits launcher.Limits, log *slog.Logger,
		watch launcher.Observer) (launcher.Launcher, error) {
		return openLauncher(ctx, s, limits, log, watch, v.reaper, v.warm)
	}
	return v
}

func newLogger(w io.Writer, s *settings.Settings) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.LogLevel}
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// onStop registers the undoing of a part's start. Steps run in reverse order.
func (v *server) onStop(name string, undo func(context.Context) error) {
	v.steps = append(v.steps, step{name, undo})
}

// Run serves until ctx ends, and then stops all that it has started. The end of ctx is not an error.
func (v *server) Run(ctx context.Context) error {
	err := v.serve(ctx)
	if ctx.Err() != nil {
		fate := "go on"
		if v.settings.StopKernels {
			fate = "are stopped"
		}
		v.log.Info("ending", logkey.Kernels, fate)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	// The steps must run after the end of ctx. Each has its own time limit.
	end := context.WithoutCancel(ctx)
	for _, s := range slices.Backward(v.steps) {
		if uerr := s.undo(end); uerr != nil {
			err = errors.Join(err, fmt.Errorf("ending %s: %w", s.name, uerr))
		}
	}
	return err
}

// serve starts all parts and returns when ctx ends or a listener fails.
func (v *server) serve(ctx context.Context) error {
	v.logWarnings(ctx)
	v.reapOrphans(os.Getpid())
	// The listener comes first, since a port in use is the most likely failure.
	listener, err := listen(ctx, v.settings)
	if err != nil {
		return err
	}
	v.onStop("listener", func(context.Context) error { return ignoreClosed(listener.Close()) })
	auditLog, err := v.openAudit()
	if err != nil {
		return err
	}
	// Metrics come before all slow steps, so that they show these.
	counters := metrics.New(version)
	metricsFailed, err := v.serveMetrics(ctx, counters)
	if err != nil {
		return err
	}
	b, err := v.openBackend(ctx, counters)
	if err != nil {
		return err
	}
	// The launcher has checked that the state directory belongs to this user.
	token, generated, err := readToken(v.settings)
	if err != nil {
		return err
	}
	o := v.settings.GatewayOptions()
	o.Version, o.Token, o.Log, o.Metrics, o.Audit = version, token, v.log, counters, auditLog
	gw, err := v.newGateway(o, b)
	if err != nil {
		return err
	}
	v.inBackground(ctx, "users", gw.Watch)
	v.inBackground(ctx, "disks", func(ctx context.Context) { v.measureDisks(ctx, counters) })
	v.endKernelsAndWebsockets(gw, b.launcher)
	// Jobs are given back before kernels may be stopped, and after the listener.
	v.inBackground(ctx, "jobs", gw.RunJobs)
	failed := v.serveHTTP(listener, gw.Handler(), gw.EndLogs)
	// Commands of this user find the gateway once /readyz says that it is ready.
	if err := v.register(listener.Addr(), token); err != nil {
		return err
	}
	v.setReady(gw)
	if err := v.announce(listener.Addr(), token, generated); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case err := <-metricsFailed:
		return fmt.Errorf("serving metrics: %w", err)
	}
}

// reapOrphans takes the exit status of all orphans if the gateway is a container's first process, whose children they
// become. It works in a goroutine that the registered step waits for.
func (v *server) reapOrphans(pid int) {
	if pid != 1 {
		return
	}
	v.reaper = proctree.NewReaper()
	v.inBackground(context.Background(), "reaper", v.reaper.Run)
}

// backend holds what a gateway needs to start and reach kernels.
type backend struct {
	specs     *kernelspecs.Finder
	flavors   *flavor.File   // nil without --flavors
	usersFile *identity.File // nil without --users-file
	limits    *limits.Policy
	launcher  launcher.Launcher
}

// openBackend opens the kernelspecs, the users file and the launcher, in this order.
func (v *server) openBackend(ctx context.Context, counters *metrics.Metrics) (b backend, err error) {
	if b.specs, err = openSpecs(ctx, v.settings, checkOfSpecs(v.settings), v.log); err != nil {
		return b, err
	}
	v.onStop("kernelspecs", func(context.Context) error { return b.specs.Close() })
	if b.usersFile, err = openUsersFile(v.settings); err != nil {
		return b, err
	}
	if b.flavors, err = openFlavors(v.settings, v.log); err != nil {
		return b, err
	}
	v.warm = (&wanted{specs: b.specs, flavors: b.flavors}).warmKernels
	limits := v.settings.Limits
	limits.Specs, limits.File = b.specs, b.usersFile
	b.limits = &limits
	if b.launcher, err = v.openLauncher(ctx, v.settings, b.limits, v.log, counters); err != nil {
		return b, err
	}
	v.onStop("launcher", func(context.Context) error { return b.launcher.Close() })
	return b, nil
}

// openFlavors opens the file of flavors of the settings. It returns nil if they name none.
func openFlavors(s *settings.Settings, log *slog.Logger) (*flavor.File, error) {
	if s.Flavors == "" {
		return nil, nil
	}
	file, err := flavor.Open(s.Flavors, log)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("flavors"), err)
	}
	return file, nil
}

// newGateway creates the gateway with these options, the kernels of b and the users of the settings.
func (v *server) newGateway(o gateway.Options, b backend) (*gateway.Gateway, error) {
	o.Launcher, o.Specs, o.Limits = b.launcher, b.specs, b.limits
	if v.settings.Launcher == "local" {
		o.Gateways = localGateways{v.settings.Local.StateDir, &v.file}
	}
	if b.flavors != nil { // a nil *File in the interface would not be nil
		o.Flavors = b.flavors
	}
	users, err := openUsers(v.settings, b.usersFile, v.log)
	if err != nil {
		return nil, err
	}
	if users != nil { // a nil *Verifier in the interface would not be nil
		o.Users = users
	}
	gw, err := gateway.New(o)
	return gw, v.settings.WithPlace(err)
}

// endKernelsAndWebsockets registers the steps that stop the kernels, with --stop-kernels-on-exit, and close the
// websockets. Kernels are stopped after the listener, so that no new ones are created. They are stopped before the
// websockets, so that clients see it.
func (v *server) endKernelsAndWebsockets(gw *gateway.Gateway, kernels launcher.Launcher) {
	v.onStop("websockets", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, drainSockets)
		defer cancel()
		gw.Drain(ctx)
		return nil
	})
	if v.settings.StopKernels {
		v.onStop("kernels", func(ctx context.Context) error { return v.stopAll(ctx, kernels) })
	}
}

// setReady lets /readyz succeed. The registered step lets it fail and waits for drain.
func (v *server) setReady(gw *gateway.Gateway) {
	v.onStop("readiness", func(ctx context.Context) error {
		gw.SetReady(false)
		return goroutines.Sleep(ctx, v.drain)
	})
	gw.SetReady(true)
}

// inBackground runs a part of the gateway in a goroutine. The registered step ends it and waits for it.
func (v *server) inBackground(ctx context.Context, name string, run func(context.Context)) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	v.onStop(name, func(context.Context) error {
		stop()
		running.Wait()
		return nil
	})
}

// serveHTTP answers requests in a goroutine that the registered step waits for. Function endLogs ends answers that
// follow a log. An error that ends serving early is sent on the channel.
func (v *server) serveHTTP(listener net.Listener, handler http.Handler, endLogs func()) <-chan error {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // a websocket takes over its connection, which HTTP/2 does not support
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: gateway.ReadHeaderTimeout,
		IdleTimeout:       gateway.IdleTimeout,
		MaxHeaderBytes:    gateway.MaxHeaderBytes,
		Protocols:         &protocols,
		ErrorLog:          slog.NewLogLogger(v.log.With(logkey.Component, "http").Handler(), slog.LevelWarn),
	}
	srv.RegisterOnShutdown(endLogs)
	return v.answer("requests", srv, listener, finishRequests,
		fmt.Errorf("some requests were unanswered after %v", finishRequests))
}

// answer answers requests in a goroutine that the registered step waits for. The step gives open requests some time,
// and returns late if that was not enough. An error that ends serving early is sent on the channel.
func (v *server) answer(
	name string, srv *http.Server, listener net.Listener, patience time.Duration, late error,
) <-chan error {
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	v.onStop(name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.Join(late, srv.Close())
		}
		<-done
		return ignoreClosed(err)
	})
	return failed
}

// register writes the gateway's file for other commands of this user.
func (v *server) register(addr net.Addr, token string) error {
	s := v.settings
	sum, err := certificateSum(s.TLSCert)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Place("tls-cert"), err)
	}
	file := client.GatewayFile{
		URL: gatewayAddress(s, addr), Token: token, PID: os.Getpid(), Started: time.Now().UTC(), Certificate: sum,
	}
	remove, err := client.WriteGatewayFile(s.Local.StateDir, file, func(err error) {
		v.log.Warn("files of other gateways cannot be read; ekg log will not find those", logkey.Err, err)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Place("state-dir"), err)
	}
	v.file.Store(&file)
	v.onStop("file of this gateway", func(context.Context) error { return remove() })
	return nil
}

// announce prints the gateway's URL for people. It shows only a generated token. A token that an operator has set is
// already known, and the output may be stored.
func (v *server) announce(addr net.Addr, token string, generated bool) error {
	base := gatewayAddress(v.settings, addr)
	url := base
	switch {
	case generated:
		url += "?token=" + token
	case token != "":
		url += "?token=..."
	}
	v.log.Info("ready", logkey.URL, base, logkey.Version, version, logkey.PID, os.Getpid(),
		logkey.StateDir, v.settings.Local.StateDir)
	if _, err := fmt.Fprintf(v.stdout, "ekg is ready at %s\n", url); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	if v.ready != nil {
		v.ready(url)
	}
	return nil
}

// stopAll stops all kernels, several at a time.
func (v *server) stopAll(ctx context.Context, kernels launcher.Launcher) error {
	// Each kernel may take the grace period twice, and all of them share the machine.
	ctx, cancel := context.WithTimeout(ctx, 2*v.settings.Local.StopGrace+30*time.Second)
	defer cancel()
	all, err := kernels.Kernels(ctx)
	if err != nil {
		return err
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		turns = make(chan struct{}, stopAtOnce)
	)
	for _, k := range all {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			err := kernels.Stop(ctx, k.ID, "The gateway was stopped together with its kernels.")
			if err != nil && !errors.Is(err, launcher.ErrNotFound) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("kernel %s: %w", k.ID, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
