// Package lend decides which kernel of a machine gets which GPU, and in which order those kernels wait that get none.
// launcher/local says which kernels there are, and starts them. A Lender has the list of the machine's GPUs and the
// queue. Package devices has the locks that say who holds a GPU. Begin with Lender.Lend and Lender.Round.
//
// A kernel that waits has the file waiting.json in its folder. So it keeps its place when its gateway dies, and any
// gateway of the state directory may start it. Kernels of jobs go behind all others. A kernel that waits keeps the GPUs
// that would do from those that go behind it, also while another gateway works on it.
//
// The package starts no goroutine. Its caller runs Run in one.
package lend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	listMaxAge = 30 * time.Second // after it the GPUs are listed again, if a kernel waits
	lockTime   = 10 * time.Second // for the lock of the GPUs
)

// BusyLimit is the time after which a kernel that another gateway works on keeps no GPU from later ones. That gateway
// may have frozen.
const BusyLimit = 30 * time.Second

// Options says what a Lender lends.
type Options struct {
	Dir     string        // of the locks; see package devices
	Program string        // path of ekg-gpu; "": there are no GPUs
	Env     []string      // of the program
	Pause   time.Duration // between two looks for GPUs that other gateways' kernels have given back
	Park    api.Park      // when kernels with one whole GPU give it back
	Now     func() time.Time
	Log     *slog.Logger

	// CatchUp enters the kernels that other gateways have made wait.
	CatchUp func(context.Context) error
	// Try starts a kernel that waits, if Lender.LendTo lends it what it needs. It reports whether it could look at the
	// kernel: another goroutine or gateway may be working on it.
	Try func(Turn) (looked bool)
}

// Lender lends the GPUs of a machine. All methods may be called concurrently.
type Lender struct {
	// Fixed.
	opts   Options
	ctx    context.Context // the launcher's life
	pool   *devices.Pool
	looks  chan struct{} // capacity 1: a kernel waits, or has given GPUs back
	listed chan struct{} // closed when list is set

	// Guarded by mu, under which nothing else is locked.
	mu      sync.Mutex
	list    *gpu.List // of this machine; nil: not known yet
	asked   time.Time // when the list was asked for
	logged  string    // what the log says about it
	waiting map[*Place]struct{}
}

// New returns a Lender that ends with ctx.
func New(ctx context.Context, o Options) (*Lender, error) {
	pool, err := devices.NewPool(o.Dir)
	if err != nil {
		return nil, err
	}
	return &Lender{opts: o, ctx: ctx, pool: pool, looks: make(chan struct{}, 1), listed: make(chan struct{}),
		waiting: map[*Place]struct{}{}}, nil
}

// ask asks ekg-gpu for the machine's GPUs, and logs what has changed.
func (l *Lender) ask() {
	list := devices.List(l.ctx, l.opts.Program, l.opts.Env)
	if l.ctx.Err() != nil {
		return
	}
	l.mu.Lock()
	if len(list.Devices) > 0 || l.list == nil { // else the program has failed, and is asked again
		l.list = &list
	}
	text := fmt.Sprint(len(list.Devices), list.Reason)
	news := text != l.logged
	l.asked, l.logged = time.Now(), text
	l.mu.Unlock()
	switch {
	case news && len(list.Devices) > 0:
		l.opts.Log.Info("kernels get GPUs", logkey.Count, len(list.Devices))
	case news:
		l.opts.Log.Info("no GPU is found for kernels", logkey.Reason, list.Reason)
	}
}

// List returns the GPUs of this machine. It waits for the first list.
func (l *Lender) List() gpu.List {
	select {
	case <-l.listed:
	case <-l.ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		return gpu.List{}
	}
	return *l.list
}

// Listed reports whether the first list is there.
func (l *Lender) Listed() bool {
	select {
	case <-l.listed:
		return true
	default:
		return false
	}
}

// Held returns the GPUs of this machine and who holds them, whichever gateway has started the kernels. Without GPUs
// reason says why there are none. It asks no driver, but waits for the first list.
func (l *Lender) Held(ctx context.Context) (all []gpu.Held, reason string, err error) {
	select {
	case <-l.listed:
	case <-ctx.Done():
		return nil, "", fmt.Errorf("%w: the GPUs of this machine are not known yet", launcher.ErrUnavailable)
	case <-l.ctx.Done():
	}
	list := l.List()
	all, err = l.pool.Held(ctx, list)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", launcher.ErrUnavailable, err)
	}
	return all, list.Reason, nil
}

// Lend lends what a kernel asks for that goes behind all that wait, also those that other gateways have made wait. It
// prefers some GPUs. A kernel that may be parked is only pinned to a GPU, so it does not wait; see Pool.Lend. The loan
// is nil if the kernel asks for nothing. The error is a *devices.BusyError if the kernel has to wait, and a
// *devices.NeverError if the machine does not have so much.
func (l *Lender) Lend(ctx context.Context, p *Place, prefer []string) (*devices.Loan, error) {
	if p == nil {
		return nil, nil
	}
	if err := l.opts.CatchUp(ctx); err != nil {
		return nil, err
	}
	to := p.as
	to.Prefer = prefer
	return l.lend(ctx, p, to, l.promised(p))
}

// LendTo is Lend for a kernel that waits and has its turn.
func (l *Lender) LendTo(ctx context.Context, t Turn) (*devices.Loan, error) {
	to := t.as
	l.mu.Lock()
	to.Since = t.since
	l.mu.Unlock()
	return l.lend(ctx, t.Place, to, t.Promised)
}

func (l *Lender) lend(ctx context.Context, p *Place, to devices.Borrower, promised map[string]bool) (*devices.Loan,
	error) {
	list := l.List()
	to.Parks = to.Parks && l.opts.Park.Idle > 0 && l.opts.Program != ""
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	loan, err := l.pool.Lend(ctx, to, list, p.want, promised)
	switch {
	case err == nil, errors.As(err, new(*devices.BusyError)), errors.As(err, new(*devices.NeverError)):
		return loan, err
	}
	return nil, fmt.Errorf("%w: %w", launcher.ErrUnavailable, err)
}

// Wake makes Run look for GPUs that were given back.
func (l *Lender) Wake() { goroutines.Wake(l.looks) }

// Run starts kernels that wait for GPUs, after Wake, and at intervals while any kernel waits. It returns when the
// launcher's life ends.
func (l *Lender) Run() {
	l.ask()
	close(l.listed)
	for {
		var again <-chan time.Time
		if l.Round() {
			again = time.After(l.opts.Pause)
		}
		select {
		case <-l.looks:
		case <-again:
		case <-l.ctx.Done():
			return
		}
	}
}

// Round starts what can be started, in the order of the queue. It reports whether kernels still wait. If no kernel
// waits, it does nothing: a gateway that knows one starts it.
func (l *Lender) Round() bool {
	if !l.Waits() {
		return false
	}
	if err := l.opts.CatchUp(l.ctx); err != nil {
		if l.ctx.Err() == nil {
			l.opts.Log.Warn("no kernel that waits gets a GPU; this is tried again", logkey.Err, err)
		}
		return true
	}
	all := l.inTurn()
	l.mu.Lock()
	old := time.Since(l.asked) >= listMaxAge
	l.mu.Unlock()
	if old {
		l.ask()
	}
	list := l.List()
	promised := map[string]bool{}
	for _, p := range all {
		if l.ctx.Err() != nil {
			return false
		}
		looked := l.opts.Try(Turn{p, promised})
		l.tried(p, looked, list, promised)
	}
	return true
}

// tried notes whether a kernel could be looked at, and promises it GPUs if it still waits.
func (l *Lender) tried(p *Place, looked bool, list gpu.List, promised map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, waits := l.waiting[p]; !waits {
		return
	}
	switch {
	case looked:
		p.busySince = time.Time{}
	case p.busySince.IsZero():
		p.busySince = l.opts.Now()
	}
	l.promise(p, list, promised)
	p.announceLocked(l.pool)
}
