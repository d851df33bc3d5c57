package gateway

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Outcomes in the audit log.
const (
	auditDone    = "done"
	auditRefused = "refused" // the caller may not do it, or not now
	auditFailed  = "failed"  // for any other reason
)

// auditEntry is one line of the audit log: who did what, from where, and how it ended. The only texts of clients in it
// are kernel ids, names of existing kernelspecs and flavors, and claimed names.
type auditEntry struct {
	Time     string   `json:"time"`
	Action   string   `json:"action"` // of the route, or disconnect
	Outcome  string   `json:"outcome"`
	Status   int      `json:"status,omitempty"`  // of the response
	Check    string   `json:"check,omitempty"`   // the check that refused it, see tokenCheck
	User     string   `json:"user,omitempty"`    // verified name; absent without one
	Claims   string   `json:"claims,omitempty"`  // KERNEL_USERNAME of a start, which is not verified
	Remote   string   `json:"remote,omitempty"`  // address of the peer, which may be a proxy
	Request  string   `json:"request,omitempty"` // id, as in the other logs and in X-Request-Id
	Method   string   `json:"method,omitempty"`
	Route    string   `json:"route,omitempty"`
	Kernel   string   `json:"kernel,omitempty"`
	Spec     string   `json:"spec,omitempty"`
	Flavor   string   `json:"flavor,omitempty"`
	Others   int      `json:"others,omitempty"`    // refused requests before it that have no entry, see auditRequest
	Seconds  *float64 `json:"seconds,omitempty"`   // for which a websocket was open
	BytesIn  *int64   `json:"bytes_in,omitempty"`  // from the client
	BytesOut *int64   `json:"bytes_out,omitempty"` // to the client
}

// audit writes the audit log. Each entry is one Write, so that several gateways may append to one file.
type audit struct {
	// Fixed.
	to      io.Writer // nil: no audit log
	log     *slog.Logger
	metrics *metrics.Metrics

	// Guarded by mu, as are writes.
	mu     sync.Mutex
	broken bool // the last entry could not be written, and that was logged
}

// write adds an entry. A failure is counted and logged; requests are answered anyway.
func (a *audit) write(e auditEntry) {
	if a.to == nil {
		return
	}
	e.Time = api.Timestamp(time.Now())
	line, err := json.Marshal(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		_, err = a.to.Write(append(line, '\n'))
	}
	switch {
	case err != nil:
		a.metrics.AuditFailed()
		if !a.broken {
			a.log.Error("the audit log cannot be written", logkey.Err, err)
		}
	case a.broken:
		a.log.Info("the audit log is written again")
	}
	a.broken = err != nil
}

// outcomeOf returns the outcome of a request. A kernel that the caller may not see is answered with 404, but was
// refused.
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
