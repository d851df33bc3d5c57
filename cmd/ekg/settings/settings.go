// Package settings reads an operator's settings from flags, environment variables and a YAML file. The first of these
// that is present counts. Load checks all values and starts nothing. Its errors name the flag, the variable or the line
// that is wrong.
//
// cmd/ekg calls Load, and passes the Settings on. The package also prints the settings (`ekg config`) and generates
// their documentation. Begin with Option in flags.go: the files flags_*.go have one Option for each setting.
package settings

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/gateway"
	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/local"
)

// Settings are the values of all options. The options of a package are kept as the package has them; cmd/ekg adds what
// no operator sets.
type Settings struct {
	Config string

	Listen  string
	TLSCert string
	TLSKey  string
	Gateway gateway.Options

	// Who may connect.
	TokenFile      string
	UsersFile      string
	OIDC           identity.OIDCOptions
	TokenReview    bool
	TokenAudiences []string
	HubAPI         string
	HubService     string
	HubToken       string
	Identity       identity.Options
	NoAuth         bool
	NoAuthRemote   bool // NoAuth also on an address that other machines reach

	// Which kernels there may be, and where they run.
	Limits     limits.Policy
	Specs      kernelspecs.Options
	Flavors    string
	Launcher   string
	Supervisor string
	Local      local.Options // StateDir, the bounds of logs, StopGrace, Cull and Park are for pods too

	Pods                podbuild.Options // without what Local has
	Kubeconfig          string
	KubeContext         string
	KubePolicy          string
	MasterKeyFile       string
	SecondMasterKeyFile string

	StopKernels   bool
	MetricsListen string
	PProf         bool
	AuditLog      string
	LogFormat     string
	LogLevel      levelOf

	origins map[string]origin // by option name
}

// Source is a kind of place for values. A higher one takes precedence.
type Source int

// Sources of a value, in ascending precedence.
const (
	ByDefault     Source = iota // the default of the option
	ByFile                      // the config file
	ByEnvironment               // an environment variable
	ByFlag                      // the command line
)

// origin says where an option's value comes from.
type origin struct {
	source Source
	place  string // for errors: --name, the variable, or file:line: name
	short  string // for `ekg config`
}

// Place returns the origin of an option's value for an error: --name, the variable, or file:line: name.
func (s *Settings) Place(name string) string { return s.origins[name].place }

// Sources are the places that Load reads.
type Sources struct {
	Flags  func(name string) ([]string, bool) // texts of the command line's flag; false if it lacks the flag
	Getenv func(string) string
}

// Load reads all options. A flag precedes the environment, which precedes the file and the default. Load checks all
// that can be checked without starting anything. It returns all errors at once, each with its place.
func Load(src Sources) (*Settings, error) {
	s := &Settings{origins: map[string]origin{}}
	var errs []error
	take := func(o Option, texts []string, from origin) {
		s.origins[o.Name] = from
		err := readable(texts)
		if err == nil {
			err = o.value.set(s, texts)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", from.place, err))
		}
	}
	if texts, from, ok := src.find(configOption); ok {
		take(configOption, texts, from)
	}
	var file map[string]fileValue
	if s.Config != "" {
		var err error
		if file, err = readConfigFile(s.Config); err != nil {
			// Without the file the other checks would use wrong values.
			return nil, err
		}
	}
	for _, o := range options {
		if texts, from, ok := src.find(o); ok {
			take(o, texts, from)
		} else if v, ok := file[o.Name]; ok {
			line := fmt.Sprintf("%s:%d", s.Config, v.line)
			take(o, v.texts, origin{ByFile, line + ": " + o.Name, line})
		} else if o.def != "" {
			take(o, []string{o.def}, origin{ByDefault, "default of --" + o.Name, "default"})
		} else {
			s.origins[o.Name] = origin{ByDefault, "--" + o.Name, "default"}
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if err := s.complete(src.Getenv); err != nil {
		return nil, err
	}
	return s, s.check()
}

// readable rejects texts that cannot be printed as one line. The error does not repeat the text, since it may be a
// token.
func readable(texts []string) error {
	for _, t := range texts {
		if !utf8.ValidString(t) || strings.ContainsFunc(t, unicode.IsControl) {
			return errors.New("has line breaks or other characters that cannot be printed")
		}
	}
	return nil
}

// find returns an option's texts from the command line or else the environment.
func (src Sources) find(o Option) ([]string, origin, bool) {
	if texts, ok := src.Flags(o.Name); ok {
		return texts, origin{ByFlag, "--" + o.Name, "flag"}, true
	}
	for _, name := range o.Env {
		// An empty variable counts as missing, since container platforms cannot unset a variable of an image.
		if v := src.Getenv(name); v != "" {
			texts := []string{v}
			switch {
			case o.enterpriseLists && strings.HasPrefix(name, "EG_"):
				texts = splitEnterpriseList(v)
			case o.value.shape == Many:
				texts = splitList(v)
			}
			return texts, origin{ByEnvironment, name, name}, true
		}
	}
	if o.Name == "listen" {
		return src.enterpriseListen()
	}
	return nil, origin{}, false
}

// splitList splits the value of a variable at commas.
func splitList(v string) []string {
	var texts []string
	for t := range strings.SplitSeq(v, ",") {
		if t = strings.TrimSpace(t); t != "" {
			texts = append(texts, t)
		}
	}
	return texts
}

// splitEnterpriseList splits a list that may have brackets and quotes. Enterprise Gateway's chart writes null for none.
func splitEnterpriseList(v string) []string {
	texts := splitList(strings.Trim(v, "[]"))
	if len(texts) == 1 && texts[0] == "null" {
		return nil
	}
	for i, t := range texts {
		texts[i] = strings.Trim(t, `'"`)
	}
	return texts
}

// enterpriseListen joins Enterprise Gateway's two variables for the address.
func (src Sources) enterpriseListen() ([]string, origin, bool) {
	ip, port := src.Getenv("EG_IP"), src.Getenv("EG_PORT")
	// Kubernetes sets EG_PORT in pods beside a service named "eg". That value is a URL.
	if strings.HasPrefix(port, "tcp://") {
		port = ""
	}
	var from []string
	if ip != "" {
		from = append(from, "EG_IP")
	} else {
		ip = "127.0.0.1"
	}
	if port != "" {
		from = append(from, "EG_PORT")
	} else {
		port = "8888"
	}
	if len(from) == 0 {
		return nil, origin{}, false
	}
	names := strings.Join(from, ", ")
	return []string{net.JoinHostPort(strings.Trim(ip, "[]"), port)}, origin{ByEnvironment, names, names}, true
}

// complete fills in the defaults that depend on the machine, and makes paths absolute.
func (s *Settings) complete(getenv func(string) string) error {
	if s.Local.StateDir == "" {
		var err error
		if s.Local.StateDir, err = client.DefaultStateDir(getenv); err != nil {
			return err
		}
	}
	paths := []*string{&s.Local.StateDir, &s.Local.RuntimeDir, &s.TokenFile, &s.UsersFile, &s.TLSCert, &s.TLSKey,
		&s.Kubeconfig, &s.KubePolicy, &s.Flavors, &s.MasterKeyFile, &s.SecondMasterKeyFile}
	s.Specs.Dirs = slices.Clone(s.Specs.Dirs)
	for i := range s.Specs.Dirs {
		paths = append(paths, &s.Specs.Dirs[i])
	}
	if s.AuditLog != "-" {
		paths = append(paths, &s.AuditLog)
	}
	if strings.Contains(s.Supervisor, "/") { // a name without a slash is looked up on PATH
		paths = append(paths, &s.Supervisor)
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	return nil
}

// check rejects settings that contradict each other.
func (s *Settings) check() error {
	var errs []error
	refuse := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", s.origins[name].place, fmt.Sprintf(format, args...)))
	}
	token, file := s.origins["token"], s.origins["token-file"]
	switch {
	case s.Gateway.Token == "" || s.TokenFile == "":
	case token.source > file.source:
		s.TokenFile = ""
	case token.source < file.source:
		s.Gateway.Token = ""
	default:
		refuse("token", "there is also %s: give one of them", file.place)
	}
	if s.NoAuth {
		if s.Gateway.Token != "" {
			refuse("token", "contradicts %s", s.origins["no-auth"].place)
		}
		if s.TokenFile != "" {
			refuse("token-file", "contradicts %s", s.origins["no-auth"].place)
		}
		if !s.NoAuthRemote && !IsLocal(s.Listen) {
			refuse("no-auth", "other machines reach %s, and anyone who reaches it could run code; "+
				"--no-auth=remote allows that", s.Listen)
		}
	}
	s.checkUsers(refuse)
	if s.PProf && s.MetricsListen == "" {
		refuse("pprof", "profiles are served on --metrics-listen, which is not given")
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		given := "tls-cert"
		if s.TLSCert == "" {
			given = "tls-key"
		}
		refuse(given, "--tls-cert and --tls-key must be given together")
	}
	if s.Local.LogTotal > 0 && s.Local.LogLimit > s.Local.LogTotal {
		refuse("log-limit", "%s is more than --log-total, %s", formatSize(s.Local.LogLimit), formatSize(s.Local.LogTotal))
	}
	if s.Local.Park.After > 0 && s.Local.Park.Idle == 0 {
		refuse("park-after", "it needs --park-idle")
	}
	if s.Local.Park.Memory > 0 && s.Local.Park.Idle == 0 {
		refuse("park-memory", "it needs --park-idle")
	}
	if err := s.checkGateway(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// IsLocal reports whether a listen address accepts connections from this machine only. It does not look up names other
// than localhost, since their meaning may change.
func IsLocal(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// StrayVariables returns names in the environment that look like settings of ekg or of Enterprise Gateway and have no
// effect. They are logged and not rejected. Kubernetes adds such variables beside a service named "ekg". Deployments of
// Enterprise Gateway set variables that ekg does not use.
func StrayVariables(environ []string) []string {
	known := []string{"EG_IP", "EG_PORT", "EKG_KERNEL_ID", "EKG_GATEWAY_URL"}
	for _, o := range Options() {
		known = append(known, o.Env...)
	}
	var stray []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "EKG_") && !strings.HasPrefix(name, "EG_") ||
			slices.Contains(known, name) || Removed(optionOf(name)) != "" {
			continue
		}
		if _, rest, _ := strings.Cut(name, "_"); strings.HasPrefix(rest, "SERVICE_") || rest == "PORT" ||
			strings.HasPrefix(rest, "PORT_") && strings.Count(rest, "_") > 1 {
			continue // Kubernetes sets it for a service
		}
		stray = append(stray, name)
	}
	slices.Sort(stray)
	return stray
}
