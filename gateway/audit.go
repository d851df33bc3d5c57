package gateway

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// What the audit log says of how something ended.
const (
	auditDone    = "done"
	auditRefused = "refused" // whoever asked may not, or not now
	auditFailed  = "failed"  // anything else
)

// auditEntry is one line of the audit log: who did what, from where, and how it ended. Nothing of what a client has written is in it
// but kernel ids, names of kernelspecs that exist, and the name that it claims.
type auditEntry struct {
	Time     string   `json:"time"`
	Action   string   `json:"action"`            // of the route, or disconnect
	Outcome  string   `json:"outcome"`           //
	Status   int      `json:"status,omitempty"`  // of the answer
	Check    string   `json:"check,omitempty"`   // which one has refused it, see tokenCheck
	User     string   `json:"user,omitempty"`    // who has proved to be that; absent if nobody has
	Claims   string   `json:"claims,omitempty"`  // KERNEL_USERNAME of a start, which is not proved
	Remote   string   `json:"remote,omitempty"`  // address of the other end of the connection, which may be a proxy's
	Request  string   `json:"request,omitempty"` // id, as in the other logs and in X-Request-Id
	Method   string   `json:"method,omitempty"`
	Route    string   `json:"route,omitempty"`
	Kernel   string   `json:"kernel,omitempty"`
	Spec     string   `json:"spec,omitempty"`
	Seconds  *float64 `json:"seconds,omitempty"`   // that a websocket was open
	BytesIn  *int64   `json:"bytes_in,omitempty"`  // from the client
	BytesOut *int64   `json:"bytes_out,omitempty"` // to it
}

// audit writes the audit log: each entry with one Write, so that a file opened for appending may be shared and moved away.
type audit struct {
	// Fixed.
	to      io.Writer // nil: there is none
	log     *slog.Logger
	metrics *Metrics

	// Guarded by mu, as are writes.
	mu     sync.Mutex
	broken bool // the last entry could not be written, which was told
}

// write adds an entry. What cannot be written is counted and told; requests are answered all the same.
func (a *audit) write(e auditEntry) {
	if a.to == nil {
		return
	}
	e.Time = timestamp(time.Now())
	line, err := json.Marshal(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		_, err = a.to.Write(append(line, '\n'))
	}
	switch {
	case err != nil:
		a.metrics.auditErrors.Inc()
		if !a.broken {
			a.log.Error("the audit log cannot be written", "err", err)
		}
	case a.broken:
		a.log.Info("the audit log is written again")
	}
	a.broken = err != nil
}

// account is what becomes known of a request while it is answered. It is owned by the request's handler.
type account struct {
	id     string  // of the request
	who    *caller // who has proved to be that; nil: nobody
	kernel string
	spec   string
	claims string
}

type accountKey struct{}

func withAccount(ctx context.Context, a *account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// accountOf returns the account of the request that a context belongs to; never nil.
func accountOf(ctx context.Context) *account {
	if a, ok := ctx.Value(accountKey{}).(*account); ok {
		return a
	}
	return new(account)
}

// requestID returns the id the gateway has given a request. A client's own is not used: it could be anything.
func requestID(ctx context.Context) string { return accountOf(ctx).id }

// userNames are what is written of a name that somebody only claims to have.
var userNames = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`)

// starts notes what is about to be started.
func (a *account) starts(req launcher.Request) {
	a.kernel, a.spec = req.ID, req.Spec.Name
	if name := req.Env["KERNEL_USERNAME"]; userNames.MatchString(name) {
		a.claims = name
	}
}

// userName is the name of who has proved to be somebody, "" if nobody has.
func (a *account) userName() string {
	if a.who == nil {
		return ""
	}
	return a.who.Name
}

// entry is what the audit log says of a request.
func (a *account) entry(r *http.Request, action, route string) auditEntry {
	return auditEntry{Action: action, User: a.userName(), Claims: a.claims, Remote: remote(r), Request: a.id,
		Method: logMethod(r.Method), Route: route, Kernel: a.kernel, Spec: a.spec}
}

// remote is the address that a request came from, without its port. What headers of proxies say is not believed.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "" // a unix socket's
	}
	return host
}

// outcomeOf says in a word how a request has ended. What one may not know of is answered as if it did not exist, but was refused.
func outcomeOf(status int, p *problem) string {
	switch {
	case p != nil && p.check != "" && status == p.status:
		return auditRefused
	case status < http.StatusBadRequest:
		return auditDone
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusTooManyRequests:
		return auditRefused
	}
	return auditFailed
}
