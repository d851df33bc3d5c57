package gateway

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// DefaultMaxBody bounds the bytes of a request's body where Options.MaxBody is 0.
const DefaultMaxBody = 10 << 20

// AnyOrigin in Options.AllowOrigins allows pages of every origin. Only a token then keeps other pages out, so New
// rejects it where authentication is off.
const AnyOrigin = "*"

// Options configures a Gateway.
type Options struct {
	kernels.Options

	Version  string                 // the program's version, shown by /api
	Gateways launcher.GatewayViewer // the gateways of the same kernels; nil: the Launcher, if it knows them

	// Who may ask, and from where.
	Token        string   // required of every request; "" switches authentication off, unless there are users
	Users        Users    // identifies users, who own their kernels; nil: there is one owner, who has Token
	BaseURL      string   // path prefix of all routes; "" and "/" mean no prefix
	AllowOrigins []string // origins that browsers may use the gateway from: scheme://host[:port], exact, or AnyOrigin
	CheckHost    bool     // reject a Host header that names no loopback address and is not in AllowHosts
	AllowHosts   []string // more host names (no port) for CheckHost

	// CompressWebsockets lets clients of other machines have their messages compressed, if they offer it.
	CompressWebsockets bool

	MaxBody int64 // bytes of a request's body; 0 means DefaultMaxBody

	// Limits; 0 means no limit.
	ConnectionsPerKernel int // websockets that lead to one kernel
	ConnectionsPerUser   int // websockets, readers of logs and events, and waits for jobs, together, of one user

	Jobs jobs.Policy // how many jobs each user may have, and how long they are kept
}

// Validate checks what an operator can set. The error is a *kernels.OptionError. Launcher, Specs and Log may be missing
// here; only New demands them.
func (o *Options) Validate() error {
	for _, number := range []struct {
		option string
		value  int64
	}{
		{"MaxBody", o.MaxBody}, {"ConnectionsPerKernel", int64(o.ConnectionsPerKernel)},
		{"ConnectionsPerUser", int64(o.ConnectionsPerUser)},
	} {
		if number.value < 0 {
			return kernels.WrongOption(number.option, "%d is negative", number.value)
		}
	}
	switch {
	case strings.TrimSpace(o.Token) != o.Token:
		return kernels.WrongOption("Token", "begins or ends with white space, which no client can send")
	case o.Token != "" && o.Users != nil:
		return kernels.WrongOption("Token", "contradicts Users: its owner would be no user, or all of them")
	}
	if _, err := cleanBase(o.BaseURL); err != nil {
		return kernels.WrongOption("BaseURL", "%v", err)
	}
	for _, origin := range o.AllowOrigins {
		if err := checkOrigin(origin); err != nil && origin != AnyOrigin {
			return kernels.WrongOption("AllowOrigins", "%v", err)
		}
	}
	for _, host := range o.AllowHosts {
		if !validHost(host) {
			return kernels.WrongOption("AllowHosts", "%q is not a host name or address without a port", host)
		}
	}
	return o.Options.Validate()
}

var basePath = regexp.MustCompile(`^(/[A-Za-z0-9._~@+-]+)*$`)

// cleanBase brings a base URL into the form "" or "/a/b".
func cleanBase(base string) (string, error) {
	clean := strings.TrimRight(base, "/")
	if clean != "" && !strings.HasPrefix(clean, "/") {
		clean = "/" + clean
	}
	if !basePath.MatchString(clean) || strings.Contains(clean+"/", "/./") || strings.Contains(clean+"/", "/../") {
		return "", fmt.Errorf("%q is not a path of plain segments", base)
	}
	return clean, nil
}

// checkOrigin rejects a text that can never equal an Origin header.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.Scheme+"://"+u.Host != origin {
		return fmt.Errorf("%q is neither an exact origin like https://host:port nor *", origin)
	}
	return nil
}

// validHost reports whether host can be the host of a Host header: a name or an address, without a port.
func validHost(host string) bool {
	if net.ParseIP(strings.Trim(host, "[]")) != nil {
		return true
	}
	return host != "" && !strings.ContainsAny(host, ":/ []@?#")
}
