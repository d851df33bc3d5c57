package gateway

import (
	"net"
	"net/http"
	"strings"
)

// reportPath is the route that browsers send violations of the Content-Security-Policy to.
const reportPath = "/api/security/csp-report"

// contentSecurityPolicy is Jupyter Server's. It holds for all answers but the operator's page.
func contentSecurityPolicy(base string) string {
	return "frame-ancestors 'self'; report-uri " + base + reportPath + "; default-src 'none'"
}

// origins says from which hosts and pages requests may come. It is fixed.
type origins struct {
	allowed map[string]bool // origins of other hosts
	check   bool            // the Host header
	hosts   map[string]bool // that it may name
}

// takeReport discards a violation report. A browser sends it without a token, so its text could be anyone's.
func takeReport(w http.ResponseWriter, _ *call) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkHost rejects a Host header that names neither this machine nor a host that the operator allows. It stops web
// pages whose own name resolves to 127.0.0.1 (DNS rebinding). It is switched on only where the gateway listens on
// loopback.
func (o *origins) checkHost(r *http.Request) error {
	if !o.check || knownHost(r.Host, o.hosts) {
		return nil
	}
	return refuse(http.StatusForbidden,
		"The Host header names a host that is not allowed here; see --allow-host.").by(hostCheck)
}

// LocalOnly wraps a handler of a listener on loopback. It answers a request with 403 if its Host header names neither
// this machine nor one of the allowed hosts, which have no port. The gateway's own routes need no such wrapper.
func LocalOnly(next http.Handler, allowed []string) http.Handler {
	hosts := hostSet(allowed)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !knownHost(r.Host, hosts) {
			http.Error(w, "The Host header names a host that is not allowed here; see --allow-host.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostSet returns names of hosts in the form that knownHost compares.
func hostSet(names []string) map[string]bool {
	hosts := map[string]bool{}
	for _, name := range names {
		hosts[lower(strings.Trim(name, "[]"))] = true
	}
	return hosts
}

// knownHost reports whether a Host header names this machine or one of the hosts.
func knownHost(hostport string, hosts map[string]bool) bool {
	host := lower(hostport)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return host == "localhost" || hosts[host]
}

// checkOrigin rejects requests that a page of another site makes a browser send. CORS does not cover websocket
// upgrades, and with authentication off the origin is the only protection of all requests.
func (o *origins) checkOrigin(r *http.Request) error {
	for _, origin := range r.Header.Values("Origin") {
		if !sameHost(origin, r.Host) && !o.allowed[lower(origin)] && !o.allowed[AnyOrigin] {
			return refuse(http.StatusForbidden, "Requests from this origin are not allowed; see --allow-origin.").by(originCheck)
		}
	}
	return nil
}

// sameHost reports whether the origin has the host and port that the request was sent to.
func sameHost(origin, host string) bool {
	scheme, at, ok := strings.Cut(lower(origin), "://")
	return ok && (scheme == "http" || scheme == "https") && at != "" && at == lower(host)
}

// lower converts ASCII letters to lower case and nothing else. Host names have only ASCII letters (punycode), and
// Unicode has characters besides K and S whose lower case is k or s.
func lower(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// allowOrigin adds the CORS headers for an allowed origin of another host. It does not allow credentials: a page sends
// its token in a header that it sets itself.
func (o *origins) allowOrigin(w http.ResponseWriter, r *http.Request) {
	if len(o.allowed) == 0 {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	switch {
	case origin != "" && o.allowed[AnyOrigin]:
		origin = AnyOrigin
	case !o.allowed[lower(origin)]:
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Location, X-Request-Id")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Headers", "accept, content-type, authorization, x-xsrftoken")
		h.Set("Access-Control-Allow-Methods", "GET, PUT, POST, PATCH, DELETE, OPTIONS")
		h.Set("Access-Control-Max-Age", "600")
	}
}
