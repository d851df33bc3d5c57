// Package launcher is the contract between the gateway and the code that runs kernels. It says what starting, finding,
// changing and stopping a kernel means. Two packages implement it: launcher/local runs kernels as processes of this
// machine, and launcher/kube runs them as pods of a Kubernetes cluster. Begin with the interface Launcher, then with
// Request, which asks for a kernel, and Kernel, which describes one.
//
// A kernel is run by its supervisor (package launcher/supervisor), a Jupyter gateway for exactly that kernel. The
// supervisor outlives the gateway. A Launcher starts supervisors, finds those that already run, follows their status
// streams and connects to them. It stores nothing of its own: after a restart it reads everything again.
//
// The package starts no goroutine.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Errors that a Launcher returns, tested with errors.Is. Every other error is internal: it is logged, never shown.
var (
	// ErrNotFound says that the kernel certainly does not exist. It may be wrapped in a *GoneError.
	ErrNotFound = errors.New("kernel not found")
	// ErrConflict says that a kernel of another owner or spec has the id. It also says that an ended kernel of another
	// owner had it.
	ErrConflict = errors.New("kernel id is in use")
	// ErrUnavailable says that the state of the kernel is not known at this moment (503, never 404).
	ErrUnavailable = errors.New("kernel state is not known at this moment")
	// ErrNoSupervisor says that the kernel is being started and that its supervisor does not answer yet. The kernel's
	// Reason says what it waits for. It is an ErrUnavailable.
	ErrNoSupervisor = fmt.Errorf("%w: it is being started", ErrUnavailable)
)

// UnsupportedError says that a kernel lives and that this gateway cannot speak to its supervisor. It is an
// ErrUnavailable.
type UnsupportedError struct {
	Reason string // one sentence for the kernel's owner: why, and what helps
}

// Error returns the reason.
func (e *UnsupportedError) Error() string { return e.Reason }

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnavailable }

// GoneError is the ErrNotFound of a kernel that is known to have existed.
type GoneError struct {
	ID     string
	Owner  string    // "" if it is not known, or if there is only one owner
	Reason string    // one sentence: why it ended
	At     time.Time // when it ended
}

// Error says when and why the kernel ended.
func (e *GoneError) Error() string {
	return fmt.Sprintf("kernel %s is gone since %s: %s", e.ID, e.At.UTC().Format(time.RFC3339), e.Reason)
}

// Is makes errors.Is(err, ErrNotFound) true.
func (e *GoneError) Is(target error) bool { return target == ErrNotFound }

// DiskFull reports whether err says that a disk of the gateway is full, or that the gateway has used up its quota.
func DiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// OfOther reports whether err is the end of a kernel of another owner than the given one.
func OfOther(err error, owner string) bool {
	var gone *GoneError
	return errors.As(err, &gone) && gone.Owner != owner
}

// RefusedError says that a request or a kernelspec asks for something that is not allowed here, and names it.
type RefusedError struct{ Reason string }

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Reason }

// FailedError says that a kernel could not be started and why, in one sentence for its owner.
type FailedError struct {
	Reason string
	Class  Failure // "" if it is not known
}

// Error returns the reason.
func (e *FailedError) Error() string { return e.Reason }

// Request asks for one kernel.
type Request struct {
	ID     string                // see ValidID
	AnyID  bool                  // no client has chosen ID: a kernel with another one does, as a warm kernel has
	Owner  string                // "" if there is only one owner
	Groups []string              // of the owner, as far as limits count their kernels
	Spec   kernelspecs.Spec      // what to run
	Env    map[string]string     // the client's variables, already filtered by the gateway
	Cull   kernelspecs.CullTimes // the operator's culling settings for this owner; unset ones are those for all kernels
	Flavor *flavor.Flavor        // which GPU it gets; nil: what spec and variables say; not modified

	Job bool // it is for a job: kernels that people wait for go before it

	// OwnerGroups are all groups of the owner, for labels of pods. A restart knows only the one that a label names.
	OwnerGroups []string

	// Parsed from Env by ParseEnv.
	WorkingDir    string        // wanted working directory, an absolute path; ignored if it does not exist; "" for none
	LaunchTimeout time.Duration // how long the client waits for the start; 0 if not set
}

// MaxLaunchTimeout is the longest KERNEL_LAUNCH_TIMEOUT that is accepted.
const MaxLaunchTimeout = 24 * time.Hour

// The client's variables of the kernel's working directory: its path, and its files.FolderID on the client's machine.
// With the second one, a folder of the same path that is another folder is not used.
const (
	WorkingDirVariable = "KERNEL_WORKING_DIR"
	FolderIDVariable   = "KERNEL_WORKING_DIR_ID"
)

// ParseEnv sets WorkingDir and LaunchTimeout from the client's variables. KERNEL_LAUNCH_TIMEOUT is in seconds and may
// have a fraction. A KERNEL_WORKING_DIR that is not an absolute path is ignored. So is one that names another folder
// here than KERNEL_WORKING_DIR_ID says. The error names the invalid variable.
func (r *Request) ParseEnv() error {
	r.WorkingDir, r.LaunchTimeout = "", 0
	dir, id := r.Env[WorkingDirVariable], r.Env[FolderIDVariable]
	if filepath.IsAbs(dir) && (id == "" || files.FolderID(dir) == id) {
		r.WorkingDir = dir
	}
	text := r.Env["KERNEL_LAUNCH_TIMEOUT"]
	if text == "" {
		return nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds <= MaxLaunchTimeout.Seconds()) { // also rejects NaN
		return fmt.Errorf("KERNEL_LAUNCH_TIMEOUT is not a number of seconds up to %.0f", MaxLaunchTimeout.Seconds())
	}
	r.LaunchTimeout = time.Duration(seconds * float64(time.Second))
	return nil
}

// Timeout returns how long the client waits for the start: LaunchTimeout, else the kernelspec's; 0 if neither is set.
func (r *Request) Timeout() time.Duration { return cmp.Or(r.LaunchTimeout, r.Spec.LaunchTimeout) }

// Session is an entry of Jupyter's /api/sessions. It is stored with its kernel.
type Session struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`

	// User has created it; "" if there is only one owner, or if it is not known.
	User string `json:"user,omitempty"`
}

// Right is what a user may do with another user's kernel.
type Right string

// The rights. Use includes Read.
const (
	Read Right = "read" // see its output
	Use  Right = "use"  // run code in it, interrupt and restart it
)

// Grant gives one user, or all users of a group, a right to a kernel. Exactly one of User and Group is set.
type Grant struct {
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	Right Right  `json:"right"`
}

// Notes are what clients have stored with a kernel: its sessions and its grants. Every gateway reads the same notes.
// They end with the kernel. Grants that cannot be read are ignored, and SharedToUse is then set.
type Notes struct {
	Sessions   []Session `json:"sessions,omitempty"`
	SharedWith []Grant   `json:"shared_with,omitempty"`

	// SharedToUse: another user has or had the right to use the kernel. Share sets it. Nothing clears it: files of that
	// user in the kernel's container, as one that IPython runs when it starts, survive a restart.
	SharedToUse bool `json:"shared_to_use,omitempty"`
}

// Share replaces the grants.
func (n *Notes) Share(grants []Grant) {
	n.SharedToUse = n.SharedToUse || canUse(n.SharedWith) || canUse(grants)
	n.SharedWith = grants
}

func canUse(grants []Grant) bool {
	return slices.ContainsFunc(grants, func(g Grant) bool { return g.Right != Read })
}

// Clone returns notes that share nothing with n.
func (n Notes) Clone() Notes {
	n.Sessions, n.SharedWith = slices.Clone(n.Sessions), slices.Clone(n.SharedWith)
	return n
}

// Kernel is the present knowledge about one kernel.
type Kernel struct {
	ID           string
	SpecName     string
	Flavor       string     // name of Request.Flavor; "" for none
	Profile      string     // name of the kernelspec's profile; "" for none
	GPUs         gpu.Amount // that it asks for; 0 if the launcher does not assign GPUs
	Owner        string
	Groups       []string // Request.Groups
	Created      time.Time
	State        api.State
	Reason       string     // one sentence: why it is dead, or what it waits for; "" otherwise
	Limit        string     // name of the limit that prevented its start; "" if it is not dead for that
	LastActivity time.Time  // UTC
	CullAt       time.Time  // UTC; when it is culled unless something happens; zero: never
	KeepUntil    time.Time  // UTC; until when its owner keeps it; zero: not set
	Connections  int        // websockets; see session.Table.Counted in launcher/supervisor
	Stale        bool       // there is no status stream: State, LastActivity and Connections are the last known
	LogBytes     int64      // bytes held by the kernel's message log
	LastDeath    api.Death  // zero: it has not died, as far as its supervisor knows
	Parked       api.Parked // zero: it keeps its GPU, or has none
	Memory       int64      // bytes, resident, of its processes when they were last measured; 0: not measured
	GPU          []api.GPU  // devices that it holds, if they are sampled; without their flavors; not modified
	GPUUse       api.GPUUse // of them
	Notes
}

// EndedKernel is a kernel that was ended because it was idle, busy or alive for too long, or one that died.
type EndedKernel struct {
	ID       string
	SpecName string
	Owner    string
	Reason   string    // one sentence
	Culled   bool      // false: it died or could not be started
	At       time.Time // UTC
	Usage
}

// Usage is what a kernel has used since it was started, or restarted after an earlier end. Launchers store it as JSON.
type Usage struct {
	// UTC; when its process was started, or its pod was scheduled; zero: not known, or never
	Started time.Time `json:"started,omitzero"`
	Seconds int64     `json:"seconds,omitempty"` // from Started to its end, or until now
	// GPUs that its pod held; 0 if the launcher does not assign GPUs
	GPUs gpu.Amount `json:"gpus,omitempty"`
}

// KernelUsage is what one kernel uses, or has used.
type KernelUsage struct {
	ID       string
	SpecName string
	Flavor   string // "" for none
	Owner    string
	End      time.Time  // UTC; zero: it lives
	GPUUse   api.GPUUse // of its GPUs, since it was started
	Usage
}

// NewestFirst orders kernels as Launcher.Ended returns them, for slices.SortFunc.
func NewestFirst(a, b EndedKernel) int {
	return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID))
}

// CompareCreation orders the creation times and ids of two kernels as Launcher.Kernels returns the kernels.
func CompareCreation(created time.Time, id string, otherCreated time.Time, otherID string) int {
	return cmp.Or(created.Compare(otherCreated), cmp.Compare(id, otherID))
}

// Launcher runs kernels. All methods may be called concurrently. Methods that take a kernel id return ErrNotFound
// (often as *GoneError) or ErrUnavailable where they apply.
type Launcher interface {
	// Start starts a kernel. It returns when the kernel no longer needs this process, which is before the kernel answers:
	// State is Starting. With AnyID the kernel may be a warm one, which has another id.
	//
	// If a kernel with the id, the owner and the spec name exists already, Start returns it, and created is false. If its
	// owner or spec name is another one, the error is ErrConflict. It is ErrConflict, too, while the end of another
	// owner's kernel with the id is remembered, since that kernel's clients would reach the new one.
	//
	// The error is *RefusedError if the kernel is not allowed, *LimitError if there are too many, and *FailedError if it
	// cannot be started. Nothing is left of it then. Limits may also be decided later: State is Starting until then, and a
	// kernel that they do not allow becomes dead.
	Start(ctx context.Context, req Request) (k Kernel, created bool, err error)

	// Kernel returns one kernel. A dead kernel is returned, with its reason, for 15 minutes after its end.
	Kernel(ctx context.Context, id string) (Kernel, error)

	// Kernels returns all kernels, including those that died in the last 15 minutes, ordered by creation. The list is
	// complete, or the error is ErrUnavailable.
	Kernels(ctx context.Context) ([]Kernel, error)

	// KernelsFor is like Kernels. The list has the kernels that the user owns, and those that their notes share with the
	// user or with one of the groups. It may have others.
	KernelsFor(ctx context.Context, user string, groups []string) ([]Kernel, error)

	// Ended returns the kernels of an owner that were culled or died in the last days and were not started again since,
	// the newest first; "" means those of all. Some of them may still be shown as dead.
	Ended(ctx context.Context, owner string) ([]EndedKernel, error)

	// Usage returns what kernels of an owner have used: all that live, and all that have ended in the last days; ""
	// means those of all. A kernel that was started again after its end counts from its last start.
	Usage(ctx context.Context, owner string) ([]KernelUsage, error)

	// Wait returns the kernel as soon as cond holds for it. When ctx ends first, it returns the kernel and ctx's error.
	Wait(ctx context.Context, id string, cond func(Kernel) bool) (Kernel, error)

	// Revive restarts a kernel whose supervisor has ended, under its id and with what Start was given. It ends a
	// supervisor that this gateway cannot speak to; see UnsupportedError. It does nothing if any other supervisor lives,
	// since that has a restart route of its own. Limits count it as a start: if there are too many kernels, the error is a
	// *LimitError and the kernel stays dead.
	Revive(ctx context.Context, id string) (Kernel, error)

	// Restarting must be called before a supervisor is asked to restart its kernel, and done after its answer. If the
	// kernel is dead and its supervisor still lives, that is a start: the error is a *LimitError if there are too many.
	Restarting(ctx context.Context, id string) (done func(), err error)

	// Stop ends a kernel and returns when the kernel and all its processes are gone. Stopping a dead kernel removes it.
	Stop(ctx context.Context, id, reason string) error

	// Claim records that a client knows the kernel's id. It does not block. If a start can outlive its gateway, kernels
	// that no client has claimed for some minutes are removed.
	Claim(id string)

	// UpdateNotes calls change with the kernel's notes, and stores what it returns. No change of another gateway is lost:
	// change is called again if the notes have changed meanwhile. It may modify its argument.
	UpdateNotes(ctx context.Context, id string, change func(Notes) (Notes, error)) (Notes, error)

	// Dial connects to the kernel's supervisor, which speaks HTTP on the connection. The connection encrypts if need be.
	// The error is ErrNotFound, ErrUnavailable (ErrNoSupervisor while the kernel is being started, *UnsupportedError), or
	// *GoneError with the reason if the supervisor has ended.
	Dial(ctx context.Context, id string) (net.Conn, error)

	// Measure returns the data for metrics. It only reads memory.
	Measure() Measures

	// Token returns the bearer token that every request to the kernel's supervisor needs, "" if it needs no token.
	Token(id string) string

	// Close ends every goroutine of the launcher and waits for them. Kernels keep running.
	Close() error

	GPUViewer
	RecordKeeper
}

type requestIDKey struct{}

// WithRequestID returns a context whose requests to supervisors carry the id of a client's request, for the logs of
// both.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id that WithRequestID has set, "" if there is no id.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

var canonicalUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// ValidID reports whether id is a kernel id: a UUID in lower case with hyphens, as RFC 9562 section 4 prints it.
func ValidID(id string) bool { return canonicalUUID.MatchString(id) }
