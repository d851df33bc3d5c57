package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// This file decides what is forwarded to a supervisor. A supervisor runs beside user code. So it gets no credential of
// a client in any form, and nothing else that it does not need. Its answers are bounded, decoded and encoded again.
//
// REST requests do not use httputil.ReverseProxy. That passes on informational (1xx) answers with all their headers. It
// also cannot look at an answer before the client gets it, and restart and GET must. The transport is net/http's own.

// userName is the name of the only owner, who has the shared token. /api/me answers it, too.
const userName = "anonymous"

// forwardedHeaders lists the headers of a client that a supervisor gets. Content-* is missing because no client's body
// is forwarded: those of interrupt and restart mean nothing, and the gateway encodes all others itself.
var forwardedHeaders = []string{"User-Agent", "Accept"}

// upgradeHeaders lists the headers of a websocket handshake that a supervisor gets besides.
var upgradeHeaders = []string{
	"Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions",
}

// forwardedQuery lists the query parameters that a supervisor gets, by action.
var forwardedQuery = map[string][]string{
	"channels": {"session_id", "cursor"},
	"log":      {"log", "after", "limit", "parent", "follow"},
}

const (
	dialTime         = 10 * time.Second
	idleSupervisor   = 30 * time.Second
	maxAnswer        = 1 << 20  // bytes of a supervisor's body
	maxAnswerHeaders = 64 << 10 // bytes of its headers
)

// newTransport makes the transport for supervisors. Its host names are kernel ids, so that a pooled connection is never
// used for another kernel.
func (g *Gateway) newTransport() *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, addr string) (net.Conn, error) { return g.dial(ctx, addr) },
		DisableCompression:     true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        idleSupervisor,
		MaxResponseHeaderBytes: maxAnswerHeaders,
	}
}

// dial connects to the supervisor of the kernel that is the host of addr.
func (g *Gateway) dial(ctx context.Context, addr string) (net.Conn, error) {
	id, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := g.opts.Launcher.Dial(ctx, id)
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

// dialError says that a supervisor was not reached, so nothing was sent to it.
type dialError struct{ err error }

func (e *dialError) Error() string { return "dial the supervisor: " + e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// undeliveredError says that a supervisor gave no usable answer.
type undeliveredError struct{ err error }

func (e *undeliveredError) Error() string { return "supervisor: " + e.err.Error() }
func (e *undeliveredError) Unwrap() error { return e.err }

// answer is a supervisor's answer to a successful REST request.
type answer struct{ body []byte }

// forward sends a REST request to the kernel's supervisor and reads its answer. The error is an *undeliveredError or
// the supervisor's *problem.
func (g *Gateway) forward(r *call, id, method, action string, limit time.Duration) (*answer, error) {
	return g.forwardBody(r, id, method, action, nil, limit)
}

// forwardBody is forward with a body, which the gateway has encoded.
func (g *Gateway) forwardBody(r *call, id, method, action string, sent []byte, limit time.Duration) (*answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	out, err := g.outgoing(ctx, r, id, method, action)
	if err != nil {
		return nil, err
	}
	if sent != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(sent)), int64(len(sent))
		out.Header.Set("Content-Type", "application/json")
	}
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
		return nil, &undeliveredError{err}
	}
	body, err := g.readAnswer(resp)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, supervisorProblem(resp.StatusCode, body)
	}
	return &answer{body: body}, nil
}

// readAnswer reads the whole body of a supervisor's answer and closes it.
func (g *Gateway) readAnswer(resp *http.Response) ([]byte, error) {
	defer func() { _ = resp.Body.Close() }() // read to its end, or useless
	if resp.StatusCode == http.StatusMisdirectedRequest {
		// The address now belongs to another kernel's supervisor, so pooled connections to it must not be used again.
		g.transport.CloseIdleConnections()
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("its answer is too long")
	}
	if err != nil {
		return nil, &undeliveredError{err}
	}
	return body, nil
}

// outgoing builds a new request for a supervisor. It copies only what is listed above from the client's.
func (g *Gateway) outgoing(ctx context.Context, r *call, id, method, action string) (*http.Request, error) {
	u := url.URL{Scheme: "http", Host: id, Path: "/api/kernels/" + id}
	if action != "" {
		u.Path += "/" + action
	}
	sent, query, withheld := r.URL.Query(), url.Values{}, g.secretsOf(r.Request)
	for _, name := range forwardedQuery[action] {
		if v := sent.Get(name); sent.Has(name) && !withheld.leaks(v) {
			query.Set(name, v)
		}
	}
	u.RawQuery = query.Encode()
	out, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request for the supervisor: %w", err)
	}
	withheld.copyHeaders(out.Header, r.Header, forwardedHeaders)
	if out.Header.Get("User-Agent") == "" {
		out.Header.Set("User-Agent", "") // or net/http would add its own; supervisors recognize clients by it
	}
	if token := g.opts.Launcher.Token(id); token != "" {
		out.Header.Set("Authorization", "Bearer "+token)
	}
	out.Header.Set(api.HeaderUser, r.who.Name)
	out.Header.Set(api.HeaderRight, r.who.has.right())
	out.Header.Set(api.HeaderRequestID, r.id)
	return out, nil
}

// copyHeaders copies the named headers, except values that contain a token.
func (s secrets) copyHeaders(to, from http.Header, names []string) {
	for _, name := range names {
		for _, v := range from[name] {
			if !s.leaks(v) {
				to.Add(name, v)
			}
		}
	}
}

// errNoRoute is the answer 404 of a supervisor.
var errNoRoute = errors.New("its answer has status 404")

// supervisorProblem turns an answer that is not a success into an error. An error that is meant for the client stays as
// it is. All others are faults of gateway or supervisor, and may be temporary.
func supervisorProblem(status int, body []byte) error {
	undelivered := &undeliveredError{fmt.Errorf("its answer has status %d", status)}
	switch {
	case status < 400, status == http.StatusUnauthorized, status == http.StatusMisdirectedRequest,
		status == http.StatusBadGateway, status == http.StatusGatewayTimeout, status > 599:
		return undelivered
	case status == http.StatusNotFound:
		// The supervisor is about to end, or is older; only the launcher knows whether the kernel exists.
		return &undeliveredError{errNoRoute}
	}
	var b errorBody
	if err := json.Unmarshal(body, &b); err != nil || b.Reason == "" && b.Message == "" {
		return undelivered
	}
	if strings.TrimSpace(b.Message) == "" {
		b.Message = b.Reason
	}
	if status == http.StatusInternalServerError {
		return &launcher.FailedError{Reason: b.Message}
	}
	p := &problem{status: status, reason: b.Reason, message: b.Message}
	if status == http.StatusForbidden {
		p.check = supervisorCheck
	}
	return p
}
