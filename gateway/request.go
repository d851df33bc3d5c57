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

// bodyTime is how long a client may take to send a request's body.
const bodyTime = 30 * time.Second

// response is a ResponseWriter that remembers what was answered.
type response struct {
	http.ResponseWriter
	status  int     // 0 before the header is written; 101 once the connection is hijacked
	problem error   // what the log shows beside the status
	who     *caller // nil: nobody
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find what the server's own writer can do.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// serve is the way of every request: from where, what, who, whether they may, then the route's handler. Nothing of the kernels is looked
// at before all checks have passed.
func (g *Gateway) serve(rw http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	w := &response{ResponseWriter: rw}
	id := newRequestID()
	h := w.Header()
	h.Set("X-Request-Id", id)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	g.allowOrigin(w, r) // for errors too: a page must be able to read them

	pattern, err := "", error(nil)
	if res := g.find(r); res == nil {
		err = g.checkHost(r)
		if err == nil {
			err = refuse(http.StatusNotFound, "There is nothing here.")
		}
	} else {
		pattern = res.pattern
		err = g.dispatch(w, r.WithContext(withRequestID(r.Context(), id)), res)
	}
	if err != nil {
		w.problem = err
		g.writeProblem(w, problemOf(r, err))
	}
	g.logRequest(w, r, pattern, id, time.Since(begin))
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
		w.who, r = who, withCaller(r, who)
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

// logRequest writes one line: what was asked by its route, never by its path or query, in which tokens may stand.
func (g *Gateway) logRequest(w *response, r *http.Request, pattern, id string, took time.Duration) {
	status, level := w.status, slog.LevelDebug
	attrs := []slog.Attr{slog.String("method", r.Method), slog.String("route", pattern)}
	if kernel := r.PathValue("id"); launcher.ValidID(kernel) {
		attrs = append(attrs, slog.String("kernel", kernel))
	}
	if w.who != nil && !w.who.one {
		attrs = append(attrs, slog.String("user", w.who.Name))
	}
	var lost *unwritten
	switch p := problemOf(r, w.problem); {
	case w.problem == nil:
	case errors.As(w.problem, &lost), p.status == statusClientGone:
		status = statusClientGone
	case p.status >= http.StatusInternalServerError:
		// Messages of refusals repeat what the client wrote, so only those of our own faults are logged.
		level = slog.LevelWarn
		if p.status == http.StatusInternalServerError && p.err != nil {
			level = slog.LevelError
		}
		attrs = append(attrs, slog.Any("err", w.problem))
	}
	attrs = append(attrs, slog.Int("status", status), slog.Duration("took", took), slog.String("request", id))
	g.log.LogAttrs(r.Context(), level, "request", attrs...)
}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// readBody reads a request's body within its bounds of size and time.
func (g *Gateway) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(bodyTime)); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.opts.MaxBody))
	// Left in place, the deadline would look like a client that went away while its kernel starts.
	if resetErr := rc.SetReadDeadline(time.Time{}); resetErr != nil && !errors.Is(resetErr, errors.ErrUnsupported) {
		return nil, resetErr
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, err
	case err != nil:
		return nil, &problem{status: http.StatusBadRequest, message: "The body could not be read.", err: err}
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
