// Package gateway is the HTTP edge of ekg: Jupyter's REST and websocket protocol in front of a launcher.Launcher. It
// checks who asks and from where, answers what concerns more than one kernel (lists, sessions, kernelspecs, starting),
// and hands what concerns one kernel to that kernel's supervisor: REST requests by an HTTP transport of its own
// (proxy.go), websockets by copying bytes (splice.go). It understands no kernel message, but for those of clients
// that wait for a supervisor (lobby.go), and holds no truth: whatever it knows it can ask the launcher again, and any number of
// gateways may serve the same kernels.
//
// All routes stand in routes.go, each with who may ask for it, which access.go enforces before a handler runs; which error becomes which status, in errors.go; what is forwarded to a supervisor and
// what never is, in proxy.go.
//
// Goroutines: a websocket has two, one for each direction, started and awaited by its handler, which does not return
// before both connections are closed; one that waits for a supervisor has one, which reads, awaited
// likewise. A log being read has one that ends it, awaited likewise. The HTTP transport has two for each idle connection to a
// supervisor, for at most idleSupervisor. Watch, which its caller runs, has one for each token that it has verified anew, awaited
// likewise. New starts none. Drain ends what is left of them.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Defaults and limits. The limits of net/http's server are for whoever builds that server around Handler.
const (
	// DefaultStartWait is how long a POST waits for a kernel to come up unless told otherwise.
	DefaultStartWait = 5 * time.Second
	// DefaultMaxBody bounds a request's body where Options.MaxBody is 0.
	DefaultMaxBody = 10 << 20
	// MaxHeaderBytes belongs into http.Server.MaxHeaderBytes.
	MaxHeaderBytes = 64 << 10
	// ReadHeaderTimeout belongs into http.Server.ReadHeaderTimeout. A ReadTimeout or WriteTimeout of the server would
	// end slow starts, so there must be none; bodies have a deadline of their own.
	ReadHeaderTimeout = 10 * time.Second
	// IdleTimeout belongs into http.Server.IdleTimeout.
	IdleTimeout = 2 * time.Minute
)

// Specs gives the kernelspecs that may be started; *kernelspecs.Finder is one.
type Specs interface {
	// List returns all usable specs, ordered by name.
	List() []kernelspecs.Spec
	// Get returns the usable spec of a name, in any case.
	Get(name string) (kernelspecs.Spec, bool)
}

// Options is all that a Gateway is made from.
type Options struct {
	Launcher launcher.Launcher
	Specs    Specs
	Version  string // of the program, shown by /api
	Log      *slog.Logger
	Metrics  *Metrics  // counts what this gateway does; nil for one that nobody sees
	Audit    io.Writer // gets the audit log, each entry as one JSON line with one Write; nil for none

	// Who may ask, and from where.
	Token        string   // demanded of every request; "" switches authentication off, unless there are users
	Users        Users    // whose tokens count, and whose kernels are theirs; nil: there is one owner, who has Token
	BaseURL      string   // path prefix of all routes; "" and "/" mean none
	AllowOrigins []string // origins of other hosts that browsers may use the gateway from: scheme://host[:port], exact
	CheckHost    bool     // refuse a Host header that names no loopback address and is not in AllowHosts
	AllowHosts   []string // more host names (no port) for CheckHost

	// Starting kernels.
	DefaultKernel string        // spec for requests that name none; "" means python3, else the first
	StartWait     time.Duration // how long a POST waits for the kernel; 0 means not at all
	ClientEnv     []string      // variables a client may set, besides KERNEL_*
	MaxBody       int64         // bytes of a request's body; 0 means DefaultMaxBody

	// Limits; 0 means that there is none.
	StartsPerMinute      int // kernels that one user may start
	ConnectionsPerKernel int // websockets that lead to one kernel
	ConnectionsPerUser   int // websockets of one user

	GroupCull GroupCull // when kernels of a group's users are culled, where that is not as for all; nil: it is

	// KernelLimits are those that the Launcher has; nil: it has none.
	KernelLimits *KernelLimits
}

// Gateway serves Jupyter's kernel API. Handler may be called at any time, and all methods concurrently.
type Gateway struct {
	// Fixed after New.
	opts       Options
	log        *slog.Logger
	base       string // "" or "/prefix"
	token      credential
	origins    map[string]bool
	hosts      map[string]bool
	clientEnv  map[string]bool
	resources  []*resource
	limits     *startLimits
	transport  *http.Transport
	metrics    *Metrics
	audit      *audit
	started    time.Time
	lobbyPing  time.Duration // the constant, but in tests
	watchEvery time.Duration // likewise
	watchRetry time.Duration // likewise
	bodyTime   time.Duration // likewise
	answerTime time.Duration // likewise

	// Safe for concurrent use by themselves.
	ready   atomic.Bool
	conns   *connections // websockets
	streams *connections // logs that are being read
	starts  starts
	paths   pathLocks

	lobbyHeld atomic.Int64 // bytes that are held for kernels without a supervisor
}

// New checks the options and builds a gateway that is not ready yet (see SetReady). An error names the bad option.
func New(o Options) (*Gateway, error) {
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	g := &Gateway{
		opts: o, started: time.Now(),
		origins: map[string]bool{}, hosts: map[string]bool{}, clientEnv: map[string]bool{},
		conns: newConnections(), streams: newConnections(), lobbyPing: lobbyPing, watchEvery: watchEvery, watchRetry: watchRetry,
		bodyTime: bodyTime, answerTime: answerTime,
	}
	err := g.take(o)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g.log = o.Log.With("component", "gateway")
	g.token = newCredential(o.Token)
	g.transport = g.newTransport()
	if g.metrics = o.Metrics; g.metrics == nil {
		g.metrics = NewMetrics(o.Version)
	}
	g.audit = &audit{to: o.Audit, log: g.log, metrics: g.metrics}
	if err := g.metrics.watch(g); err != nil {
		return nil, fmt.Errorf("gateway: Metrics: %w", err)
	}
	if g.resources, err = compile(g.routes()); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	g.conns.perKernel, g.conns.perUser = o.ConnectionsPerKernel, o.ConnectionsPerUser
	return g, nil
}

// take checks the options and takes over those that are looked up later.
func (g *Gateway) take(o Options) error {
	switch {
	case o.Launcher == nil:
		return errors.New("Launcher is missing")
	case o.Specs == nil:
		return errors.New("Specs is missing")
	case o.Log == nil:
		return errors.New("Log is missing")
	case o.StartWait < 0:
		return fmt.Errorf("StartWait is negative: %v", o.StartWait)
	case o.MaxBody < 0:
		return fmt.Errorf("MaxBody is negative: %d", o.MaxBody)
	case strings.TrimSpace(o.Token) != o.Token:
		return errors.New("Token begins or ends with white space, which no client can send")
	case o.Token != "" && o.Users != nil:
		return errors.New("Token contradicts Users: whoever has it would be no user, or all of them")
	case o.ConnectionsPerKernel < 0:
		return fmt.Errorf("ConnectionsPerKernel is negative: %d", o.ConnectionsPerKernel)
	case o.ConnectionsPerUser < 0:
		return fmt.Errorf("ConnectionsPerUser is negative: %d", o.ConnectionsPerUser)
	}
	var err error
	if g.limits, err = newStartLimits(o.StartsPerMinute); err != nil {
		return err
	}
	if g.base, err = cleanBase(o.BaseURL); err != nil {
		return fmt.Errorf("BaseURL: %w", err)
	}
	for _, origin := range o.AllowOrigins {
		if err := checkOrigin(origin); err != nil {
			return fmt.Errorf("AllowOrigins: %w", err)
		}
		g.origins[lower(origin)] = true
	}
	for _, host := range o.AllowHosts {
		if !validHost(host) {
			return fmt.Errorf("AllowHosts: %q is not a host name or address without a port", host)
		}
		g.hosts[lower(strings.Trim(host, "[]"))] = true
	}
	for _, name := range o.ClientEnv {
		if !envName.MatchString(name) || reservedEnv(name) {
			return fmt.Errorf("ClientEnv: %q cannot be left to clients", name)
		}
		g.clientEnv[name] = true
	}
	return nil
}

var basePath = regexp.MustCompile(`^(/[A-Za-z0-9._~@+-]+)*$`)

// cleanBase brings a base URL into the form "" or "/a/b".
func cleanBase(base string) (string, error) {
	clean := strings.TrimRight(base, "/")
	if clean != "" && !strings.HasPrefix(clean, "/") {
		clean = "/" + clean
	}
	if !basePath.MatchString(clean) || strings.Contains(clean+"/", "/./") || strings.Contains(clean+"/", "/../") {
		return "", fmt.Errorf("%q is not a path of plain segments", base)
	}
	return clean, nil
}

// checkOrigin refuses what can never equal an Origin header.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.Scheme+"://"+u.Host != origin {
		return fmt.Errorf("%q is not an exact origin like https://host:port", origin)
	}
	return nil
}

// validHost reports whether host can be the host of a Host header: a name or an address, without a port.
func validHost(host string) bool {
	if net.ParseIP(strings.Trim(host, "[]")) != nil {
		return true
	}
	return host != "" && !strings.ContainsAny(host, ":/ []@?#")
}

// Handler returns the handler for all requests. It is the same one each time.
func (g *Gateway) Handler() http.Handler { return http.HandlerFunc(g.serve) }

// SetReady says whether /readyz answers 200 or 503. Nothing else depends on it.
func (g *Gateway) SetReady(ready bool) { g.ready.Store(ready) }

// EndLogs cuts off whoever reads a kernel's log and refuses new ones. It returns when they are gone, which takes no
// longer than flushTime. A log may be followed for days, so an http.Server around Handler that shall end has to call it
// (see RegisterOnShutdown) before it waits for requests to end by themselves.
func (g *Gateway) EndLogs() {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	g.streams.drain(now)
}

// Drain ends all websockets and refuses new ones: one after the other over at most drainSpread, so that their clients
// do not come back all at once, and without a close frame, which fits nowhere between frames whose borders the gateway
// does not know; every client takes that for a lost connection and reconnects. It returns when the last one is gone.
// When ctx ends it stops spreading and ends the rest at once, which takes no longer than flushTime. Readers of logs are
// ended first.
func (g *Gateway) Drain(ctx context.Context) {
	g.EndLogs()
	g.conns.drain(ctx)
	g.transport.CloseIdleConnections()
}
