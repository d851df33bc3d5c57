// Package launcher is the contract between the gateway and whatever runs kernels: what starting, finding, changing and
// stopping a kernel means. It holds no code that runs kernels; that is in launcher/local (processes of this machine).
//
// A kernel is run by its supervisor (package launcher/supervisor), a Jupyter gateway for exactly that kernel, which
// outlives the gateway. A Launcher starts supervisors, finds those that already run, watches their status streams and
// lends connections to them. It keeps no truth of its own: what it knows it can read again after a restart.
//
// The package starts no goroutine.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// State is a kernel's execution state, in the words of Jupyter's REST model.
type State string

// The states a kernel can be in. Starting ends with the first answer of the kernel, Dead with its removal.
const (
	Starting   State = "starting"
	Idle       State = "idle"
	Busy       State = "busy"
	Restarting State = "restarting"
	Dead       State = "dead"
)

// StateOf reads a state as a supervisor tells it. One of a later version means that the kernel is up and may be in use.
func StateOf(s string) State {
	switch st := State(s); st {
	case Starting, Idle, Busy, Restarting, Dead:
		return st
	}
	return Busy
}

// Errors a Launcher returns, tested with errors.Is. Every other error is internal: it is logged, never shown.
var (
	// ErrNotFound says that no such kernel exists, as far as can be known for sure. It may be wrapped in a *GoneError.
	ErrNotFound = errors.New("kernel not found")
	// ErrConflict says that the wanted id belongs to a kernel of another owner or spec.
	ErrConflict = errors.New("kernel id is in use")
	// ErrUnavailable says that at this moment nothing certain can be said of the kernel (503, never 404).
	ErrUnavailable = errors.New("kernel state cannot be told at this moment")
	// ErrNoSupervisor says that the kernel is being started and that its supervisor does not answer yet: what it waits for
	// is the kernel's Reason. It is an ErrUnavailable.
	ErrNoSupervisor = fmt.Errorf("%w: it is being started", ErrUnavailable)
)

// GoneError is an ErrNotFound of a kernel that is known to have existed.
type GoneError struct {
	ID     string
	Owner  string    // who it belonged to; "" where that is not known, or where there is only one owner
	Reason string    // one sentence: why it ended
	At     time.Time // when it ended
}

// Error gives the reason the kernel is gone for.
func (e *GoneError) Error() string {
	return fmt.Sprintf("kernel %s is gone since %s: %s", e.ID, e.At.UTC().Format(time.RFC3339), e.Reason)
}

// Is makes errors.Is(err, ErrNotFound) true.
func (e *GoneError) Is(target error) bool { return target == ErrNotFound }

// RefusedError says that what a request or a kernelspec asks for is not allowed here, and names it.
type RefusedError struct{ Reason string }

// Error gives the reason.
func (e *RefusedError) Error() string { return e.Reason }

// FailedError says that a kernel could not be started and why, in one sentence that is meant for its owner.
type FailedError struct {
	Reason string
	Class  Failure // "" where it is not known
}

// Error gives the reason.
func (e *FailedError) Error() string { return e.Reason }

// Request asks for one kernel.
type Request struct {
	ID         string            // see ValidID
	Owner      string            // who it belongs to; "" where there is only one owner
	Groups     []string          // of the owner, as far as their kernels are counted
	Spec       kernelspecs.Spec  // what to run
	Env        map[string]string // the client's variables, already filtered by the gateway
	WorkingDir string            // wanted working directory; ignored where it does not exist
	Cull       kernelspecs.Cull  // when the owner's kernels are ended, where the operator wants something else for them than for all
}

// Session is an entry of Jupyter's /api/sessions. It is stored with its kernel.
type Session struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// Right is what somebody may do with a kernel of somebody else.
type Right string

// The rights there are; Use includes Read.
const (
	Read Right = "read" // see what it says
	Use  Right = "use"  // run code in it, interrupt and restart it
)

// Grant lets one user, or all users of a group, at a kernel. It names one of the two.
type Grant struct {
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	Right Right  `json:"right"`
}

// Notes is what clients have had noted down with a kernel. It is stored with the kernel, so it is the same for every
// gateway and ends with the kernel. Grants that cannot be read are none.
type Notes struct {
	Sessions   []Session `json:"sessions,omitempty"`
	SharedWith []Grant   `json:"shared_with,omitempty"`
}

// Clone returns notes that share nothing with n.
func (n Notes) Clone() Notes {
	return Notes{Sessions: slices.Clone(n.Sessions), SharedWith: slices.Clone(n.SharedWith)}
}

// Kernel is what is known of one kernel.
type Kernel struct {
	ID           string
	SpecName     string
	Owner        string
	Groups       []string // Request.Groups
	Created      time.Time
	State        State
	Reason       string    // one sentence: why it is dead, or what it waits for; "" otherwise
	Limit        string    // of a dead one: the name of the limit for which it was not started; "" if that is not why
	LastActivity time.Time // UTC
	CullAt       time.Time // UTC; when it will be culled if nothing happens to it; zero: it will not
	KeepUntil    time.Time // UTC; until when its owner has it kept; zero: nobody has said so
	Connections  int       // websockets that a client has sent something on
	Stale        bool      // no status stream at this moment: State, LastActivity and Connections are the last known
	LogBytes     int64     // bytes held by the kernel's message log
	Notes
}

// Culled is a kernel that was ended because it was idle, busy or there for too long.
type Culled struct {
	ID       string
	SpecName string
	Owner    string
	Reason   string    // one sentence
	At       time.Time // UTC
	Usage
}

// Usage is what a kernel has held from when it was started, or was again after an earlier end. Launchers store it as JSON.
type Usage struct {
	Started time.Time `json:"started,omitzero"`  // UTC; when its process was started, or its pod had a node; zero: it is not known, or never was
	Seconds int64     `json:"seconds,omitempty"` // from then until it had ended
	GPUs    int64     `json:"gpus,omitempty"`    // devices, or parts of one, that its pod held; 0 also where nobody hands them out
}

// NewestFirst orders culled kernels as Launcher.Culled returns them, for slices.SortFunc.
func NewestFirst(a, b Culled) int {
	return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID))
}

// ByCreation orders kernels as Launcher.Kernels returns them, for slices.SortFunc.
func ByCreation(a, b Kernel) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// Launcher runs kernels. All methods may be called concurrently. Those that name a kernel return ErrNotFound (often as
// *GoneError) or ErrUnavailable as it applies.
type Launcher interface {
	// Start starts a kernel and returns once it will live on without this process, which is before the kernel answers:
	// State is Starting then. If a kernel with the id exists and has the same owner and spec name, that one is returned and
	// created is false; if it differs, ErrConflict. A kernel that cannot be started leaves nothing behind and is
	// reported as *FailedError, one that may not be as *RefusedError or, where there are too many, as *LimitError. Where that is
	// decided elsewhere and takes long, State is Starting and the decision comes later: a kernel that is refused then is dead.
	Start(ctx context.Context, req Request) (k Kernel, created bool, err error)

	// Kernel returns one kernel. A dead one is returned, with its reason, for 15 minutes after its end.
	Kernel(ctx context.Context, id string) (Kernel, error)

	// Kernels returns all kernels, the dead ones of the last 15 minutes included, ordered by creation. It is never
	// partial: ErrUnavailable instead.
	Kernels(ctx context.Context) ([]Kernel, error)

	// Culled returns the kernels that were culled in the last days and not started again since, the newest first, whether or not
	// they are still shown as dead.
	Culled(ctx context.Context) ([]Culled, error)

	// Wait returns the kernel as soon as cond holds for it, or as it is when ctx ends, with ctx's error.
	Wait(ctx context.Context, id string, cond func(Kernel) bool) (Kernel, error)

	// Revive starts a kernel again whose supervisor has ended, under its id and with what Start was given. It does
	// nothing if the supervisor lives: then its own restart route is the way. Limits count it as a start; one over a limit
	// is a *LimitError, and the kernel stays dead.
	Revive(ctx context.Context, id string) (Kernel, error)

	// Restarting is to be called before a supervisor is asked to restart its kernel, and done when it has answered. Of a
	// kernel that is dead while its supervisor still lives that is a start: the error is a *LimitError if there are too many.
	Restarting(ctx context.Context, id string) (done func(), err error)

	// Stop ends a kernel and returns when it is gone, its processes included. Stopping a dead kernel removes it.
	Stop(ctx context.Context, id, reason string) error

	// Claim says that a client knows of the kernel: it was told the id, or has named it. It does not block. Where a start can
	// outlive its gateway, kernels that nobody has claimed for some minutes are removed.
	Claim(id string)

	// UpdateNotes replaces the kernel's notes by what change returns for the present ones, atomically with respect to
	// every other gateway. Change may be called several times, and owns what it is given.
	UpdateNotes(ctx context.Context, id string, change func(Notes) (Notes, error)) (Notes, error)

	// Dial connects to the kernel's supervisor, which speaks HTTP on it; encryption, where there is any, is the
	// connection's. The error is ErrNotFound, ErrUnavailable (ErrNoSupervisor while there is none yet), or *GoneError with
	// the reason where the supervisor has ended.
	Dial(ctx context.Context, id string) (net.Conn, error)

	// Measure returns what metrics are made of. It asks nobody and takes no longer than a look at memory.
	Measure() Measures

	// Token returns the bearer token that the kernel's supervisor demands of every request, "" if it demands none.
	Token(id string) string

	// Close stops watching and waits for every goroutine. Kernels go on.
	Close() error
}

type requestIDKey struct{}

// WithRequestID has what a launcher asks of supervisors with ctx known under the id of a request, in the logs of both.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns what WithRequestID was told, "" if it was not called.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// MaxLaunchTimeout bounds what a client may say of its patience in KERNEL_LAUNCH_TIMEOUT.
const MaxLaunchTimeout = 24 * time.Hour

// LaunchTimeout reads the value of KERNEL_LAUNCH_TIMEOUT: seconds, with a fraction if the client likes. It reports whether it is one,
// more than 0 and up to MaxLaunchTimeout.
func LaunchTimeout(text string) (time.Duration, bool) {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= MaxLaunchTimeout.Seconds()) { // and not NaN
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}

var canonicalUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// ValidID reports whether id is a kernel id: a UUID in lower case with hyphens, as RFC 9562 section 4 prints it.
func ValidID(id string) bool { return canonicalUUID.MatchString(id) }
