// Package kernels finds, starts and ends kernels on behalf of users. It is the only place that decides what a user may
// do with a kernel, how many kernels a user may start, and which kernelspec, profile and flavor a start gets. Package
// gateway calls it for clients, and package jobs for the authors of jobs, so the same checks hold for both. It knows no
// HTTP: it imports no net/http.
//
// A Caller is a user with what the user may do. An Act is one thing that is done for a caller: a client's request, or a
// step of a job. It carries the id of the request, and collects what the logs say about it. A Wish is a kernel as a
// request or a job's record asks for it, before anything is looked up. Begin with Service.Start, which turns a Wish
// into a launcher.Request, decides about it, and starts the kernel.
//
// An error is one of three kinds. A Refusal has a Class and a sentence for the caller. Errors of package launcher, and
// those of requests to supervisors, get their Class and sentence by RefusalOf. All others are Internal, and the caller
// reads no detail of them. Package gateway has one status for each Class.
//
// A supervisor is reached through an Edge, which the package's user implements. The package starts no goroutine.
package kernels

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// DefaultStartWait is how long a start waits for its kernel where the operator has set nothing else.
const DefaultStartWait = 5 * time.Second

// Deadlines for launcher and supervisor. A frozen one must not block a caller without a limit.
const (
	ReadTime   = 10 * time.Second // reads of kernels
	actionTime = 20 * time.Second // an interrupt
	stopTime   = 90 * time.Second
	dialTime   = 10 * time.Second
)

// Specs gives the kernelspecs that may be started; *kernelspecs.Finder implements it.
type Specs interface {
	// List returns all usable specs, ordered by name.
	List() []kernelspecs.Spec
	// Get returns the usable spec of a name, in any case.
	Get(name string) (kernelspecs.Spec, bool)
	// Users returns the lists of users for kernels whose kernelspec is hidden or has gone.
	Users(name string) kernelspecs.Users
}

// Options configures a Service.
type Options struct {
	Launcher launcher.Launcher
	Specs    Specs
	Log      *slog.Logger
	Metrics  *metrics.Metrics // counts what the service does; nil for a private one
	Audit    io.Writer        // gets the audit log, each entry as one JSON line in one Write; nil for no audit log

	DefaultKernel string        // spec for wishes that name no spec; "" means python3, else the first
	StartWait     time.Duration // how long Start waits for the kernel; 0 means not at all
	ClientEnv     []string      // variables a client may set, besides KERNEL_*
	Flavors       Flavors       // from which clients may choose; nil: there are no flavors

	StartsPerMinute int  // kernels that one user may start; 0 means no limit
	Shared          bool // there are users, who own their kernels; else there is one owner

	// Limits is the policy that the Launcher was given, too; nil: no limits.
	Limits *limits.Policy
}

// OptionError says which field of the options is wrong, and why. It is the error of Validate.
type OptionError struct {
	Option string // the field's name
	Text   string // what is wrong with its value
}

func (e *OptionError) Error() string { return "gateway: " + e.Option + ": " + e.Text }

// WrongOption makes an *OptionError with a formatted text.
func WrongOption(option, format string, args ...any) error {
	return &OptionError{Option: option, Text: fmt.Sprintf(format, args...)}
}

// Validate checks what an operator can set. The error is an *OptionError.
func (o *Options) Validate() error {
	switch {
	case o.StartsPerMinute < 0:
		return WrongOption("StartsPerMinute", "%d is negative", o.StartsPerMinute)
	case o.StartWait < 0:
		return WrongOption("StartWait", "%v is negative", o.StartWait)
	}
	for _, name := range o.ClientEnv {
		if !envName.MatchString(name) || launcher.ReservedVariable(name) {
			return WrongOption("ClientEnv", "clients may not set %q", name)
		}
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Edge is what the service needs of the edge around it. Package gateway implements it over HTTP.
type Edge interface {
	// Ask sends a question about a kernel to the kernel's supervisor, and returns the answer. The error is an
	// *UndeliveredError, or the supervisor's own.
	Ask(ctx context.Context, a *Act, kernel string, q Question) ([]byte, error)
	// Ended ends the connections that still lead to a kernel that was stopped.
	Ended(kernel string)
}

// Question is a request to a supervisor.
type Question struct {
	Verb   string        // method of HTTP
	Action string        // last part of the path; "" for the kernel itself
	Body   []byte        // JSON; nil for none
	Limit  time.Duration // for the answer
}

// DialError says that a supervisor was not reached, so nothing was sent to it.
type DialError struct{ Err error }

func (e *DialError) Error() string { return "dial the supervisor: " + e.Err.Error() }

// Unwrap returns the launcher's error.
func (e *DialError) Unwrap() error { return e.Err }

// UndeliveredError says that a supervisor gave no usable answer.
type UndeliveredError struct{ Err error }

func (e *UndeliveredError) Error() string { return "supervisor: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *UndeliveredError) Unwrap() error { return e.Err }

// Service finds, starts and ends kernels. All methods may be called concurrently.
type Service struct {
	// Fixed.
	opts      Options
	launcher  launcher.Launcher
	log       *slog.Logger
	metrics   *metrics.Metrics
	edge      Edge
	clientEnv map[string]bool
	audit     *Audit

	// Safe for concurrent use by themselves.
	starts  *limits.Rate
	lookups *limits.Rate // of kernels that the launcher does not know
	rooms   rooms
	pending pendingStarts
}

// New returns a service for the kernels of a launcher. The options are valid, and none of Launcher, Specs, Log and
// Metrics is missing.
func New(o Options, edge Edge) *Service {
	s := &Service{opts: o, launcher: o.Launcher, log: o.Log, metrics: o.Metrics, edge: edge,
		clientEnv: map[string]bool{}, audit: &Audit{to: o.Audit, log: o.Log, metrics: o.Metrics},
		starts: limits.NewRate(o.StartsPerMinute), lookups: limits.NewRate(lookupsPerMinute)}
	for _, name := range o.ClientEnv {
		s.clientEnv[name] = true
	}
	return s
}

// Dial connects to a kernel's supervisor. The error is a *DialError.
func (s *Service) Dial(ctx context.Context, id string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := s.launcher.Dial(ctx, id)
	if err != nil {
		return nil, &DialError{err}
	}
	return conn, nil
}

// Sole reports whether there is one owner, and no users.
func (s *Service) Sole() bool { return !s.opts.Shared }

// Log returns the service's log.
func (s *Service) Log() *slog.Logger { return s.log }
