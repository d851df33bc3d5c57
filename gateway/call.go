package gateway

import (
	"net"
	"net/http"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// call is one HTTP request with its caller. It is owned by the request's handler. Its caller, Who, is set by dispatch
// before the handler runs.
type call struct {
	*http.Request
	kernels.Act

	waited bool // its answer took as long as its client wanted; for the metrics
}

// newCall returns a request without a caller.
func newCall(r *http.Request) *call {
	return &call{Request: r, Act: kernels.Act{ID: kernels.NewRequestID(), Verb: logMethod(r.Method), Remote: remoteOf(r)}}
}

// clone returns a copy whose headers can be changed.
func (r *call) clone() *call {
	c := *r
	c.Request = r.Request.Clone(r.Context())
	return &c
}

// remoteOf returns the address that a request came from, without its port. Headers of proxies are not trusted.
func remoteOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "" // of a unix socket
	}
	return host
}
