package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// This file decides what is forwarded to a supervisor. A supervisor runs beside user code. So it gets no credential of
// a client in any form, and nothing else that it does not need. Its answers are bounded, decoded and encoded again.
//
// REST requests do not use httputil.ReverseProxy. That passes on informational (1xx) answers with all their headers. It
// also cannot look at an answer before the client gets it, and restart and GET must. The transport is net/http's own.

// Of a client's headers a supervisor gets User-Agent and Accept. Content-* is missing because no client's body is
// forwarded: those of interrupt and restart mean nothing, and the gateway encodes all others itself.

// upgradeHeaders lists the headers of a websocket handshake that a supervisor gets besides.
var upgradeHeaders = []string{
	"Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Protocol", "Sec-Websocket-Extensions",
}

// forwardedQuery lists the query parameters that a supervisor gets, by action.
var forwardedQuery = map[string][]string{
	"channels": {"session_id", "cursor", jupyter.RelayNaN},
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
	return g.kernels.Dial(ctx, id)
}

// Ask sends a REST request to the kernel's supervisor and reads its answer, for package kernels. The error is a
// *kernels.UndeliveredError or the supervisor's *problem.
func (g *Gateway) Ask(ctx context.Context, a *kernels.Act, id string, q kernels.Question) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, q.Limit)
	defer cancel()
	out, err := g.outgoing(limited, a, id, q.Verb, q.Action, nil)
	if err != nil {
		return nil, err
	}
	if q.Body != nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(q.Body)), int64(len(q.Body))
		out.Header.Set("Content-Type", "application/json")
	}
	resp, err := g.transport.RoundTrip(out)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &kernels.UndeliveredError{Err: err}
	}
	body, err := g.readAnswer(resp)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, supervisorProblem(resp.StatusCode, body)
	}
	return body, nil
}

// Ended ends the websockets and logs of a kernel that was stopped, for package kernels.
func (g *Gateway) Ended(kernel string) {
	g.websockets.Revoke(kernel, channels.ErrKernelStopped)
	g.logReaders.Revoke(kernel, channels.ErrKernelStopped)
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
		return nil, &kernels.UndeliveredError{Err: err}
	}
	return body, nil
}

// outgoing builds a new request for a supervisor, with those parameters of a query that it gets.
func (g *Gateway) outgoing(
	ctx context.Context, a *kernels.Act, id, method, action string, sent url.Values,
) (*http.Request, error) {
	u := url.URL{Scheme: "http", Host: id, Path: "/api/kernels/" + id}
	if action != "" {
		u.Path += "/" + action
	}
	query := url.Values{}
	for _, name := range forwardedQuery[action] {
		if sent.Has(name) {
			query.Set(name, sent.Get(name))
		}
	}
	u.RawQuery = query.Encode()
	out, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request for the supervisor: %w", err)
	}
	if a.Accept != "" {
		out.Header.Set("Accept", a.Accept)
	}
	out.Header.Set("User-Agent", a.Agent) // if it is empty, net/http adds none of its own; supervisors know clients by it
	if token := g.opts.Launcher.Token(id); token != "" {
		out.Header.Set("Authorization", "Bearer "+token)
	}
	out.Header.Set(api.HeaderUser, a.Who.Name)
	out.Header.Set(api.HeaderRight, a.Who.Has.Right())
	out.Header.Set(api.HeaderRequestID, a.ID)
	return out, nil
}

// queryOf returns the query of a client's request, without the values that contain a token.
func (g *Gateway) queryOf(r *http.Request) url.Values {
	query, withheld := r.URL.Query(), g.secretsOf(r)
	maps.DeleteFunc(query, func(name string, _ []string) bool { return withheld.leaks(query.Get(name)) })
	return query
}

// harmless returns the values of a header, without those that contain a token.
func (g *Gateway) harmless(r *call, name string) string {
	var values []string
	for _, v := range r.Header[name] {
		if !g.secretsOf(r.Request).leaks(v) {
			values = append(values, v)
		}
	}
	return strings.Join(values, ", ")
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

// supervisorProblem turns an answer that is not a success into an error. An error that is meant for the client stays as
// it is. All others are faults of gateway or supervisor, and may be temporary.
func supervisorProblem(status int, body []byte) error {
	undelivered := &kernels.UndeliveredError{Err: fmt.Errorf("its answer has status %d", status)}
	switch {
	case status < 400, status == http.StatusUnauthorized, status == http.StatusMisdirectedRequest,
		status == http.StatusBadGateway, status == http.StatusGatewayTimeout, status > 599,
		status == http.StatusNotFound: // the supervisor is about to end; only the launcher knows whether the kernel exists
		return undelivered
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
		p.check = kernels.SupervisorCheck
	}
	return p
}
