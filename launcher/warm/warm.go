// Package warm keeps warm kernels: kernels that wait for an owner. The launchers of a machine and of a cluster have one
// Pool each. It decides which warm kernels end, which are created, and which starts may take one. It counts them, and
// holds back kernelspecs whose warm kernels fail. The launcher's Store does what a decision asks for. Begin with
// Pool.Round and Pool.Take.
//
// The package starts no goroutine. Its callers call Round at intervals, and one gateway at a time does so.
package warm

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	atOnce       = 2 // warm kernels of a kernelspec that one round creates
	firstPause   = 5 * time.Second
	longestPause = 10 * time.Minute
)

// Store is where a launcher has its warm kernels. K is what those of one kernelspec are made from.
type Store[K any] interface {
	// Kind returns from what the warm kernels of a plain start are made. content tells two kinds apart. The error says
	// why there can be none.
	Kind(start launcher.Request) (kind K, content string, err error)
	// List returns the warm kernels, the oldest first.
	List(ctx context.Context) ([]Kernel, error)
	// WhyNot says why no warm kernel of a kind may be created at present, "" if one may be.
	WhyNot(kind K) string
	// Create creates a warm kernel. The error is a NotNow if there is no room, which is no fault of the kernelspec.
	Create(ctx context.Context, kind K) error
	// Claim makes a warm kernel of a kind the kernel of a request. It tries the oldest first. The result is one of the
	// launcher's Claim constants. The error is one of the start.
	Claim(ctx context.Context, kind K, req launcher.Request) (launcher.Kernel, string, error)
	// Delete ends a warm kernel that no start has taken. It reports whether no other may replace it until it has gone.
	Delete(ctx context.Context, k Kernel) bool
}

// Kernel is a warm kernel, or one that was warm and still has its place.
type Kernel struct {
	ID       string
	SpecName string
	Content  string // of its kind
	State    State
	Reason   string // why it has failed, or why it does not run yet
}

// State is what becomes of a warm kernel.
type State int

// The states.
const (
	Waits   State = iota // for an owner; it may still be starting
	Proven               // it waits, and has run for long enough to show that its kernelspec works
	Created              // it waits, and more is not known yet
	Failed               // it could not start, or has ended
	Leaving              // no start takes it, and no other warm kernel replaces it before it has gone
)

// NotNow says why a warm kernel could not be created at this moment.
type NotNow string

// Error returns the reason.
func (n NotNow) Error() string { return string(n) }

// Pool is the warm kernels of a launcher. All methods may be called concurrently, Round by one goroutine at a time.
type Pool[K any] struct {
	// Fixed.
	wanted func() []launcher.Warm
	store  Store[K]
	now    func() time.Time
	log    *slog.Logger
	woken  chan struct{}

	// Guarded by mu, under which nothing else is locked.
	mu      sync.Mutex
	counts  map[string]launcher.WarmCount
	claims  map[launcher.WarmClaim]int64
	gaveWay map[string]int64
	pauses  map[string]pause
}

// pause holds one kernelspec back.
type pause struct {
	content string // the kernelspec's version; another one is tried at once
	reason  string
	length  time.Duration
	until   time.Time
}

// NewPool returns a pool of what wanted returns. With a nil wanted it has no warm kernels.
func NewPool[K any](wanted func() []launcher.Warm, store Store[K], now func() time.Time, log *slog.Logger) *Pool[K] {
	return &Pool[K]{wanted: wanted, store: store, now: now, log: log, woken: make(chan struct{}, 1),
		claims: map[launcher.WarmClaim]int64{}, gaveWay: map[string]int64{}, pauses: map[string]pause{}}
}

// Woken receives a value when a start has taken a warm kernel, and when the next round has more to create.
func (p *Pool[K]) Woken() <-chan struct{} { return p.woken }

// Take gives a start a warm kernel, if one fits. The error is one of the start. Without a warm kernel, taken is false
// and the start is an ordinary one.
func (p *Pool[K]) Take(ctx context.Context, req launcher.Request) (k launcher.Kernel, taken bool, err error) {
	if p.wanted == nil {
		return k, false, nil
	}
	wanted := p.wanted()
	at := slices.IndexFunc(wanted, func(w launcher.Warm) bool { return w.Start.Spec.Name == req.Spec.Name })
	if at < 0 {
		return k, false, nil
	}
	result := launcher.ClaimUnfit
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.claims[launcher.WarmClaim{SpecName: req.Spec.Name, Result: result}]++
	}()
	if !req.AnyID {
		return k, false, nil
	}
	kind, _, err := p.store.Kind(wanted[at].Start)
	if err != nil {
		return k, false, nil // the next round says why
	}
	k, result, err = p.store.Claim(ctx, kind, req)
	if result == launcher.ClaimTaken || result == launcher.ClaimFailed {
		goroutines.Wake(p.woken)
	}
	return k, result == launcher.ClaimTaken, err
}

// kindOf is a kind with its content.
type kindOf[K any] struct {
	kind    K
	content string
}

// Round ends warm kernels that are not wanted, and creates those that are missing.
func (p *Pool[K]) Round(ctx context.Context) error {
	counts, kinds := map[string]launcher.WarmCount{}, map[string]kindOf[K]{}
	for _, w := range p.wanted() {
		name, c := w.Start.Spec.Name, launcher.WarmCount{Wanted: w.Count}
		kind, content, err := p.store.Kind(w.Start)
		if err != nil {
			c.Reason = err.Error()
			p.Failed(name, "", c.Reason)
		} else {
			kinds[name] = kindOf[K]{kind, content}
		}
		counts[name] = c
	}
	all, err := p.store.List(ctx)
	if err != nil {
		return err
	}
	leaving := map[string]int{}
	for _, k := range all {
		c := counts[k.SpecName]
		if p.keeps(k, kinds[k.SpecName].content, c) {
			c.Waiting++
			if k.Reason != "" {
				c.Reason = k.Reason
			}
			counts[k.SpecName] = c
		} else if k.State == Leaving || p.store.Delete(ctx, k) {
			leaving[k.SpecName]++
		}
	}
	for name, kind := range kinds {
		counts[name] = p.createMissing(ctx, name, kind, counts[name], leaving[name])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for spec, c := range counts {
		if c.Reason == "" && c.Waiting < c.Wanted {
			c.Reason = p.pauses[spec].reason
			counts[spec] = c
		}
	}
	p.counts = counts
	return nil
}

// keeps reports whether a warm kernel waits and is wanted.
func (p *Pool[K]) keeps(k Kernel, content string, c launcher.WarmCount) bool {
	switch {
	case k.State == Created:
		return true // it counts, and what is known next decides
	case k.State == Failed:
		p.Failed(k.SpecName, k.Content, k.Reason)
		return false
	case k.State == Leaving, k.Content != content, c.Waiting >= c.Wanted:
		return false
	case k.State == Proven:
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pauses, k.SpecName)
	}
	return true
}

// createMissing creates warm kernels of a kind, a few at once. None replaces one of those that are leaving.
func (p *Pool[K]) createMissing(ctx context.Context, name string, kind kindOf[K], c launcher.WarmCount, leaving int,
) launcher.WarmCount {
	missing, created := c.Wanted-c.Waiting, 0
	for range missing {
		if why := p.store.WhyNot(kind.kind); why != "" {
			c.Reason = why
			break
		}
		if created >= min(atOnce, missing-leaving) || !p.may(name, kind.content) || ctx.Err() != nil {
			break
		}
		err := p.store.Create(ctx, kind.kind)
		if later := NotNow(""); errors.As(err, &later) {
			c.Reason = later.Error()
			break
		}
		if err != nil {
			if ctx.Err() == nil {
				p.Failed(name, kind.content, err.Error())
			}
			break
		}
		c.Waiting++
		created++
	}
	if created > 0 && created < missing {
		goroutines.Wake(p.woken) // the next ones
	}
	return c
}

// Failed notes that a warm kernel of a version of a kernelspec could not be created, has ended, or could not be given
// to its owner. No other is created for twice as long as the last time.
func (p *Pool[K]) Failed(spec, content, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mayLocked(spec, content) {
		return // it is known
	}
	w := p.pauses[spec]
	if w.content != content {
		w = pause{content: content}
	}
	w.length = min(max(2*w.length, firstPause), longestPause)
	w.reason, w.until = reason, p.now().Add(w.length)
	p.pauses[spec] = w
	p.log.Warn("warm kernels of a kernelspec fail", logkey.Spec, spec, logkey.Reason, reason, logkey.Pause, w.length)
}

// may reports whether a warm kernel of a version of a kernelspec may be created now.
func (p *Pool[K]) may(spec, content string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mayLocked(spec, content)
}

func (p *Pool[K]) mayLocked(spec, content string) bool {
	w, paused := p.pauses[spec]
	return !paused || w.content != content || !p.now().Before(w.until)
}

// GaveWay counts a warm kernel that was ended for a start that waits.
func (p *Pool[K]) GaveWay(spec string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gaveWay[spec]++
}

// Ahead returns the kernelspecs that want warm kernels, with how many, and why some are missing as far as is known.
func (p *Pool[K]) Ahead() (all []launcher.Ahead) {
	if p.wanted == nil {
		return nil
	}
	for _, w := range p.wanted() {
		a := launcher.Ahead{SpecName: w.Start.Spec.Name, Wanted: w.Count}
		if w.Start.Flavor != nil {
			a.Flavor = w.Start.Flavor.Name
		}
		p.mu.Lock()
		a.Reason = p.counts[a.SpecName].Reason
		p.mu.Unlock()
		all = append(all, a)
	}
	return all
}

// Measure adds the numbers to the data for metrics.
func (p *Pool[K]) Measure(m *launcher.Measures) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.Warm, m.WarmClaims, m.WarmGaveWay = maps.Clone(p.counts), maps.Clone(p.claims), maps.Clone(p.gaveWay)
}
