package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway"
)

const (
	finishScrapes  = 2 * time.Second // when the gateway ends
	metricsTimeout = time.Minute     // for a whole answer: a profile takes half of that
)

// serveMetrics answers scrapes, if they are wanted, in a goroutine that the registered step waits for. What ends it early is sent. Its
// port has no token, as is usual for Prometheus, so nothing else is on it but, where they are wanted, profiles.
func (v *server) serveMetrics(ctx context.Context, metrics *gateway.Metrics) (<-chan error, error) {
	s := v.settings
	if s.metricsListen == "" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.metricsListen)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.origins["metrics-listen"].place, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	if s.pprof { // but for the command line, in which the token may stand
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	srv := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: gateway.ReadHeaderTimeout,
		WriteTimeout:      metricsTimeout,
		IdleTimeout:       gateway.IdleTimeout,
		MaxHeaderBytes:    gateway.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(v.log.With("component", "metrics").Handler(), slog.LevelWarn),
	}
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	v.onStop("metrics", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, finishScrapes)
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close() // a profile
		}
		<-done
		return ignoreClosed(err)
	})
	url := "http://" + listener.Addr().String() + "/metrics"
	v.log.Info("metrics are served", "url", url, "pprof", s.pprof)
	if v.measured != nil {
		v.measured(url)
	}
	return failed, nil
}
