package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	diskPace       = 15 * time.Second // between two measurements of free space
	finishScrapes  = 2 * time.Second  // time for open scrapes when the gateway ends
	metricsTimeout = time.Minute      // for a whole answer; a profile takes half of that
)

// measureDisks measures the free space of the gateway's disks until ctx ends. A disk that hangs delays no scrape.
func (v *server) measureDisks(ctx context.Context, counters *metrics.Metrics) {
	disks := map[string]string{"jobs": v.settings.Gateway.Jobs.Dir}
	if v.settings.Launcher == "local" {
		disks["state"] = v.settings.Local.StateDir
	}
	for ctx.Err() == nil {
		for disk, dir := range disks {
			if space, err := files.SpaceOf(dir); err == nil { // a launcher or job that needs it logs why it is missing
				counters.DiskFree(disk, space.Free)
			}
		}
		_ = goroutines.Sleep(ctx, diskPace) // its error is that of ctx
	}
}

// serveMetrics answers scrapes in a goroutine that the registered step waits for. It does nothing without
// --metrics-listen. An error that ends it early is sent on the channel. The port requires no token, as is usual for
// Prometheus. It therefore serves only metrics and, with --pprof, profiles.
func (v *server) serveMetrics(ctx context.Context, counters *metrics.Metrics) (<-chan error, error) {
	s := v.settings
	if s.MetricsListen == "" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Place("metrics-listen"), err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", counters.Handler())
	if s.PProf { // without /debug/pprof/cmdline, since the command line may hold the token
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	handler := http.Handler(mux)
	if settings.IsLocal(s.MetricsListen) {
		handler = gateway.LocalOnly(mux, s.Gateway.AllowHosts)
	}
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: gateway.ReadHeaderTimeout,
		WriteTimeout:      metricsTimeout,
		IdleTimeout:       gateway.IdleTimeout,
		MaxHeaderBytes:    gateway.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(v.log.With(logkey.Component, "metrics").Handler(), slog.LevelWarn),
	}
	failed := v.answer("metrics", srv, listener, finishScrapes, nil) // a profile may still run
	url := "http://" + listener.Addr().String() + "/metrics"
	v.log.Info("metrics are served", logkey.URL, url, logkey.PProf, s.PProf)
	if v.measured != nil {
		v.measured(url)
	}
	return failed, nil
}
