package gateway

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// What a client may take its time for. The server itself sets no limit, see ReadHeaderTimeout.
const (
	bodyTime   = 30 * time.Second // to send a request's body
	answerTime = time.Minute      // to take the answer, but for a log, which has deadlines of its own
)

// response is a ResponseWriter that remembers what was answered, and gives the client so long to take it.
type response struct {
	http.ResponseWriter
	patience time.Duration // see answerTime
	status   int           // 0 before the header is written; 101 once the connection is hijacked
	problem  error         // what the log shows beside the status
}

func (w *response) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// begin notes the status of an answer that begins now. Who does not read would otherwise be written to for ever.
func (w *response) begin(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.patience)) // a broken connection says it by itself
}

// Unwrap lets http.ResponseController find what the server's own writer can do.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve is the way of every request: from where, what, who, whether they may, then the route's handler. Nothing of the kernels is looked
// at before all checks have passed.
func (g *Gateway) serve(rw http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	w := &response{ResponseWriter: rw, patience: g.answerTime}
	g.hurry(w, r)
	a := &account{id: newRequestID()}
	r = r.WithContext(withAccount(r.Context(), a))
	h := w.Header()
	h.Set(headerRequestID, a.id)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	g.allowOrigin(w, r) // for errors too: a page must be able to read them

	res := g.find(r)
	// Also of an answer that is broken off, which is a panic.
	defer func() { g.finish(w, r, res, time.Since(begin)) }()
	var err error
	if res == nil {
		err = g.checkHost(r)
		if err == nil {
			err = refuse(http.StatusNotFound, "There is nothing here.")
		}
	} else {
		err = g.dispatch(w, r, res)
	}
	if err != nil {
		w.problem = err
		g.writeProblem(w, problemOf(r, err))
	}
}

// hurry bounds what is left to be read of a request and to be written before its answer begins. Before an answer net/http reads a body that
// its handler has not read, those of requests that are refused too, and would wait for it for ever.
func (g *Gateway) hurry(w *response, r *http.Request) {
	rc := http.NewResponseController(w.ResponseWriter)
	// Where they cannot be set there is no connection, or it is broken and says it by itself.
	_ = rc.SetWriteDeadline(time.Now().Add(g.answerTime)) // that of the request before may be over, and a "100 Continue" is written too
	if r.ContentLength != 0 {
		_ = rc.SetReadDeadline(time.Now().Add(g.bodyTime))
	}
	if len(r.TransferEncoding) > 0 {
		// It may have had a Content-Length besides, which a proxy in front may have gone by, and net/http does not tell. What would then
		// be the next request of somebody else is never read (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
}

// dispatch checks the request and calls its handler. A handler that panics costs its own request only.
func (g *Gateway) dispatch(w *response, r *http.Request, res *resource) (err error) {
	if err := g.checkHost(r); err != nil {
		return err
	}
	if r.Method == http.MethodOptions {
		// A preflight carries no credential by design, and its answer says nothing that is secret.
		w.Header().Set("Allow", res.allow)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if !res.open {
		if err := g.checkOrigin(r); err != nil {
			return err
		}
		who, err := g.authenticate(r)
		if err != nil {
			return err
		}
		accountOf(r.Context()).who = who
	}
	rt := res.methods[r.Method]
	if rt == nil {
		w.Header().Set("Allow", res.allow)
		return refuse(http.StatusMethodNotAllowed, "This can be asked with %s only.", res.allow)
	}
	if err := g.admit(r, callerOf(r.Context()), rt.access); err != nil {
		return err
	}
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(v)
			}
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return rt.serve(w, r)
}

// finish counts a request that was answered, and writes about it what is to be written.
func (g *Gateway) finish(w *response, r *http.Request, res *resource, took time.Duration) {
	a, status := accountOf(r.Context()), w.status
	if kernel := r.PathValue("id"); a.kernel == "" && launcher.ValidID(kernel) {
		a.kernel = kernel
	}
	var lost *unwritten
	p := (*problem)(nil)
	if w.problem != nil {
		p = problemOf(r, w.problem)
		if errors.As(w.problem, &lost) || p.status == statusClientGone {
			status = statusClientGone
		}
	}
	pattern, action, lasting := "", "", false
	if res != nil {
		pattern, lasting = res.pattern, res.lasting
		if rt := res.methods[r.Method]; rt != nil {
			action = rt.audit
		}
	}
	g.metrics.request(pattern, r.Method, status, took, lasting)
	if status == http.StatusSwitchingProtocols {
		return // it was told when it opened and when it closed
	}
	g.auditRequest(r, action, pattern, status, p)
	g.logRequest(r, pattern, status, p, w.problem, took)
}

// auditRequest adds to the audit log what was asked for that changes or shows something, and what was refused.
func (g *Gateway) auditRequest(r *http.Request, action, pattern string, status int, p *problem) {
	outcome := outcomeOf(status, p)
	if action == "" && outcome != auditRefused {
		return
	}
	if action == "" {
		action = "look"
	}
	e := accountOf(r.Context()).entry(r, action, pattern)
	e.Outcome, e.Status = outcome, status
	if p != nil {
		e.Check = p.check
	}
	g.audit.write(e)
}

// logRequest writes one line: what was asked by its route, never by its path or query, in which tokens may stand. What only
// looks is a matter of debugging, since front ends ask again and again; what changes something, or is refused, is not.
func (g *Gateway) logRequest(r *http.Request, pattern string, status int, p *problem, err error, took time.Duration) {
	level := slog.LevelInfo
	a := accountOf(r.Context())
	if (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) && outcomeOf(status, p) != auditRefused {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String("method", logMethod(r.Method)), slog.String("route", pattern)}
	if a.kernel != "" {
		attrs = append(attrs, slog.String("kernel", a.kernel))
	}
	if name := a.userName(); name != "" && g.opts.Users != nil {
		attrs = append(attrs, slog.String("user", name))
	}
	// Messages of refusals repeat what the client wrote, so only those of our own faults are logged.
	if p != nil && p.status >= http.StatusInternalServerError && status != statusClientGone {
		level = slog.LevelWarn
		if p.status == http.StatusInternalServerError && p.err != nil {
			level = slog.LevelError
		}
		attrs = append(attrs, slog.Any("err", err))
	}
	attrs = append(attrs, slog.Int("status", status), slog.Duration("took", took), slog.String("remote", remote(r)), slog.String("request", a.id))
	g.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// logMethod is a method as logs show it: a client may send any word for one.
func logMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return otherLabel
}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// readBody reads a request's body within its bounds of size and time.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(g.bodyTime)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.opts.MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, err
	case err != nil:
		// The deadline stays: net/http would wait for the rest before it answers.
		return nil, &problem{status: http.StatusBadRequest, message: "The body could not be read.", err: err}
	}
	// Left in place, the deadline would look like a client that went away while its kernel starts.
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	return b, nil
}

// readObject reads a body that is a JSON object or nothing at all. Keys are matched exactly, unlike encoding/json
// does it for structs.
func (g *Gateway) readObject(w http.ResponseWriter, r *http.Request) (object, error) {
	b, err := g.readBody(w, r)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(b)) == "" {
		return nil, nil
	}
	if !utf8.Valid(b) {
		return nil, refuse(http.StatusBadRequest, "Invalid JSON in body of request: it is not UTF-8.")
	}
	if !json.Valid(b) {
		return nil, refuse(http.StatusBadRequest, "Invalid JSON in body of request.")
	}
	var o object
	if err := json.Unmarshal(b, &o); err != nil || o == nil {
		return nil, refuse(http.StatusBadRequest, "The body of the request is not a JSON object.")
	}
	return o, nil
}

// object is a JSON object whose members are not looked at yet.
type object map[string]json.RawMessage

// text returns the string member of a key. A member that is absent or null is not there.
func (o object) text(key string) (value string, there bool, err error) {
	raw, ok := o[key]
	if !ok || string(raw) == "null" {
		return "", false, nil
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return "", false, refuse(http.StatusBadRequest, "%s is not a string.", key)
	}
	return value, true, nil
}

// object returns the object member of a key, nil where it is absent or null.
func (o object) object(key string) (object, error) {
	raw, ok := o[key]
	if !ok || string(raw) == "null" {
		return nil, nil
	}
	var value object
	if err := json.Unmarshal(raw, &value); err != nil {
		return nil, refuse(http.StatusBadRequest, "%s is not an object.", key)
	}
	return value, nil
}
