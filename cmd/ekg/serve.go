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
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of the end. A step that takes longer is left behind and told.
const (
	finishRequests = 10 * time.Second // for REST requests that are being answered
	drainSockets   = 15 * time.Second // for websockets, which package gateway ends over 10 s
	stopAtOnce     = 32               // kernels that are stopped at the same time
)

// discard is the log of what is only tried.
var discard = slog.New(slog.DiscardHandler)

// server is `ekg serve`: all parts, in the order in which they depend on each other.
type server struct {
	// Fixed before Run.
	settings     *settings
	stdout       io.Writer
	log          *slog.Logger
	openLauncher func(context.Context, *settings, launcher.Limits, *slog.Logger, launcher.Observer) (launcher.Launcher, error)
	ready        func(url string) // called once requests are answered; may be nil
	measured     func(url string) // called with the address of --metrics-listen; may be nil

	// Owned by Run.
	steps []step
}

// step is the undoing of something that was started.
type step struct {
	name string
	undo func(context.Context) error
}

func newServer(s *settings, stdout io.Writer, log *slog.Logger) *server {
	return &server{settings: s, stdout: stdout, log: log, openLauncher: openLauncher}
}

func newLogger(w io.Writer, s *settings) *slog.Logger {
	o := &slog.HandlerOptions{Level: s.logLevel}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// onStop registers the undoing of what has just been started. Steps are undone in reverse order.
func (v *server) onStop(name string, undo func(context.Context) error) {
	v.steps = append(v.steps, step{name, undo})
}

// Run serves until ctx ends, then ends everything that it has started. Being told to end is no error.
func (v *server) Run(ctx context.Context) error {
	err := v.serve(ctx)
	if ctx.Err() != nil {
		v.log.Info("ending", "kernels", map[bool]string{true: "are stopped", false: "go on"}[v.settings.stopKernels])
		if errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	// The ctx that told it to end must not end the ending; every step has a bound of its own.
	end := context.WithoutCancel(ctx)
	for _, s := range slices.Backward(v.steps) {
		if uerr := s.undo(end); uerr != nil {
			err = errors.Join(err, fmt.Errorf("ending %s: %w", s.name, uerr))
		}
	}
	return err
}

// serve starts everything and returns when ctx ends or the listener fails.
func (v *server) serve(ctx context.Context) error {
	s := v.settings
	v.noteSurroundings(ctx)

	// First, as the likeliest to fail: a port that is taken.
	listener, err := listen(ctx, s)
	if err != nil {
		return err
	}
	v.onStop("listener", func(context.Context) error { return ignoreClosed(listener.Close()) })

	auditLog, err := v.openAudit()
	if err != nil {
		return err
	}
	// Before anything that takes long, so that one can see what it does.
	metrics := gateway.NewMetrics(version)
	metricsFailed, err := v.serveMetrics(ctx, metrics)
	if err != nil {
		return err
	}

	specs, err := openSpecs(ctx, s, v.log)
	if err != nil {
		return err
	}
	v.onStop("kernelspecs", func(context.Context) error { return specs.Close() })

	usersFile, err := s.openUsersFile()
	if err != nil {
		return err
	}
	limits := s.kernelLimits(specs, usersFile)
	kernels, err := v.openLauncher(ctx, s, limits, v.log, metrics)
	if err != nil {
		return err
	}
	v.onStop("launcher", func(context.Context) error { return kernels.Close() })

	// The launcher has made sure that the state directory is nobody else's.
	token, generated, err := s.readToken()
	if err != nil {
		return err
	}
	o := s.gatewayOptions()
	o.Launcher, o.Specs, o.Token, o.Log, o.Metrics, o.Audit = kernels, specs, token, v.log, metrics, auditLog
	o.KernelLimits = limits
	if usersFile != nil {
		o.GroupCull = usersFile.GroupCull
	}
	if users, err := s.openUsers(usersFile, v.log); err != nil {
		return err
	} else if users != nil {
		o.Users = users
	}
	gw, err := gateway.New(o)
	if err != nil {
		return err
	}
	v.watchUsers(ctx, gw)
	v.onStop("websockets", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, drainSockets)
		defer cancel()
		gw.Drain(ctx)
		return nil
	})
	if s.stopKernels {
		// After the listener, so that no new ones come; before the websockets, so that their clients see it.
		v.onStop("kernels", func(ctx context.Context) error { return v.stopAll(ctx, kernels) })
	}

	failed := v.serveHTTP(listener, gw.Handler(), gw.EndLogs)
	v.onStop("readiness", func(ctx context.Context) error {
		gw.SetReady(false)
		return pause(ctx, s.drainDelay)
	})
	gw.SetReady(true)
	if err := v.beFound(listener.Addr(), token); err != nil {
		return err
	}
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

// watchUsers has what is revoked end, in a goroutine that the registered step waits for.
func (v *server) watchUsers(ctx context.Context, gw *gateway.Gateway) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() { gw.Watch(ctx) })
	v.onStop("users", func(context.Context) error {
		stop()
		watching.Wait()
		return nil
	})
}

// serveHTTP answers requests in a goroutine that the registered step waits for; endLogs ends those that last. What ends
// it early is sent.
func (v *server) serveHTTP(listener net.Listener, handler http.Handler, endLogs func()) <-chan error {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // a websocket takes over its connection, which HTTP/2 has no notion of
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: gateway.ReadHeaderTimeout,
		IdleTimeout:       gateway.IdleTimeout,
		MaxHeaderBytes:    gateway.MaxHeaderBytes,
		Protocols:         &protocols,
		ErrorLog:          slog.NewLogLogger(v.log.With("component", "http").Handler(), slog.LevelWarn),
	}
	srv.RegisterOnShutdown(endLogs)
	failed := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	v.onStop("requests", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, finishRequests)
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.Join(fmt.Errorf("some were still being answered after %v", finishRequests), srv.Close())
		}
		<-done
		return ignoreClosed(err)
	})
	return failed
}

// beFound tells other commands of this user where the gateway is.
func (v *server) beFound(addr net.Addr, token string) error {
	s := v.settings
	sum, err := certificateSum(s.tlsCert)
	if err != nil {
		return fmt.Errorf("%s: %w", s.origins["tls-cert"].place, err)
	}
	remove, err := leaveGatewayFile(s.stateDir, gatewayFile{URL: s.url(addr), Token: token, PID: os.Getpid(),
		Started: time.Now().UTC(), Certificate: sum}, func(err error) {
		v.log.Warn("files of other gateways cannot be read; ekg log will not find those", "err", err)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.origins["state-dir"].place, err)
	}
	v.onStop("file of this gateway", func(context.Context) error { return remove() })
	return nil
}

// announce tells people where the gateway is. The token is only shown if it was made here: one that somebody has set is
// known to those who shall know it, and the output may be kept.
func (v *server) announce(addr net.Addr, token string, generated bool) error {
	base := v.settings.url(addr)
	url := base
	switch {
	case generated:
		url += "?token=" + token
	case token != "":
		url += "?token=..."
	}
	v.log.Info("ready", "url", base, "version", version, "pid", os.Getpid(), "state_dir", v.settings.stateDir)
	if _, err := fmt.Fprintf(v.stdout, "ekg is ready at %s\n", url); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	if v.ready != nil {
		v.ready(url)
	}
	return nil
}

// stopAll stops every kernel, several at a time.
func (v *server) stopAll(ctx context.Context, kernels launcher.Launcher) error {
	// Each may take the grace twice; they share the machine while they end.
	ctx, cancel := context.WithTimeout(ctx, 2*v.settings.stopGrace+30*time.Second)
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
			err := kernels.Stop(ctx, k.ID, "The gateway was told to end, and to stop its kernels with it.")
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

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
