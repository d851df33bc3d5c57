package gateway

import (
	"net"
	"net/http"
	"regexp"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// call is one HTTP request with its caller. It is owned by the request's handler.
type call struct {
	*http.Request
	id  string // the gateway's own id for it; a client's X-Request-Id is ignored, since it could be anything
	who caller // set by dispatch before the handler runs

	// For the logs, as they become known.
	kernel   string // id
	spec     string // name of the kernelspec that is to be started
	flavor   string // of a start
	claimant string // KERNEL_USERNAME of a start, which is not verified

	waited bool // its answer took as long as its client wanted; for the metrics
}

// clone returns a copy whose headers can be changed.
func (r *call) clone() *call {
	c := *r
	c.Request = r.Request.Clone(r.Context())
	return &c
}

// claimedName is the form of an unverified name that is written to the audit log.
var claimedName = regexp.MustCompile(`^[A-Za-z0-9._@+-]{1,64}$`)

// starts notes for the logs what the request is about to start.
func (r *call) starts(req launcher.Request) {
	r.kernel, r.spec = req.ID, req.Spec.Name
	if name := req.Env["KERNEL_USERNAME"]; claimedName.MatchString(name) {
		r.claimant = name
	}
}

// entry makes the request's entry of the audit log, without its outcome.
func (r *call) entry(action, route string) auditEntry {
	return auditEntry{Action: action, User: r.who.Name, Claims: r.claimant, Remote: r.remote(), Request: r.id,
		Method: logMethod(r.Method), Route: route, Kernel: r.kernel, Spec: r.spec, Flavor: r.flavor}
}

// remote returns the address that the request came from, without its port. Headers of proxies are not trusted.
func (r *call) remote() string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "" // of a unix socket
	}
	return host
}
