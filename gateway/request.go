package gateway

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Deadlines of clients. The http.Server has no others, see ReadHeaderTimeout.
const (
	bodyTime   = 30 * time.Second // to send a request's body
	answerTime = time.Minute      // to take the answer, except of a log, which has deadlines of its own
)

// response is a ResponseWriter that remembers the status and sets a deadline for the client to take the answer.
type response struct {
	http.ResponseWriter
	patience time.Duration // see answerTime
	status   int           // 0 before the header is written; 101 once the connection is hijacked
	problem  error         // what the log shows beside the status
}

// WriteHeader notes the status and sends it.
func (w *response) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write writes a part of the body.
func (w *response) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// begin notes the status of an answer that begins now. Its deadline ends writing to a client that does not read.
func (w *response) begin(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	// fails only on a broken connection
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.patience))
}

// Hijack hands over the connection, which counts as an answer with 101.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController find the methods of the server's own writer.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve answers every request. It checks host, route, origin, caller and access in this order, and then calls the
// route's handler. No kernel is looked at before all checks have passed.
func (g *Gateway) serve(rw http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	w := &response{ResponseWriter: rw, patience: g.answerTime}
	g.hurry(w, r)
	c := newCall(r)
	h := w.Header()
	h.Set(api.HeaderRequestID, c.ID)
	h.Set("Content-Security-Policy", contentSecurityPolicy(g.base))
	h.Set("X-Content-Type-Options", "nosniff")
	g.origins.allowOrigin(w, r) // also for errors, which a page must be able to read

	res := g.find(r, r.URL.EscapedPath())
	// Deferred, since an answer that is broken off is a panic.
	defer func() { g.finish(w, c, res, time.Since(begin)) }()
	var err error
	if res == nil {
		err = g.origins.checkHost(r)
		if err == nil {
			err = g.noRoute(w, r)
		}
	} else {
		err = g.dispatch(w, c, res)
	}
	if err != nil {
		w.problem = err
		g.writeProblem(w, problemOf(c, err))
	}
}

// elsewhere has parts of Jupyter's API that a gateway does not have, and the sentence for their clients.
var elsewhere = map[string]string{
	"scheduler": "The gateway does not speak jupyter-scheduler's API. Its jobs are at %s/api/jobs. " +
		"jupyter-ekg translates in a Jupyter server.",
	"api/contents": noServer, "api/terminals": noServer, "api/config": noServer, "api/nbconvert": noServer,
	"tree": noServer, "lab": noServer, "notebooks": noServer, "files": noServer,
}

const noServer = "This is a gateway for kernels, which are at %s/api/kernels. It has no files, terminals or " +
	"notebooks. `jupyter lab --gateway-url URL` has them, and runs its kernels here."

// noRoute answers a request whose path no route has. A path with slashes too many at its end is redirected, as Jupyter
// Server does. jupyter_server.base.handlers.TrailingSlashHandler has that.
func (g *Gateway) noRoute(w *response, r *http.Request) error {
	path := r.URL.EscapedPath()
	cut := strings.TrimRight(path, "/")
	if res := g.find(r, cut); cut != "" && res != nil && res.methods[r.Method] != nil &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead) {
		if r.URL.RawQuery != "" {
			cut += "?" + r.URL.RawQuery
		}
		w.Header().Set("Location", cut)
		w.WriteHeader(http.StatusFound)
		return nil
	}
	under, _ := g.below(path)
	parts := strings.SplitN(strings.TrimPrefix(under, "/"), "/", 3)
	for n := 1; n <= min(2, len(parts)); n++ {
		if sentence, is := elsewhere[strings.Join(parts[:n], "/")]; is {
			return refuse(http.StatusNotFound, sentence, g.base)
		}
	}
	return refuse(http.StatusNotFound, "There is no such route.")
}

// hurry sets deadlines for reading the request's body and for writing before the answer begins. net/http reads the rest
// of the body before it answers, even if the request is refused. Without a deadline it would wait for ever.
func (g *Gateway) hurry(w *response, r *http.Request) {
	rc := http.NewResponseController(w.ResponseWriter)
	// Deadlines cannot be set where there is no connection, or a broken one.
	// the last request's may be over, and a "100 Continue" is written
	_ = rc.SetWriteDeadline(time.Now().Add(g.answerTime))
	if r.ContentLength != 0 {
		_ = rc.SetReadDeadline(time.Now().Add(g.bodies.time))
	}
	if len(r.TransferEncoding) > 0 {
		// The request may have a Content-Length as well, which net/http hides and a proxy in front may have used. The rest
		// would then be read as another user's next request, so the connection is closed (RFC 9112, section 6.1).
		w.Header().Set("Connection", "close")
	}
}

// dispatch checks the request and calls its handler. A panic of the handler fails only its own request.
func (g *Gateway) dispatch(w *response, r *call, res *resource) (err error) {
	if err := g.origins.checkHost(r.Request); err != nil {
		return err
	}
	if r.Method == http.MethodOptions {
		// A preflight has no credential by design, and its answer has no secret.
		w.Header().Set("Allow", res.allow)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if !res.open {
		if err := g.origins.checkOrigin(r.Request); err != nil {
			return err
		}
		if r.Who, err = g.authenticate(r); err != nil {
			return err
		}
		r.Agent, r.Accept = g.harmless(r, "User-Agent"), g.harmless(r, "Accept")
	}
	rt := res.methods[r.Method]
	if rt == nil {
		w.Header().Set("Allow", res.allow)
		return refuse(http.StatusMethodNotAllowed, "This route has only the methods %s.", res.allow)
	}
	r.Request = r.WithContext(launcher.WithLookups(r.Context(), func() error { return g.kernels.CountLookup(r.Who) }))
	if err := g.admit(r, rt.access); err != nil {
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

// finish counts and logs a request that was answered.
func (g *Gateway) finish(w *response, r *call, res *resource, took time.Duration) {
	status := w.status
	if kernel := r.PathValue("id"); r.Kernel == "" && launcher.ValidID(kernel) {
		r.Kernel = kernel
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
	g.metrics.Request(pattern, logMethod(r.Method), status, took, lasting || r.waited)
	if status == http.StatusSwitchingProtocols {
		return // follow has logged it
	}
	others, ok := 0, true
	if status >= http.StatusBadRequest && r.Who.Name == "" {
		if others, ok = g.refusals.Take(time.Now()); !ok {
			g.holdBack(others)
			return
		}
	}
	g.auditRequest(r, action, pattern, status, p, others)
	if pattern == reportPath && p == nil {
		return // it changes nothing, and anyone can send any number
	}
	g.logRequest(r, pattern, status, p, w.problem, took, others)
}

// heldTime is the longest time from a request without a log line until the number of such requests is logged.
const heldTime = 10 * time.Second

// holdBack is called for a request without a known user that is in no log. The first of several starts a timer. So
// their number is written, even if no other request follows.
func (g *Gateway) holdBack(held int) {
	if held == 1 {
		time.AfterFunc(heldTime, g.reportHeld)
	}
}

// reportHeld writes the number of requests that are in no log to both logs.
func (g *Gateway) reportHeld() {
	others := g.refusals.Held()
	if others == 0 {
		return // a later request has reported them
	}
	g.kernels.Audit().Write(kernels.Entry{Action: "look", Outcome: kernels.OutcomeRefused, Others: others})
	g.log.Info("requests without a known user were not logged one by one", logkey.Others, others)
}

// auditRequest writes requests of audited routes, and all refused ones, to the audit log. Others counts the requests
// before this one that are in no log.
func (g *Gateway) auditRequest(r *call, action, pattern string, status int, p *problem, others int) {
	outcome := outcomeOf(status, p)
	if action == "" && outcome != kernels.OutcomeRefused && others == 0 {
		return
	}
	if action == "" {
		action = "look"
	}
	e := r.Entry(action, pattern)
	e.Outcome, e.Status, e.Others = outcome, status, others
	if p != nil {
		e.Check = p.check
	}
	g.kernels.Audit().Write(e)
}

// logRequest writes one line. It has the route instead of path and query, which may contain tokens. Requests that only
// read have level debug, since front ends poll; requests that change something, and refused ones, have level info.
func (g *Gateway) logRequest(
	r *call, pattern string, status int, p *problem, err error, took time.Duration, others int,
) {
	level := slog.LevelInfo
	if (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) &&
		outcomeOf(status, p) != kernels.OutcomeRefused {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String(logkey.Method, logMethod(r.Method)), slog.String(logkey.Route, pattern)}
	if r.Kernel != "" {
		attrs = append(attrs, slog.String(logkey.Kernel, r.Kernel))
	}
	if name := r.Who.Name; name != "" && g.opts.Users != nil {
		attrs = append(attrs, slog.String(logkey.User, name))
	}
	// Messages of refusals may repeat a client's text, so only those of our own faults are logged.
	if p != nil && p.status >= http.StatusInternalServerError && status != statusClientGone {
		level = slog.LevelWarn
		if p.status == http.StatusInternalServerError && p.err != nil {
			level = slog.LevelError
		}
		attrs = append(attrs, slog.Any(logkey.Err, err))
	}
	if others > 0 {
		attrs = append(attrs, slog.Int(logkey.Others, others))
	}
	attrs = append(attrs, slog.Int(logkey.Status, status), slog.Duration(logkey.Took, took),
		slog.String(logkey.Remote, r.Remote), slog.String(logkey.Request, r.ID))
	g.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// logMethod returns a method for logs and labels. A client may send any word as its method.
func logMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return method
	}
	return metrics.Other
}

// bodies reads the bodies of requests, bounded in size and time.
type bodies struct {
	most int64         // bytes
	time time.Duration // until a body is there
}

// read reads a request's body.
func (b *bodies) read(w http.ResponseWriter, r *call) ([]byte, error) {
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(b.time)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, b.most))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, err
	case err != nil:
		// The deadline stays, or net/http would wait for the rest before it answers.
		return nil, &problem{status: http.StatusBadRequest, message: "The body could not be read.", err: err}
	}
	// If it stayed, the deadline would cancel the request while its kernel starts.
	if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	return body, nil
}

// object reads a body that is a JSON object, null or empty; the last two give nil. Keys are matched exactly, unlike
// those of structs in encoding/json.
func (b *bodies) object(w http.ResponseWriter, r *call) (object, error) {
	body, err := b.read(w, r)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(string(body)) == "" {
		return nil, nil
	}
	if !utf8.Valid(body) {
		return nil, refuse(http.StatusBadRequest, "Invalid JSON in body of request: it is not UTF-8.")
	}
	if body = jupyter.HideNaN(body); !json.Valid(body) { // notebooks that Python has written may have NaN
		return nil, refuse(http.StatusBadRequest, "Invalid JSON in body of request.")
	}
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, refuse(http.StatusBadRequest, "The body of the request is not a JSON object.")
	}
	return o, nil
}

// object is a JSON object whose members are not decoded yet.
type object map[string]json.RawMessage

// text returns the string member of a key; there is false if it is absent or null.
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

// object returns the object member of a key, or nil if it is absent or null.
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
