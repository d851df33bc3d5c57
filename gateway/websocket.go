package gateway

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// upgradeTime bounds a websocket's handshake with the supervisor, which waits for nothing before its answer.
	upgradeTime = 20 * time.Second
	// connectAgain is the Retry-After of clients that have too many connections.
	connectAgain = 5 * time.Second
)

// connection is an open websocket, or a kernel's log that is being read.
type connection = channels.Conn[kernels.Caller]

// getChannels joins a client's websocket to the kernel's supervisor. The supervisor chooses subprotocol and extensions,
// and the gateway passes both on. After the 101 it copies bytes until one side ends. While there is no supervisor yet,
// the client waits in the lobby.
func (g *Gateway) getChannels(w http.ResponseWriter, r *call) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if !isUpgrade(r.Request) {
		return refuse(http.StatusBadRequest, "This route is a websocket, and the request is not an upgrade to one.")
	}
	if !api.SpeaksWebsocket(w, r.Request) {
		return refuse(http.StatusUpgradeRequired, "This websocket has version %s of the protocol.", api.WebsocketVersion)
	}
	c, err := g.websockets.open(r, id)
	if err != nil {
		return err
	}
	defer g.websockets.Remove(c)

	extra := http.Header{}
	if request := w.Header().Get(api.HeaderRequestID); request != "" {
		extra.Set(api.HeaderRequestID, request)
	}
	carrier, err := g.accept(w, r, c, extra)
	switch {
	case errors.Is(err, channels.ErrClientGone):
		return &unwritten{err}
	case errors.Is(err, channels.ErrHandshake):
		return refuse(http.StatusBadRequest, "The request is not a websocket upgrade as RFC 6455 defines it.")
	case err != nil:
		return err
	}
	ended := g.follow(r, c)
	ended(c.Carry(carrier))
	return nil
}

// connections are open connections of one sort, with the bounds that refusals name.
type connections struct {
	*channels.Registry[kernels.Caller]
	perKernel, perUser int
}

// open adds a connection of the request's user.
func (cs *connections) open(r *call, kernel string) (*connection, error) {
	c, err := cs.Add(r.Context(), kernel, r.Who.Name, r.Who)
	var p *problem
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, channels.ErrDraining):
		return nil, refuse(http.StatusServiceUnavailable, "The gateway is stopping. Connect again.")
	case errors.Is(err, channels.ErrKernelFull):
		p = refuse(http.StatusTooManyRequests, "The kernel has %d connections, as many as are allowed here.",
			cs.perKernel)
	case errors.Is(err, channels.ErrUserFull):
		p = refuse(http.StatusTooManyRequests, "You have %d connections, as many as are allowed here.",
			cs.perUser)
	default:
		return nil, err
	}
	p.retry = connectAgain
	return nil, p.by(kernels.LimitCheck)
}

// accept makes the handshakes of a websocket: with supervisor and client, or with the client alone while there is no
// supervisor.
func (g *Gateway) accept(w http.ResponseWriter, r *call, c *connection, extra http.Header) (channels.Carrier, error) {
	up, err := g.upgradeSupervisor(c.Context(), r, c.Kernel)
	switch {
	case err == nil:
		return channels.Join(w, up, extra)
	case errors.Is(err, launcher.ErrNoSupervisor):
		return g.lobby.Enter(w, r.Request, r.Who.Name, g.awaited(r, c.Kernel), extra)
	case c.Context().Err() != nil && r.Context().Err() == nil:
		return nil, &problem{status: http.StatusServiceUnavailable, err: context.Cause(c.Context()),
			message: kernels.Unreachable}
	}
	return nil, g.explainUpgrade(r.Context(), r.Who, c.Kernel, err)
}

// awaited describes a kernel without a supervisor to the lobby.
func (g *Gateway) awaited(r *call, id string) channels.Kernel {
	return channels.Kernel{
		Wait: func(ctx context.Context, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
			k, err := g.opts.Launcher.Wait(ctx, id, cond)
			var gone *launcher.GoneError
			if errors.As(err, &gone) && !r.Who.Owns(gone.Owner) { // the reason is for the owner
				err = launcher.ErrNotFound
			}
			return k, err
		},
		Reason: func(k launcher.Kernel) string { return r.Who.ReasonOf(&k) + g.kernels.ExplainWait(r.Who, &k) },
		Connect: func(ctx context.Context, subprotocol string) (*channels.Upstream, error) {
			// The client's handshake is done, so the supervisor must choose the subprotocol that the client has.
			r := r.clone()
			r.Header.Del("Sec-Websocket-Extensions")
			r.Header.Del("Sec-Websocket-Protocol")
			if subprotocol != "" {
				r.Header.Set("Sec-Websocket-Protocol", subprotocol)
			}
			up, err := g.upgradeSupervisor(ctx, r, id)
			var undelivered *kernels.UndeliveredError
			if err != nil && !errors.As(err, &undelivered) {
				return nil, &channels.RejectedError{Text: problemOf(r, err).message}
			}
			return up, err
		},
	}
}

// follow logs and counts that a websocket was accepted. The function that it returns logs that it has ended, and why.
func (g *Gateway) follow(r *call, c *connection) (ended func(cause error)) {
	begun := time.Now()
	r.Kernel = c.Kernel
	g.metrics.WebsocketOpened()
	log := g.log.With(logkey.Kernel, c.Kernel, logkey.Remote, r.Remote, logkey.Request, r.ID)
	if g.opts.Users != nil {
		log = log.With(logkey.User, r.Who.Name)
	}
	log.Info("websocket opened")
	e := r.Entry("connect", "/api/kernels/{id}/channels")
	e.Outcome, e.Status = kernels.OutcomeDone, http.StatusSwitchingProtocols
	g.kernels.Audit().Write(e)
	return func(cause error) {
		in, out := c.Bytes()
		seconds := time.Since(begun).Seconds()
		log.Info("websocket closed", logkey.Cause, cause, logkey.Took, time.Since(begun), logkey.In, in, logkey.Out, out)
		e.Action, e.Status, e.Seconds, e.BytesIn, e.BytesOut = "disconnect", 0, &seconds, &in, &out
		g.kernels.Audit().Write(e)
	}
}

// explainUpgrade finds out what a failed handshake means: the kernel is unknown, or it cannot be reached now.
func (g *Gateway) explainUpgrade(ctx context.Context, who kernels.Caller, id string, err error) error {
	var never *kernels.DialError
	if errors.As(err, &never) && errors.Is(err, launcher.ErrNotFound) {
		// A dead kernel can still be looked at, so its websocket is not "not found".
		if _, kernelErr := g.kernels.Kernel(ctx, id); kernelErr != nil {
			return kernelErr
		}
	}
	return g.kernels.Explain(ctx, who, id, err)
}

// isUpgrade reports whether a request asks for a websocket as RFC 6455 section 4.1 defines it.
func isUpgrade(r *http.Request) bool {
	key, _ := base64.StdEncoding.DecodeString(r.Header.Get("Sec-Websocket-Key")) // a wrong key is too short
	return r.Method == http.MethodGet && r.ProtoMajor == 1 &&
		hasToken(r.Header, "Connection", "upgrade") && hasToken(r.Header, "Upgrade", "websocket") &&
		len(key) == 16 && r.ContentLength == 0 && len(r.TransferEncoding) == 0
}

// hasToken reports whether a comma-separated header has a token, in any case.
func hasToken(h http.Header, name, token string) bool {
	for _, line := range h[name] {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// compresses reports whether the supervisor may compress messages to the client. It does not within one machine, where
// it would only cost time. A request that a proxy of this machine has forwarded comes from another one.
func (g *Gateway) compresses(r *call) bool {
	ip := net.ParseIP(r.Remote)
	local := ip == nil || ip.IsLoopback()
	return g.opts.CompressWebsockets && (!local || r.Header.Get("X-Forwarded-For") != "")
}

// upgradeSupervisor makes the handshake with the supervisor. When ctx ends before that, the connection is closed.
func (g *Gateway) upgradeSupervisor(ctx context.Context, r *call, id string) (*channels.Upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	out, err := g.outgoing(ctx, &r.Act, id, http.MethodGet, "channels", g.queryOf(r.Request))
	if err != nil {
		return nil, err
	}
	g.secretsOf(r.Request).copyHeaders(out.Header, r.Header, upgradeHeaders)
	if g.compresses(r) {
		out.Header.Set(api.HeaderCompress, "1")
	} else {
		out.Header.Del("Sec-Websocket-Extensions")
	}
	if channels.Watches(r.Request) {
		out.Header.Set(api.HeaderWatched, "1")
	}
	dial := func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, net.JoinHostPort(id, "80")) }
	up, err := channels.Dial(ctx, dial, out, channels.CanHandOver(r.Request))
	var answered *channels.StatusError
	switch {
	case err == nil:
		return up, nil
	case !errors.As(err, &answered):
		return nil, &kernels.UndeliveredError{Err: err}
	case answered.Status == http.StatusMisdirectedRequest:
		g.transport.CloseIdleConnections()
	}
	return nil, supervisorProblem(answered.Status, answered.Body)
}
