package gateway

import (
	"net"
	"net/http"
	"strings"
)

// contentSecurityPolicy is Jupyter Server's, less the report address: nothing the gateway serves is a page.
const contentSecurityPolicy = "frame-ancestors 'self'; default-src 'none'"

// checkHost refuses a Host header that names neither this machine nor a name the operator has listed. It is what stops
// a web page whose own name was made to resolve to 127.0.0.1 (DNS rebinding); only useful, and only switched on, where
// the gateway listens on loopback.
func (g *Gateway) checkHost(r *http.Request) error {
	if !g.opts.CheckHost || g.knownHost(r.Host) {
		return nil
	}
	return refuse(http.StatusForbidden, "The Host header names a host that this gateway is not known by; see --allow-host.").by(hostCheck)
}

func (g *Gateway) knownHost(hostport string) bool {
	host := lower(hostport)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return host == "localhost" || g.hosts[host]
}

// checkOrigin refuses requests that a page of another site has made a browser send: websocket upgrades, which CORS
// does not cover, and all others too, since with authentication off the origin is all that protects them.
func (g *Gateway) checkOrigin(r *http.Request) error {
	for _, origin := range r.Header.Values("Origin") {
		if !sameHost(origin, r.Host) && !g.origins[lower(origin)] {
			return refuse(http.StatusForbidden, "Requests from this origin are not allowed; see --allow-origin.").by(originCheck)
		}
	}
	return nil
}

// sameHost reports whether the origin is a page of the very host and port the request was sent to.
func sameHost(origin, host string) bool {
	scheme, at, ok := strings.Cut(lower(origin), "://")
	return ok && (scheme == "http" || scheme == "https") && at != "" && at == lower(host)
}

// lower makes the letters of ASCII small and leaves all others alone: names have no others (they come in punycode), and Unicode has characters
// that are not k or s but become one in another case.
func lower(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}

// allowOrigin adds the CORS headers for an allowed origin of another host. Credentials are not among them: tokens
// travel in a header that the page sets itself.
func (g *Gateway) allowOrigin(w http.ResponseWriter, r *http.Request) {
	if len(g.origins) == 0 {
		return
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if !g.origins[lower(origin)] {
		return
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Location, X-Request-Id")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Headers", "accept, content-type, authorization")
		h.Set("Access-Control-Allow-Methods", "GET, PUT, POST, PATCH, DELETE, OPTIONS")
		h.Set("Access-Control-Max-Age", "600")
	}
}
