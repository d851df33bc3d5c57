// Package local runs kernels as processes of this machine: each kernel's supervisor is a process in a session of its
// own that outlives the gateway, and all that is known of the kernel lies in one folder.
//
// The folder is the truth. A launcher holds in memory only what it has read there or heard from a supervisor, and reads
// again when it is opened, when it is asked for a kernel it does not know, and now and then. Several launchers, of
// several gateways, may use one state directory.
//
//	STATE/kernels/ID/kernel.json      record: whose it is, when it was made, where its supervisor listens
//	STATE/kernels/ID/supervisor.json  supervisor.Config; what a revival starts from
//	STATE/kernels/ID/process.json     process ids that a supervisor has told, to find what it leaves if it is killed
//	STATE/kernels/ID/notes.json       launcher.Notes: Jupyter's sessions, grants; changed under notes.lock
//	STATE/kernels/ID/lock             flocked by the supervisor for its whole life: what "it lives" means
//	STATE/kernels/ID/ended.json       why the kernel ended, while it is still shown as dead
//	STATE/ended/ID.json               tombstone: the same, and whose it was, after the folder has gone; for a week
//	STATE/aside/                      entries that nobody could read
//	STATE/kernels/ID/again.lock       flocked by whoever starts it again after it was dead, where there are limits
//	STATE/reaper.lock                 flocked by the one launcher that clears away
//	STATE/starts.lock                 flocked by whoever counts kernels and starts one more, where there are limits
//
// A folder comes into being and goes by one rename. Whoever looks whether a supervisor lives, starts one or removes the
// folder holds a flock on the folder itself; between two launchers nothing else is needed.
//
// Goroutines, all waited for by Close: tend (looks again, clears away, shares out log space); one watch per kernel
// whose supervisor lives; one per Stop in progress; and one that reaps supervisors which this process has started.
// Lock order: kernel.turn, folder flock, starts.lock, Launcher.folders, Launcher.mu. Under starts.lock other kernels' turns and folders are
// only tried.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// Defaults of Options.
const (
	DefaultLogLimit   = 64 << 20
	DefaultLogTotal   = 1 << 30
	DefaultStopGrace  = 2500 * time.Millisecond // half of jupyter_client's shutdown_wait_time
	DefaultDeadLinger = 15 * time.Minute
)

// restartLimit is jupyter_client's restart_limit.
const restartLimit = 5

// openStreams bounds how many status streams are being opened at one time.
const openStreams = 64

// Options says where and with what kernels are run.
type Options struct {
	StateDir   string // absolute; "" for ekg in the user's XDG state folder
	RuntimeDir string // for sockets, so short; "" for ekg in XDG_RUNTIME_DIR, or a private folder under the temp folder
	Supervisor string // path of ekg-supervisor
	GPUProgram string // absolute path of ekg-gpu; only Cull.GPU needs it

	LogLimit   int64           // bytes of one kernel's message log; 0 for DefaultLogLimit
	LogTotal   int64           // bytes of all logs together; 0 for DefaultLogTotal
	StopGrace  time.Duration   // from a polite stop to SIGTERM, and again to SIGKILL; 0 for DefaultStopGrace
	DeadLinger time.Duration   // how long a dead kernel is shown; 0 for DefaultDeadLinger
	Cull       supervisor.Cull // when kernels are ended that nobody has asked to end

	InheritEnv []string // names of variables that kernels get from this process's environment beside the usual ones
	Log        *slog.Logger
	Observer   launcher.Observer // nil: nobody
	Limits     launcher.Limits   // of all gateways of the state directory; nil: there are none
}

// timing is what tests shorten.
type timing struct {
	ready       time.Duration // for a supervisor to answer after its start
	firstWord   time.Duration // for the first status, before a kernel is shown without any
	stopMargin  time.Duration // for a supervisor to answer a stop, beyond the two graces of its kernel
	tend        time.Duration // between two looks at the whole state directory
	halfMade    time.Duration // age at which a folder that never got its name is removed
	firstRedial time.Duration
	lastRedial  time.Duration
	now         func() time.Time
}

func realTiming() timing {
	return timing{ready: 15 * time.Second, firstWord: time.Second, stopMargin: 5 * time.Second, tend: 15 * time.Second, halfMade: time.Minute,
		firstRedial: 20 * time.Millisecond, lastRedial: 5 * time.Second, now: time.Now}
}

// Launcher runs kernels of this machine; it implements launcher.Launcher.
type Launcher struct {
	// Fixed.
	opts     Options
	timing   timing
	opened   time.Time
	layout   layout
	environ  []string // of this process, when the launcher was opened
	dir      string   // working directory of kernels that name none
	log      *slog.Logger
	children *children
	opening  chan struct{} // a place for every status stream being opened
	kick     chan struct{} // capacity 1: the number of kernels has changed
	starting chan struct{} // capacity 1: held by who has starts.lock, or is next
	cancel   context.CancelCauseFunc
	ctx      context.Context // the launcher's own life, ended by Close

	// Owned by tend, and by Open before it starts.
	reaper *os.File // reaper.lock while it is held

	// Makes "read the folder, enter it in kernels" and "rename a folder, enter it" one step each.
	folders sync.Mutex

	// Guarded by mu.
	mu      sync.Mutex
	kernels map[string]*kernel
	tally   supervisor.Tally
	culls   map[launcher.Cull]int64
	closed  bool
	running sync.WaitGroup // added to under mu, while closed is false
}

var errClosed = fmt.Errorf("%w: this gateway is ending", launcher.ErrUnavailable)

// Open reads the state directory, adopts the kernels that live, notes those that have died and starts to watch. Streams
// are opened in the background: a kernel that has not been heard of is Stale.
func Open(ctx context.Context, o Options) (*Launcher, error) { return open(ctx, o, realTiming()) }

func open(ctx context.Context, o Options, tm timing) (*Launcher, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	lay, err := newLayout(o.StateDir, o.RuntimeDir)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	life, cancel := context.WithCancelCause(context.Background())
	l := &Launcher{
		opts: o, timing: tm, layout: lay, environ: os.Environ(), dir: dir, log: o.Log.With("component", "local"),
		opening: make(chan struct{}, openStreams), kick: make(chan struct{}, 1), starting: make(chan struct{}, 1),
		ctx: life, cancel: cancel, kernels: make(map[string]*kernel), tally: supervisor.NewTally(tm.now()),
		opened: tm.now(), culls: map[launcher.Cull]int64{},
	}
	l.children = newChildren()
	if err := l.rescan(ctx); err != nil {
		l.Close()
		return nil, fmt.Errorf("state directory: %w", err)
	}
	l.takeReaper()
	l.own(l.tend)
	return l, nil
}

// complete sets defaults and names a bad option.
func (o *Options) complete() error {
	if o.StateDir == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(base) {
			home, err := os.UserHomeDir()
			if err != nil {
				return fmt.Errorf("StateDir: none given and no home folder: %w", err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		o.StateDir = filepath.Join(base, "ekg")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = launcher.Unobserved
	}
	o.LogLimit = orDefault(o.LogLimit, DefaultLogLimit)
	o.LogTotal = orDefault(o.LogTotal, DefaultLogTotal)
	o.StopGrace = orDefault(o.StopGrace, DefaultStopGrace)
	o.DeadLinger = orDefault(o.DeadLinger, DefaultDeadLinger)
	switch {
	case !filepath.IsAbs(o.StateDir):
		return fmt.Errorf("StateDir: %q is not an absolute path", o.StateDir)
	case o.RuntimeDir != "" && !filepath.IsAbs(o.RuntimeDir):
		return fmt.Errorf("RuntimeDir: %q is not an absolute path", o.RuntimeDir)
	case o.LogLimit < 0 || o.LogTotal < 0:
		return errors.New("LogLimit, LogTotal: negative")
	case o.StopGrace < 0 || o.DeadLinger < 0:
		return errors.New("StopGrace, DeadLinger: negative")
	case o.Supervisor == "":
		return errors.New("Supervisor: no path given")
	}
	path, err := filepath.Abs(o.Supervisor)
	if err != nil {
		return fmt.Errorf("Supervisor: %w", err)
	}
	o.Supervisor = path
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("Supervisor: %w", err)
	}
	if st.IsDir() || st.Mode()&0o111 == 0 {
		return fmt.Errorf("Supervisor: %s is not a program", path)
	}
	if o.Cull.GPU > 0 && !filepath.IsAbs(o.GPUProgram) {
		return fmt.Errorf("GPUProgram: %q is not an absolute path, and Cull.GPU needs it", o.GPUProgram)
	}
	return nil
}

func orDefault[T ~int64](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// Close stops watching and waits for every goroutine. Kernels go on.
func (l *Launcher) Close() error {
	l.mu.Lock()
	already := l.closed
	l.closed = true
	l.mu.Unlock()
	l.cancel(errClosed)
	l.running.Wait()
	if already {
		return nil
	}
	l.children.close()
	if l.reaper != nil {
		l.reaper.Close() //nolint:errcheck // nothing was written
	}
	return nil
}

// own runs f in a goroutine that Close waits for. It reports false if the launcher is closed.
func (l *Launcher) own(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ownLocked(f)
}

// join makes Close wait for what a caller does in a goroutine of its own, and ends its context with the launcher's.
func (l *Launcher) join(ctx context.Context) (context.Context, func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, errClosed
	}
	l.running.Add(1)
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(errClosed) })
	return joined, func() {
		stop()
		cancel(nil)
		l.running.Done()
	}, nil
}

func (l *Launcher) ownLocked(f func()) bool {
	if l.closed {
		return false
	}
	l.running.Go(f)
	return true
}

// Kernel returns one kernel.
func (l *Launcher) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitWord(ctx, k, l.timing.firstWord)
	return l.describe(k)
}

// Kernels returns all kernels by creation.
func (l *Launcher) Kernels(ctx context.Context) ([]launcher.Kernel, error) {
	if err := l.rescan(ctx); err != nil {
		return nil, err
	}
	deadline := l.timing.now().Add(l.timing.firstWord)
	all := make([]launcher.Kernel, 0, 16)
	for _, k := range l.known() {
		l.awaitWord(ctx, k, deadline.Sub(l.timing.now()))
		d, err := l.describe(k)
		if errors.Is(err, launcher.ErrNotFound) {
			continue // it went just now
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	slices.SortFunc(all, launcher.ByCreation)
	return all, nil
}

// Wait returns the kernel as soon as cond holds for it.
func (l *Launcher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	for {
		changed := l.changes(k) // before the look, so that nothing is missed
		d, err := l.describe(k)
		if err != nil || cond(d) {
			return d, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return d, ctx.Err()
		case <-l.ctx.Done():
			return d, errClosed
		}
	}
}

// Dial connects to the kernel's supervisor.
func (l *Launcher) Dial(ctx context.Context, id string) (net.Conn, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := l.reachable(k); err != nil {
		return nil, err
	}
	c, err := dialSocket(ctx, k.rec.Socket)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	l.settle(k) // it may have ended this very moment
	if gone := l.reachable(k); gone != nil {
		return nil, gone
	}
	return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
}

// Claim does nothing: a start takes milliseconds here, and a kernel whose client has never heard of it is in the list.
func (l *Launcher) Claim(string) {}

// Token returns "": only this user can connect to the supervisors' sockets.
func (l *Launcher) Token(string) string { return "" }

// client speaks to the kernel's supervisor whatever is thought of its state.
func (l *Launcher) client(k *kernel) *supervisor.Client {
	return &supervisor.Client{KernelID: k.id, Dial: func(ctx context.Context) (net.Conn, error) {
		return dialSocket(ctx, k.rec.Socket)
	}}
}

// dialLimit bounds a connect to a unix socket whose listener does not accept.
const dialLimit = 5 * time.Second

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialLimit}
	return d.DialContext(ctx, "unix", path)
}
