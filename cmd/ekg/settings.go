package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// settings are the values of all options.
type settings struct {
	config string

	listen                     string
	baseURL                    string
	token                      string
	tokenFile                  string
	usersFile                  string
	oidcIssuer                 string
	oidcAudience               string
	oidcName                   string
	oidcGroups                 string
	tokenReview                bool
	tokenAudiences             []string
	hubAPI                     string
	hubService                 string
	adminUsers                 []string
	adminGroups                []string
	authCache                  durationOf
	noAuth                     bool
	allowUnauthenticatedRemote bool
	allowOrigins               []string
	allowHosts                 []string
	tlsCert                    string
	tlsKey                     string
	maxBody                    int64
	startsPerMinute            int
	connectionsPerUser         int
	connectionsPerKernel       int

	maxKernels         int
	maxKernelsPerUser  int
	maxKernelsPerGroup int
	maxKernelsPerSpec  int
	maxGPUsPerUser     int
	maxGPUsPerGroup    int

	kernelspecDirs []string
	defaultKernel  string
	startWait      durationOf
	launcher       string
	supervisor     string
	stateDir       string
	runtimeDir     string
	clientEnv      []string
	inheritEnv     []string
	logLimit       int64
	logTotal       int64
	stopGrace      durationOf

	cullIdleTimeout durationOf
	cullInterval    durationOf
	cullConnected   bool
	cullBusy        bool
	cullBusyLimit   durationOf
	cullMaxAge      durationOf
	cullWarning     durationOf
	cullKeepLimit   durationOf
	cullIdleMax     durationOf
	cullActivity    []string
	cullCPU         float64
	cullGPU         float64

	kubeconfig      string
	kubeContext     string
	kubeNamespace   string
	kubePolicy      string
	supervisorImage string
	kernelImage     string
	masterKeyFile   string
	startLimit      durationOf
	keepEndings     durationOf
	kubePeers       string
	podIP           string

	stopKernels   bool
	drainDelay    durationOf
	metricsListen string
	pprof         bool
	auditLog      string
	logFormat     string
	logLevel      levelOf

	origins map[string]origin // by name of the option
}

// rank orders where values come from.
type rank int

const (
	byDefault rank = iota
	byFile
	byEnvironment
	byFlag
)

// origin is where the value of an option comes from.
type origin struct {
	rank  rank
	place string // as people look for it: --name, the variable, or file:line: name
	short string // as `ekg config` shows it
}

// sources is where load looks.
type sources struct {
	flags  func(name string) ([]string, bool) // of the command line; false where it does not have the flag
	getenv func(string) string
}

// load reads all options: flag before environment before file before default. It checks whatever can be checked without
// starting anything, and returns all that is wrong at once.
func load(src sources) (*settings, error) {
	s := &settings{origins: map[string]origin{}}
	var errs []error
	take := func(o option, texts []string, from origin) {
		s.origins[o.name] = from
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
	if s.config != "" {
		var err error
		if file, err = readConfigFile(s.config); err != nil {
			// Without the file the rest would be judged by values nobody wants.
			return nil, err
		}
	}
	for _, o := range options {
		if texts, from, ok := src.find(o); ok {
			take(o, texts, from)
		} else if v, ok := file[o.name]; ok {
			take(o, v.texts, origin{byFile, fmt.Sprintf("%s:%d: %s", s.config, v.line, o.name), fmt.Sprintf("%s:%d", s.config, v.line)})
		} else if o.def != "" {
			take(o, []string{o.def}, origin{byDefault, "default of --" + o.name, "default"})
		} else {
			s.origins[o.name] = origin{byDefault, "--" + o.name, "default"}
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if err := s.complete(src.getenv); err != nil {
		return nil, err
	}
	return s, s.check()
}

// readable refuses what no line of a settings file, and none of a log, could hold. It does not repeat it: it may be a token.
func readable(texts []string) error {
	for _, t := range texts {
		if !utf8.ValidString(t) || strings.ContainsFunc(t, unicode.IsControl) {
			return errors.New("has line breaks or other characters that cannot be printed")
		}
	}
	return nil
}

// find returns what the command line or else the environment says about an option.
func (src sources) find(o option) ([]string, origin, bool) {
	if texts, ok := src.flags(o.name); ok {
		return texts, origin{byFlag, "--" + o.name, "flag"}, true
	}
	for _, name := range o.env {
		// An empty variable is none: container platforms cannot leave one out that an image has set.
		if v := src.getenv(name); v != "" {
			texts := []string{v}
			if o.value.shape == many {
				texts = splitList(v)
			}
			return texts, origin{byEnvironment, name, name}, true
		}
	}
	if o.name == "listen" {
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

// enterpriseListen joins Enterprise Gateway's two variables for the address.
func (src sources) enterpriseListen() ([]string, origin, bool) {
	ip, port := src.getenv("EG_IP"), src.getenv("EG_PORT")
	// To pods beside a service named "eg" Kubernetes gives an EG_PORT of its own.
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
	return []string{net.JoinHostPort(strings.Trim(ip, "[]"), port)}, origin{byEnvironment, names, names}, true
}

// complete fills in the defaults that depend on the machine, and makes paths absolute.
func (s *settings) complete(getenv func(string) string) error {
	if s.stateDir == "" {
		switch {
		case filepath.IsAbs(getenv("XDG_STATE_HOME")): // relative ones are to be ignored
			s.stateDir = filepath.Join(getenv("XDG_STATE_HOME"), "ekg")
		case getenv("HOME") != "":
			s.stateDir = filepath.Join(getenv("HOME"), ".local", "state", "ekg")
		default:
			return errors.New("--state-dir: neither $XDG_STATE_HOME nor $HOME is set to derive it from")
		}
	}
	paths := []*string{&s.stateDir, &s.runtimeDir, &s.tokenFile, &s.usersFile, &s.tlsCert, &s.tlsKey,
		&s.kubeconfig, &s.kubePolicy, &s.masterKeyFile}
	s.kernelspecDirs = slices.Clone(s.kernelspecDirs)
	for i := range s.kernelspecDirs {
		paths = append(paths, &s.kernelspecDirs[i])
	}
	if s.auditLog != "-" {
		paths = append(paths, &s.auditLog)
	}
	if strings.Contains(s.supervisor, "/") { // otherwise it is looked for on PATH
		paths = append(paths, &s.supervisor)
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

// check refuses what contradicts itself.
func (s *settings) check() error {
	var errs []error
	refuse := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: %s", s.origins[name].place, fmt.Sprintf(format, args...)))
	}
	token, file := s.origins["token"], s.origins["token-file"]
	switch {
	case s.token == "" || s.tokenFile == "":
	case token.rank > file.rank:
		s.tokenFile = ""
	case token.rank < file.rank:
		s.token = ""
	default:
		refuse("token", "there is also %s: give one of them", file.place)
	}
	if s.noAuth {
		if s.token != "" {
			refuse("token", "contradicts %s", s.origins["no-auth"].place)
		}
		if s.tokenFile != "" {
			refuse("token-file", "contradicts %s", s.origins["no-auth"].place)
		}
		if !s.allowUnauthenticatedRemote && !isLocal(s.listen) {
			refuse("no-auth", "%s can be reached from other machines, and whoever reaches it could run code; if that is wanted, say --allow-unauthenticated-remote", s.listen)
		}
	}
	s.checkUsers(refuse)
	if s.pprof && s.metricsListen == "" {
		refuse("pprof", "profiles are served on --metrics-listen, which is not given")
	}
	if (s.tlsCert == "") != (s.tlsKey == "") {
		given := "tls-cert"
		if s.tlsCert == "" {
			given = "tls-key"
		}
		refuse(given, "--tls-cert and --tls-key are only of use together")
	}
	if s.cullIdleMax > 0 && (s.cullIdleTimeout == 0 || s.cullIdleTimeout > s.cullIdleMax) {
		refuse("cull-idle-max", "kernelspecs could have their kernels be idle for %s at most, others could for longer (--cull-idle-timeout %s)",
			s.cullIdleMax, map[bool]string{true: "for ever", false: s.cullIdleTimeout.String()}[s.cullIdleTimeout == 0])
	}
	if s.logLimit > s.logTotal {
		refuse("log-limit", "%s is more than --log-total, %s", formatSize(s.logLimit), formatSize(s.logTotal))
	}
	if err := s.checkGateway(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isLocal reports whether only this machine can reach a listen address. Names other than localhost are not looked up:
// what they mean may change.
func isLocal(listen string) bool {
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
