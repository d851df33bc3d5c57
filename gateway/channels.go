package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// upgradeTime bounds a websocket's handshake with the supervisor, which waits for nothing before its answer.
const upgradeTime = 20 * time.Second

// channels joins a client's websocket to the kernel's supervisor. The handshake is the supervisor's: it chooses
// subprotocol and extensions, and the gateway passes both sides on. After the 101 it copies bytes until one side ends.
// While there is no supervisor yet, the client waits in the lobby.
func (g *Gateway) channels(w http.ResponseWriter, r *http.Request) error {
	id, err := g.kernelID(r)
	if err != nil {
		return err
	}
	if !isUpgrade(r) {
		return refuse(http.StatusBadRequest, "This is a websocket; the request is no upgrade to one.")
	}
	c, err := g.conns.add(r.Context(), id)
	if err != nil {
		return err
	}
	defer g.conns.remove(c)

	up, head, err := g.upgradeSupervisor(c.ctx, r, id)
	if errors.Is(err, launcher.ErrNoSupervisor) {
		return g.waitInLobby(w, r, c)
	}
	if err != nil {
		if c.ctx.Err() != nil && r.Context().Err() == nil {
			return &problem{status: http.StatusServiceUnavailable, err: context.Cause(c.ctx), message: unreachable}
		}
		return g.explainUpgrade(r.Context(), id, err)
	}
	s, err := hijack(w, up, head)
	if err != nil {
		_ = up.conn.Close() // nothing came of it
		return err
	}
	if rec, ok := w.(*response); ok {
		rec.status = http.StatusSwitchingProtocols
	}
	c.splice.Store(s)
	defer g.follow(r, c)()
	c.cause = s.run(c.ctx)
	return nil
}

// follow tells that a websocket was accepted; what it returns tells that it has ended. Bytes are those on the wire; what a client
// sent before its kernel had a supervisor counts once that got it.
func (g *Gateway) follow(r *http.Request, c *connection) (ended func()) {
	begun, a := time.Now(), accountOf(r.Context())
	a.kernel = c.kernel
	g.metrics.opened.Inc()
	log := g.log.With("kernel", c.kernel, "remote", remote(r), "request", a.id)
	if g.opts.Users != nil {
		log = log.With("user", a.userName())
	}
	log.Info("websocket opened")
	e := a.entry(r, "connect", "/api/kernels/{id}/channels")
	e.Outcome, e.Status = auditDone, http.StatusSwitchingProtocols
	g.audit.write(e)
	return func() {
		in, out := c.bytes()
		seconds := time.Since(begun).Seconds()
		log.Info("websocket closed", "cause", c.cause, "took", time.Since(begun), "in", in, "out", out)
		e.Action, e.Status, e.Seconds, e.BytesIn, e.BytesOut = "disconnect", 0, &seconds, &in, &out
		g.audit.write(e)
	}
}

// explainUpgrade says what a failed handshake means: the kernel is unknown, or it cannot be reached now.
func (g *Gateway) explainUpgrade(ctx context.Context, id string, err error) error {
	var never *dialError
	if errors.As(err, &never) && errors.Is(err, launcher.ErrNotFound) {
		// A dead kernel is still there to be looked at, so its websocket is not "not found".
		if _, kernelErr := g.kernel(ctx, id); kernelErr != nil {
			return kernelErr
		}
	}
	return g.explain(ctx, id, err)
}

// isUpgrade reports whether a request asks for a websocket as RFC 6455 section 4.1 wants it.
func isUpgrade(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoMajor == 1 &&
		hasToken(r.Header, "Connection", "upgrade") && hasToken(r.Header, "Upgrade", "websocket") &&
		r.Header.Get("Sec-Websocket-Key") != "" && r.ContentLength == 0 && len(r.TransferEncoding) == 0
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

// upgraded is a connection to a supervisor after its 101.
type upgraded struct {
	conn  net.Conn
	early []byte // what the supervisor has already sent behind its answer
}

// upgradeSupervisor makes the handshake with the supervisor and returns the connection and the head of its 101. When
// ctx ends before that, the connection is closed.
func (g *Gateway) upgradeSupervisor(ctx context.Context, r *http.Request, id string) (*upgraded, http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, upgradeTime)
	defer cancel()
	out, err := g.outgoing(ctx, r, id, http.MethodGet, "channels")
	if err != nil {
		return nil, nil, err
	}
	g.secretsOf(r).copyHeaders(out.Header, r.Header, upgradeHeaders)
	out.Header.Set("Connection", "Upgrade")
	out.Header.Set("Upgrade", "websocket")

	conn, err := g.dial(ctx, net.JoinHostPort(id, "80"))
	if err != nil {
		return nil, nil, &undeliveredError{err}
	}
	abort := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) }) // fails only on a closed connection
	up, head, err := g.shakeHands(conn, out)
	if !abort() && err == nil {
		err = &undeliveredError{ctx.Err()} // its deadline may lie in the past now: of no use any more
	}
	if err != nil {
		_ = conn.Close() // nothing came of it
		return nil, nil, err
	}
	return up, head, nil
}

// past is a deadline that ends whatever waits.
var past = time.Unix(1, 0)

// shakeHands sends the upgrade and reads the head of the answer. It takes over what its reader has read too much.
func (g *Gateway) shakeHands(conn net.Conn, out *http.Request) (*upgraded, http.Header, error) {
	if err := out.Write(conn); err != nil {
		return nil, nil, &undeliveredError{err}
	}
	bounded := &io.LimitedReader{R: conn, N: maxAnswerHeaders}
	br := bufio.NewReader(bounded)
	resp, err := http.ReadResponse(br, out)
	if err != nil {
		return nil, nil, &undeliveredError{err}
	}
	defer func() { _ = resp.Body.Close() }() // a 101 has none, and after anything else the connection is closed
	if resp.StatusCode == http.StatusSwitchingProtocols {
		early, err := br.Peek(br.Buffered())
		if err != nil {
			return nil, nil, &undeliveredError{err}
		}
		return &upgraded{conn: conn, early: bytes.Clone(early)}, resp.Header, nil
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, &undeliveredError{err}
	}
	if resp.StatusCode == http.StatusMisdirectedRequest {
		g.transport.CloseIdleConnections()
	}
	return nil, nil, supervisorProblem(resp.StatusCode, body)
}

// answeredHeaders is what a client sees of the supervisor's 101.
var answeredHeaders = []string{"Sec-Websocket-Accept", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}

// hijack takes the client's connection out of net/http's hands and gives it the supervisor's answer.
func hijack(w http.ResponseWriter, up *upgraded, head http.Header) (*splice, error) {
	answer := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	for _, name := range answeredHeaders {
		if v := head[name]; len(v) > 0 {
			answer[name] = v
		}
	}
	if id := w.Header().Get(headerRequestID); id != "" {
		answer.Set(headerRequestID, id)
	}
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	if err := answer.Write(&b); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	b.WriteString("\r\n")
	b.Write(up.early)

	client, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over the connection: %w", err)
	}
	// Peek of what is buffered cannot fail; the bytes are part of a reader that is given up here.
	early, _ := rw.Reader.Peek(rw.Reader.Buffered())
	// The server may have left deadlines behind; these end with the connection's first write.
	if err := client.SetDeadline(time.Time{}); err != nil {
		_ = client.Close() // it is broken
		return nil, &unwritten{err}
	}
	return newSplice(client, up.conn, bytes.Clone(early), b.Bytes()), nil
}
