// Package gateway is the HTTP edge of ekg. It serves Jupyter's REST and websocket protocol for the kernels of a
// launcher.Launcher. It checks who asks and from where, and reads and writes bodies. Package kernels decides about
// kernels, and starts and ends them. The gateway answers requests about several kernels itself: lists, sessions,
// kernelspecs and starts. It forwards requests about one kernel to the kernel's supervisor. It understands no kernel
// message. It stores nothing that the launcher does not have, so any number of gateways may serve the same kernels.
//
// cmd/ekg makes a Gateway with New and serves its Handler. Begin with routes.go, which lists all routes with the access
// that each needs. request.go follows a request from its arrival to its answer, and access.go checks its access before
// a handler runs. wish.go reads what a start asks for. proxy.go forwards REST requests, and websocket.go forwards
// websockets. errors.go turns errors into HTTP statuses.
//
// Goroutines: New starts none, and Drain ends all that are left. A websocket has those of package channels, and a
// stream of events has one for its last write; their handlers wait for them. A reader of a log has a timer that ends
// it; its handler stops the timer. Another timer logs how many requests were rejected and not logged. The HTTP
// transport has two for each idle connection to a supervisor, for at most idleSupervisor. The caller runs Watch and
// RunJobs. Watch starts one for each token that is verified again, and waits for it. RunJobs starts those of package
// jobs.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Settings for the http.Server around Handler, which its caller builds.
const (
	// MaxHeaderBytes is for http.Server.MaxHeaderBytes.
	MaxHeaderBytes = 64 << 10
	// ReadHeaderTimeout is for http.Server.ReadHeaderTimeout. A ReadTimeout or WriteTimeout of the server would
	// end slow starts, so the server must have neither; bodies have a deadline of their own.
	ReadHeaderTimeout = 10 * time.Second
	// IdleTimeout is for http.Server.IdleTimeout.
	IdleTimeout = 2 * time.Minute
)

// Gateway serves Jupyter's kernel API. Handler may be called at any time, and all methods concurrently.
type Gateway struct {
	// Fixed after New.
	opts      Options
	kernels   *kernels.Service
	log       *slog.Logger
	base      string // "" or "/prefix"
	token     credential
	origins   origins
	resources []*resource
	transport *http.Transport
	metrics   *metrics.Metrics
	feed      *feed
	started   time.Time
	bodies    *bodies
	models    *models
	sessions  *sessions
	jobs      *jobRoutes

	// Fixed; constants, but in tests.
	watchEvery  time.Duration
	watchRetry  time.Duration
	answerTime  time.Duration
	eventsEvery time.Duration
	eventsAlive time.Duration

	// Safe for concurrent use by themselves.
	ready        atomic.Bool
	refusals     identity.Ration // of lines about requests without a known user
	lobby        *channels.Lobby
	websockets   *connections
	logReaders   *connections
	eventReaders *connections // of no kernel
}

// New builds a gateway that is not ready yet (see SetReady). The error of a bad option is a *kernels.OptionError.
func New(o Options) (*Gateway, error) {
	switch {
	case o.Launcher == nil:
		return nil, kernels.WrongOption("Launcher", "is missing")
	case o.Specs == nil:
		return nil, kernels.WrongOption("Specs", "is missing")
	case o.Log == nil:
		return nil, kernels.WrongOption("Log", "is missing")
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Token == "" && o.Users == nil && slices.Contains(o.AllowOrigins, AnyOrigin) {
		return nil, kernels.WrongOption("AllowOrigins", "%q needs a token: without one, any page could run code", AnyOrigin)
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	perUser := channels.NewPlaces(o.ConnectionsPerUser)
	registry := func(perKernel int) *connections {
		return &connections{channels.NewRegistry[kernels.Caller](perKernel, perUser), perKernel, o.ConnectionsPerUser}
	}
	g := &Gateway{
		opts: o, log: o.Log.With(logkey.Component, "gateway"), token: newCredential(o.Token), metrics: o.Metrics,
		started: time.Now(),
		origins: origins{allowed: map[string]bool{}, check: o.CheckHost, hosts: hostSet(o.AllowHosts)},
		lobby:   channels.NewLobby(), feed: newFeed(), bodies: &bodies{most: o.MaxBody, time: bodyTime},
		websockets: registry(o.ConnectionsPerKernel), logReaders: registry(0), eventReaders: registry(0),
		watchEvery: watchEvery, watchRetry: watchRetry, answerTime: answerTime, eventsEvery: eventsEvery,
		eventsAlive: eventsAlive,
	}
	g.base, _ = cleanBase(o.BaseURL) // Validate has checked it
	for _, origin := range o.AllowOrigins {
		g.origins.allowed[lower(origin)] = true
	}
	g.transport = g.newTransport()
	if g.metrics == nil {
		g.metrics = metrics.New(o.Version)
	}
	served := o.Options
	served.Log, served.Metrics, served.Shared = g.log, g.metrics, o.Users != nil
	g.kernels = kernels.New(served, g)
	manager, err := g.newJobs()
	if err != nil {
		return nil, err
	}
	g.jobs = &jobRoutes{manager, g.kernels, o.Launcher, o.Specs, g.bodies, g.eventReaders, g.base, g.log}
	g.models = &models{kernels: g.kernels, jobs: g.jobs}
	g.sessions = &sessions{kernels: g.kernels, launcher: o.Launcher, jobs: g.jobs, models: g.models, bodies: g.bodies,
		listed: func(ctx context.Context) (*listing, error) { return g.feed.read(ctx, g) },
		base:   g.base, log: g.log, locks: keyLocks{byKey: map[string]chan struct{}{}}}
	err = g.metrics.Watch(metrics.Source{
		Measure: o.Launcher.Measure, Websockets: g.websockets.Traffic, Lobby: g.lobby.Held, Ready: g.ready.Load,
		LogReaders: func() int { readers, _, _ := g.logReaders.Traffic(); return readers },
		Jobs:       g.jobStates,
	})
	if err != nil {
		return nil, kernels.WrongOption("Metrics", "%v", err)
	}
	if g.resources, err = compile(g.routes()); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return g, nil
}

// Handler returns the handler for all requests. It is the same one each time.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// SetReady sets whether /readyz answers 200 or 503. Nothing else depends on it.
func (g *Gateway) SetReady(ready bool) { g.ready.Store(ready) }

// EndLogs ends all requests that read kernels' logs or events, and rejects new ones. It returns when they are gone, at
// the latest after twice channels.FlushTime. A client may follow a log for days. So the http.Server around Handler must
// call EndLogs before it waits for requests to end (RegisterOnShutdown).
func (g *Gateway) EndLogs() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	g.eventReaders.Drain(now)
	g.logReaders.Drain(now)
}

// Drain rejects new websockets and ends the open ones over some seconds, so that their clients do not all reconnect at
// once. It sends no close frame, since the gateway does not know where a frame ends; clients take this for a lost
// connection and reconnect. Drain returns when the last websocket is gone. When ctx ends, it ends the rest at once,
// which takes no longer than channels.FlushTime. Logs are ended first.
func (g *Gateway) Drain(ctx context.Context) {
	g.EndLogs()
	g.websockets.Drain(ctx)
	g.reportHeld()
	g.transport.CloseIdleConnections()
}
