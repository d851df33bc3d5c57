// Package local runs kernels as processes of this machine. cmd/ekg opens a Launcher, which implements
// launcher.Launcher. Each kernel has a supervisor. Supervisor and kernel are children of one small process, the parent,
// which is in a session of its own and outlives the gateway. Everything that is known of a kernel is stored in one
// folder. Begin with Open and Start (start.go), then folder.go, which writes the folder, reconcile.go, which compares
// it with the processes, and lend.go, which starts kernels that wait for GPUs; package lend has their queue.
//
// A launcher holds in memory only what it has read in folders or received from supervisors. It reads a folder again
// when it is opened, when a client names a kernel that it does not know, when the folder has changed, and at intervals.
// Several launchers, of several gateways, may use one state directory.
//
//	STATE/kernels/ID/kernel.json      record: owner, time of creation, address of the supervisor
//	STATE/kernels/ID/supervisor.json  configuration of the supervisor, also for later restarts
//	STATE/kernels/ID/process.json     process ids of parent, supervisor and kernel, for when the parent is killed
//	STATE/kernels/ID/requests.json    the supervisor's state, for a supervisor that adopts the kernel
//	STATE/kernels/ID/supervisor.log   the log of parent and supervisors, bounded; its older part has .1 added
//	STATE/kernels/ID/upgrade.json     a request to replace the supervisor; its parent reads and renames it on SIGHUP
//	STATE/kernels/ID/upgrading.json   the last such request that the parent has read
//	STATE/kernels/ID/upgrade.lock     locked by the program that upgrades the supervisor
//	STATE/kernels/ID/upgrade-refused.json  why the last such request was refused
//	STATE/kernels/ID/failing.json     why the kernel has no supervisor at present; the parent writes it
//	STATE/kernels/ID/notes.json       launcher.Notes: Jupyter's sessions, grants; changed under notes.lock
//	STATE/kernels/ID/lock             flocked by the parent for its whole life: a held lock means that it lives
//	STATE/kernels/ID/waiting.json     since when the kernel waits for a GPU; it has no supervisor yet
//	STATE/kernels/ID/ended.json       why the kernel ended, while it is still shown as dead
//	STATE/kernels/ID/again.lock       flocked while the dead kernel is being restarted, if there are limits
//	STATE/ended/ID.json               the ending, owner and spec, after the folder has been removed; for a week
//	STATE/warm/ID.json                a warm kernel, until it has got its owner; its folder is STATE/kernels/ID
//	STATE/warm.lock                   flocked by the one launcher that keeps warm kernels
//	STATE/gpus/                       flocked files that say who holds the GPUs; see package devices
//	STATE/records/KIND/ID             launcher.Record; changed under KIND/.lock
//	STATE/aside/                      entries and files of kernels that could not be read
//	STATE/reaper.lock                 flocked by the one launcher that cleans up
//	STATE/starts.lock                 flocked while kernels are counted and one is started, if there are limits
//
// A kernel's folder appears and disappears by one rename. A launcher holds a flock on the folder itself while it checks
// whether the supervisor lives, starts a supervisor, or removes the folder. Launchers need no other synchronization.
//
// Goroutines, all waited for by Close: maintain (rescans, cleans up, shares out log space); one per followed supervisor
// (package follow); Lender.Run (starts kernels that wait for GPUs); warmStore.keep (if there may be warm kernels); one
// per Stop in progress; one that replaces the supervisor of an idle kernel; and one that reaps supervisors which this
// process has started. Lock order: kernel.turn, folder flock, starts.lock, the lock of the GPUs, Launcher.folders,
// Launcher.mu, and then Lender.mu or changes.Watcher.mu. While starts.lock is held, turns and folders of other kernels
// are only tried.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/changes"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/children"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/environment"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/lend"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/records"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Options configures a Launcher.
type Options struct {
	StateDir   string // absolute
	RuntimeDir string // for sockets, so short; "" for ekg in XDG_RUNTIME_DIR, or a private folder under the temp folder
	Supervisor string // path of ekg-supervisor
	GPUProgram string // absolute path of ekg-gpu; "": GPUs are not assigned, sampled or looked at for Cull.GPU

	LogLimit   int64         // bound of one kernel's message log, in bytes; 0: it follows the free space of the disk
	LogTotal   int64         // bound of all logs together, in bytes; 0: it follows the free space of the disk
	StopGrace  time.Duration // from the shutdown request to SIGTERM, and on to SIGKILL; 0 for api.DefaultStopGrace
	DeadLinger time.Duration // how long a dead kernel is shown; 0 for api.DefaultDeadLinger
	Cull       api.Cull      // when kernels are culled
	Park       api.Park      // when they give their GPUs back

	UpgradeIdle bool // supervisors of idle kernels are replaced if Supervisor is another program

	// ControlGroups is the folder of the control group in which each kernel gets one of its own; see cgroup.Find. "":
	// kernels get none.
	ControlGroups string

	InheritEnv []string         // names of this process's variables that kernels get, beside the usual ones
	Reaper     *proctree.Reaper // of this program, which spares supervisors; nil: no reaper
	Log        *slog.Logger
	Observer   launcher.Observer // nil: events are ignored
	Limits     launcher.Limits   // the same for all gateways of the state directory; nil: no limits

	// Warm returns which warm kernels are wanted. It is called by several goroutines. nil: this gateway has no warm
	// kernels, and leaves those of others alone.
	Warm func() []launcher.Warm
}

// timing holds the durations that tests shorten.
type timing struct {
	ready       time.Duration    // for a supervisor to answer after its start
	firstStatus time.Duration    // for the first status; after that the kernel is shown without a status
	stopMargin  time.Duration    // for a supervisor to answer a stop, beyond the two graces of its kernel
	pushPause   time.Duration    // for which changes of the logs' bounds are collected that are not urgent
	maintenance time.Duration    // between two rounds of maintenance, which rescan the state directory
	rounds      <-chan time.Time // not nil: each value begins a round of maintenance, instead of the time
	halfMade    time.Duration    // age at which an unfinished folder is removed
	firstRedial time.Duration
	lastRedial  time.Duration
	lendPause   time.Duration // between two looks for GPUs that were given back
	warmPause   time.Duration // between two looks at the warm kernels
	warmFinish  time.Duration // for a warm kernel that was taken to get its owner
	upgradeIdle time.Duration // for which a kernel is idle before its supervisor is upgraded
	now         func() time.Time
}

func realTiming() timing {
	return timing{
		ready:       15 * time.Second,
		firstStatus: time.Second,
		stopMargin:  5 * time.Second,
		pushPause:   2 * time.Second,
		maintenance: 15 * time.Second,
		halfMade:    time.Minute,
		firstRedial: 20 * time.Millisecond,
		lastRedial:  5 * time.Second,
		lendPause:   time.Second,
		warmPause:   time.Second,
		warmFinish:  10 * time.Second,
		upgradeIdle: upgradeIdle,
		now:         time.Now,
	}
}

// Launcher runs kernels of this machine. It implements launcher.Launcher. All methods may be called concurrently.
type Launcher struct {
	records.Store // which do not depend on kernels

	// Fixed.
	opts      Options
	timing    timing
	layout    layout
	environ   []string // of this process at Open
	dir       string   // working directory of kernels without one of their own
	log       *slog.Logger
	processes *processes
	follower  *follow.Follower
	starts    *starts
	changes   *changes.Watcher
	lender    *lend.Lender
	warm      *warmStore
	logs      *logBounds
	upgrades  *idleUpgrades
	strays    *strays
	stones    *files.Folder[storedEnding]
	cancel    context.CancelCauseFunc
	ctx       context.Context // the launcher's own life, ended by Close

	// Owned by maintain, and by Open before maintain starts.
	reaper *os.File // reaper.lock while it is held

	// Held while a folder is read or renamed and its kernel is added to kernels, so that both are one step.
	folders sync.Mutex

	// Guarded by mu.
	mu          sync.Mutex
	kernels     registry
	rescans     uint64 // number of the last rescan
	tally       *tally
	warnedSpecs map[string]bool // kernelspecs that warnOfTCP has reported

	goroutines goroutines.Group
}

var errClosed = fmt.Errorf("%w: this gateway is ending", launcher.ErrUnavailable)

// Open reads the state directory, adopts the kernels that live, records those that have died and starts to follow
// supervisors. Streams are opened in the background: a kernel without a status is Stale.
func Open(ctx context.Context, o Options) (*Launcher, error) { return open(ctx, o, realTiming()) }

func open(ctx context.Context, o Options, tm timing) (*Launcher, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	lay, err := newLayout(o.StateDir, o.RuntimeDir, o.Log.With(logkey.Component, "local"))
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	life, cancel := context.WithCancelCause(context.Background())
	l := &Launcher{
		Store: records.NewStore(filepath.Join(lay.state, recordsDir)),
		opts:  o, timing: tm, layout: lay, environ: os.Environ(), dir: dir, log: lay.log,
		ctx: life, cancel: cancel, kernels: newRegistry(), tally: newTally(tm.now, o.Observer),
		stones:      files.NewFolder(lay.ended(), func(e *storedEnding) string { return e.Owner }),
		warnedSpecs: make(map[string]bool),
	}
	l.lender, err = lend.New(life, lend.Options{Dir: filepath.Join(lay.state, gpusDir), Program: o.GPUProgram,
		Env: environment.Supervisor(l.environ), Pause: tm.lendPause, Park: o.Park, Now: tm.now, Log: l.log,
		CatchUp: l.catchUp, Try: l.tryWaiting})
	if err != nil {
		cancel(err)
		return nil, fmt.Errorf("StateDir: %w", err)
	}
	l.starts, l.upgrades = newStarts(l), &idleUpgrades{l: l}
	l.strays = &strays{l: l, lock: flock.Folder}
	l.warm, l.logs = newWarmStore(l), newLogBounds(l)
	l.logs.measure()
	l.processes = &processes{layout: lay, program: l.opts.Supervisor, environ: environment.Supervisor(l.environ),
		groups: o.ControlGroups, ready: tm.ready, now: tm.now, log: l.log, children: children.New(l.opts.Reaper)}
	l.follower = follow.New(life, follow.Options{Lock: &l.mu, Goroutines: &l.goroutines, FirstRedial: tm.firstRedial,
		LastRedial: tm.lastRedial, Since: l.tally.since, Log: l.log})
	if l.changes, err = changes.Watch(lay.kernels(), notesFile); err != nil {
		l.log.Warn("state directory cannot be watched; lists of many kernels are slow", logkey.Err, err)
	}
	if err := l.rescan(ctx); err != nil {
		if _, unreadable := readNames(lay.kernels()); unreadable != nil || ctx.Err() != nil {
			_ = l.Close()
			return nil, fmt.Errorf("state directory: %w", err)
		}
		l.log.Error("a part of the state directory cannot be read; lists have to wait for it", logkey.Err, err)
	}
	l.takeReaper()
	l.goroutines.Go(l.maintain)
	l.goroutines.Go(l.lender.Run)
	if o.Warm != nil {
		l.goroutines.Go(l.warm.keep)
	}
	return l, nil
}

// complete sets defaults and rejects bad options by name.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = launcher.NoObserver
	}
	o.StopGrace = orDefault(o.StopGrace, api.DefaultStopGrace)
	o.DeadLinger = orDefault(o.DeadLinger, api.DefaultDeadLinger)
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

// Close ends every goroutine of the launcher and waits for them. Kernels keep running.
func (l *Launcher) Close() error {
	first := l.goroutines.Close()
	l.cancel(errClosed)
	l.goroutines.Wait()
	if !first {
		return nil
	}
	l.changes.Close()
	l.stones.Close()
	l.processes.children.Close()
	if l.reaper != nil {
		_ = l.reaper.Close() // nothing was written
	}
	return nil
}

// join makes Close wait for the calling goroutine until leave is called, and ends the returned context with the
// launcher.
func (l *Launcher) join(ctx context.Context) (context.Context, func(), error) {
	leave, ok := l.goroutines.Join()
	if !ok {
		return nil, nil, errClosed
	}
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(errClosed) })
	return joined, func() {
		stop()
		cancel(nil)
		leave()
	}, nil
}

// Kernel returns one kernel.
func (l *Launcher) Kernel(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	l.awaitFirstStatus(ctx, k, l.timing.firstStatus)
	return l.describe(k)
}

// Wait returns the kernel as soon as cond is true for it.
func (l *Launcher) Wait(ctx context.Context, id string, cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	return l.follower.Wait(ctx, &k.supervisor, func() (launcher.Kernel, error) { return l.describe(k) }, cond)
}

// Dial connects to the kernel's supervisor. If the supervisor has just died, Dial waits for the one that its parent
// starts, for redialLimit.
func (l *Launcher) Dial(ctx context.Context, id string) (net.Conn, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return nil, err
	}
	for began := time.Now(); ; {
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
		l.reconcile(k) // it may have ended at this moment
		if gone := l.reachable(k); gone != nil {
			return nil, gone
		}
		if time.Since(began) >= redialLimit {
			return nil, fmt.Errorf("%w: %v", launcher.ErrUnavailable, err)
		}
		if err := goroutines.Sleep(ctx, redialPause); err != nil {
			return nil, err
		}
	}
}

const (
	redialLimit = 2 * time.Second       // for another supervisor to listen
	redialPause = 20 * time.Millisecond // between two attempts
)

// Claim does nothing. A start takes milliseconds here, and the list also has kernels whose clients never received their
// ids.
func (l *Launcher) Claim(string) {}

// Token returns "": only this user can connect to the supervisors' sockets.
func (l *Launcher) Token(string) string { return "" }

// client returns a client of the kernel's supervisor, whatever the kernel's state.
func (k *kernel) client() *api.Client {
	return &api.Client{KernelID: k.id, Dial: func(ctx context.Context) (net.Conn, error) {
		return dialSocket(ctx, k.rec.Socket)
	}}
}

// dialLimit bounds a connect to a unix socket whose listener does not accept connections.
const dialLimit = 5 * time.Second

func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialLimit}
	return d.DialContext(ctx, "unix", path)
}
