package kernels

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Act is one thing that is done for a caller: a client's request, or a step of a job. It is owned by who does it.
type Act struct {
	ID     string // of the request; a client's X-Request-Id is ignored, since it could be anything
	Who    Caller
	Verb   string // the request's method, for the audit log
	Remote string // address that the request came from, without its port; "" for a job
	Agent  string // User-Agent and Accept of the client, which supervisors get; without any secret
	Accept string

	// For the logs, as they become known.
	Kernel   string // id
	Spec     string // name of the kernelspec that is to be started
	Flavor   string // of a start
	Claimant string // KERNEL_USERNAME of a start, which is not verified
}

// NewRequestID makes a random id.
func NewRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

// claimedName is the form of an unverified name that is written to the audit log.
var claimedName = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`)

// starting notes for the logs what is about to be started.
func (a *Act) starting(req *launcher.Request) {
	a.Kernel, a.Spec = req.ID, req.Spec.Name
	if name := req.Env["KERNEL_USERNAME"]; claimedName.MatchString(name) {
		a.Claimant = name
	}
}

// Entry makes the entry of the audit log, without its outcome.
func (a *Act) Entry(action, route string) Entry {
	return Entry{Action: action, User: a.Who.Name, Claims: a.Claimant, Remote: a.Remote, Request: a.ID,
		Method: a.Verb, Route: route, Kernel: a.Kernel, Spec: a.Spec, Flavor: a.Flavor}
}

// Outcomes in the audit log.
const (
	OutcomeDone    = "done"
	OutcomeRefused = "refused" // the caller may not do it, or not now
	OutcomeFailed  = "failed"  // for any other reason
)

// Entry is one line of the audit log: who did what, from where, and how it ended. The only texts of clients in it are
// kernel ids, names of existing kernelspecs and flavors, and claimed names.
type Entry struct {
	Time     string   `json:"time"`
	Action   string   `json:"action"` // of the route, or disconnect
	Outcome  string   `json:"outcome"`
	Status   int      `json:"status,omitempty"`  // of the response
	Check    string   `json:"check,omitempty"`   // the check that refused it, see AccessCheck
	User     string   `json:"user,omitempty"`    // verified name; absent without one
	Claims   string   `json:"claims,omitempty"`  // KERNEL_USERNAME of a start, which is not verified
	Remote   string   `json:"remote,omitempty"`  // address of the peer, which may be a proxy
	Request  string   `json:"request,omitempty"` // id, as in the other logs and in X-Request-Id
	Method   string   `json:"method,omitempty"`
	Route    string   `json:"route,omitempty"`
	Kernel   string   `json:"kernel,omitempty"`
	Spec     string   `json:"spec,omitempty"`
	Flavor   string   `json:"flavor,omitempty"`
	Others   int      `json:"others,omitempty"`    // refused requests before it that have no entry
	Seconds  *float64 `json:"seconds,omitempty"`   // for which a websocket was open
	BytesIn  *int64   `json:"bytes_in,omitempty"`  // from the client
	BytesOut *int64   `json:"bytes_out,omitempty"` // to the client
}

// Audit writes the audit log. Each entry is one Write, so that several gateways may append to one file.
type Audit struct {
	// Fixed.
	to      io.Writer // nil: no audit log
	log     *slog.Logger
	metrics *metrics.Metrics

	// Guarded by mu, as are writes.
	mu     sync.Mutex
	broken bool // the last entry could not be written, and that was logged
}

// Audit returns the log in which the service's user writes what it does itself.
func (s *Service) Audit() *Audit { return s.audit }

// Write adds an entry. A failure is counted and logged; requests are answered anyway.
func (a *Audit) Write(e Entry) {
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
