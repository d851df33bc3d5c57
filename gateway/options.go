package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs"
	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Defaults of Options.
const (
	// DefaultStartWait is how long a POST waits for a kernel where the operator has set nothing else.
	DefaultStartWait = 5 * time.Second
	// DefaultMaxBody bounds the bytes of a request's body where Options.MaxBody is 0.
	DefaultMaxBody = 10 << 20
)

// AnyOrigin in Options.AllowOrigins allows pages of every origin. Only a token then keeps other pages out, so New
// rejects it where authentication is off.
const AnyOrigin = "*"

// Specs gives the kernelspecs that may be started; *kernelspecs.Finder implements it.
type Specs interface {
	// List returns all usable specs, ordered by name.
	List() []kernelspecs.Spec
	// Get returns the usable spec of a name, in any case.
	Get(name string) (kernelspecs.Spec, bool)
	// Users returns the lists of users for kernels whose kernelspec is hidden or has gone.
	Users(name string) kernelspecs.Users
}

// Options configures a Gateway.
type Options struct {
	Launcher launcher.Launcher
	Specs    Specs
	Version  string // the program's version, shown by /api
	Log      *slog.Logger
	Gateways launcher.GatewayViewer // the gateways of the same kernels; nil: the Launcher, if it knows them
	Metrics  *metrics.Metrics       // counts what this gateway does; nil for a private one
	Audit    io.Writer              // gets the audit log, each entry as one JSON line in one Write; nil for no audit log

	// Who may ask, and from where.
	Token        string   // required of every request; "" switches authentication off, unless there are users
	Users        Users    // identifies users, who own their kernels; nil: there is one owner, who has Token
	BaseURL      string   // path prefix of all routes; "" and "/" mean no prefix
	AllowOrigins []string // origins that browsers may use the gateway from: scheme://host[:port], exact, or AnyOrigin
	CheckHost    bool     // reject a Host header that names no loopback address and is not in AllowHosts
	AllowHosts   []string // more host names (no port) for CheckHost

	// CompressWebsockets lets clients of other machines have their messages compressed, if they offer it.
	CompressWebsockets bool

	// Starting kernels.
	DefaultKernel string        // spec for requests that name no spec; "" means python3, else the first
	StartWait     time.Duration // how long a POST waits for the kernel; 0 means not at all
	ClientEnv     []string      // variables a client may set, besides KERNEL_*
	Flavors       Flavors       // from which clients may choose; nil: there are no flavors
	MaxBody       int64         // bytes of a request's body; 0 means DefaultMaxBody

	// FlavorsAsSpecs offers each kernelspec with each flavor as a kernelspec of its own, for front ends that cannot
	// choose a flavor.
	FlavorsAsSpecs bool

	// ProfilesAsSpecs offers each kernelspec with each of its profiles as a kernelspec of its own.
	ProfilesAsSpecs bool

	// Limits; 0 means no limit.
	StartsPerMinute      int // kernels that one user may start
	ConnectionsPerKernel int // websockets that lead to one kernel
	ConnectionsPerUser   int // websockets, readers of logs and events, and waits for jobs, together, of one user

	Jobs jobs.Policy // how many jobs each user may have, and how long they are kept

	// Limits is the policy that the Launcher was given, too; nil: no limits.
	Limits *limits.Policy
}

// OptionError says which field of Options is wrong, and why. It is the error of Validate and New.
type OptionError struct {
	Option string // the field's name
	Text   string // what is wrong with its value
}

func (e *OptionError) Error() string { return "gateway: " + e.Option + ": " + e.Text }

// wrongOption makes an *OptionError with a formatted text.
func wrongOption(option, format string, args ...any) error {
	return &OptionError{Option: option, Text: fmt.Sprintf(format, args...)}
}

// Validate checks what an operator can set. The error is an *OptionError. Launcher, Specs and Log may be missing here;
// only New demands them.
func (o *Options) Validate() error {
	for _, number := range []struct {
		option string
		value  int64
	}{
		{"MaxBody", o.MaxBody}, {"StartsPerMinute", int64(o.StartsPerMinute)},
		{"ConnectionsPerKernel", int64(o.ConnectionsPerKernel)}, {"ConnectionsPerUser", int64(o.ConnectionsPerUser)},
	} {
		if number.value < 0 {
			return wrongOption(number.option, "%d is negative", number.value)
		}
	}
	switch {
	case o.StartWait < 0:
		return wrongOption("StartWait", "%v is negative", o.StartWait)
	case strings.TrimSpace(o.Token) != o.Token:
		return wrongOption("Token", "begins or ends with white space, which no client can send")
	case o.Token != "" && o.Users != nil:
		return wrongOption("Token", "contradicts Users: its owner would be no user, or all of them")
	}
	if _, err := cleanBase(o.BaseURL); err != nil {
		return wrongOption("BaseURL", "%v", err)
	}
	for _, origin := range o.AllowOrigins {
		if err := checkOrigin(origin); err != nil && origin != AnyOrigin {
			return wrongOption("AllowOrigins", "%v", err)
		}
	}
	for _, host := range o.AllowHosts {
		if !validHost(host) {
			return wrongOption("AllowHosts", "%q is not a host name or address without a port", host)
		}
	}
	for _, name := range o.ClientEnv {
		if !envName.MatchString(name) || launcher.ReservedVariable(name) {
			return wrongOption("ClientEnv", "clients may not set %q", name)
		}
	}
	return nil
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
