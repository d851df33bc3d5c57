package lend

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// WaitFile exists in the folder of a kernel that waits for a GPU and has no supervisor yet.
const WaitFile = "waiting.json"

// waitText is the content of a WaitFile.
type waitText struct {
	Since time.Time `json:"since"` // UTC
}

// unknownWait is the reason of a kernel that waits, before this launcher has looked for its GPUs.
const unknownWait = "it waits for a GPU"

// Place is the place of one kernel in the queue. A nil Place is that of a kernel that asks for nothing: it never waits.
type Place struct {
	// Fixed.
	l    *Lender
	as   devices.Borrower // without Since and Prefer
	dir  string           // the kernel's folder
	want devices.Want

	// Guarded by Lender.mu. They have a meaning while the kernel waits.
	since      time.Time
	reason     string
	candidates []string                   // UUIDs of the GPUs that would do; none before the first look for one
	busySince  time.Time                  // since then no look at the kernel has been possible; zero after one
	waiters    map[string]*devices.Waiter // by UUID of the candidate: what other kernels see of the wait
}

// Turn is a Place whose kernel is looked at in the order of the queue.
type Turn struct {
	*Place
	Promised map[string]bool // UUIDs of the GPUs that kernels get which go before it
}

// Place returns the place of a kernel with a folder, which does not wait at first; nil with a nil want. A job's kernel
// goes behind all others. The kernel parks only if the Options say when.
func (l *Lender) Place(as devices.Borrower, dir string, want *devices.Want) *Place {
	if want == nil {
		return nil
	}
	return &Place{l: l, as: as, dir: dir, want: *want}
}

// ID returns the kernel's id.
func (p *Place) ID() string { return p.as.Kernel }

// Store records in the kernel's folder that it waits from now on.
func (p *Place) Store() (since time.Time, err error) {
	since = p.l.opts.Now().UTC()
	return since, files.WriteJSON(filepath.Join(p.dir, WaitFile), waitText{since})
}

// Stored reads since when a kernel waits by its folder. stored is false if it does not wait.
func (p *Place) Stored() (since time.Time, stored bool) {
	if p == nil {
		return since, false
	}
	var text waitText
	err := files.ReadJSON(filepath.Join(p.dir, WaitFile), &text)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.l.opts.Log.Warn("kernel does not wait any more", logkey.Kernel, p.as.Kernel, logkey.Err, err)
	}
	return text.Since, err == nil
}

// Enter makes a kernel wait, in memory. why is nil if it is not known yet. first is false if it has waited before.
// changed reports whether its reason is another one.
func (p *Place) Enter(since time.Time, why error) (first, changed bool) {
	l := p.l
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.waiting[p]
	if waits && why == nil {
		return false, false
	}
	before := p.reason
	p.since, p.reason, p.candidates, p.busySince = since, unknownWait, nil, time.Time{}
	if why != nil {
		p.reason = why.Error()
	}
	if busy := (*devices.BusyError)(nil); errors.As(why, &busy) {
		p.candidates = busy.Candidates
	}
	if !waits {
		l.waiting[p] = struct{}{}
		l.Wake()
	}
	return !waits, !waits || p.reason != before
}

// Erase removes the record that a kernel waits from its folder. Its supervisor lives, or its end is on record.
func (p *Place) Erase() {
	if err := os.Remove(filepath.Join(p.dir, WaitFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.l.opts.Log.Warn("kernel still seems to wait", logkey.Kernel, p.as.Kernel, logkey.Err, err)
	}
}

// Leave makes a kernel wait no more, in memory. It reports whether the kernel has waited.
func (p *Place) Leave() bool {
	if p == nil {
		return false
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	_, waits := p.l.waiting[p]
	delete(p.l.waiting, p)
	for _, w := range p.waiters {
		w.Leave()
	}
	p.waiters = nil
	return waits
}

// announceLocked tells the kernels that hold the candidates that this one waits. They may be parked.
func (p *Place) announceLocked(pool *devices.Pool) {
	candidates := p.candidates
	if p.l.opts.Park.Idle <= 0 || p.keepsNoneLocked() {
		candidates = nil
	}
	for uuid, w := range p.waiters {
		if !slices.Contains(candidates, uuid) || w.Renew() != nil { // a new one follows
			w.Leave()
			delete(p.waiters, uuid)
		}
	}
	for _, uuid := range candidates {
		if p.waiters[uuid] != nil {
			continue
		}
		w, err := pool.Wait(uuid, p.since, p.as.Job)
		if err != nil {
			p.l.opts.Log.Warn("kernels that hold a GPU do not see that another waits", logkey.Kernel, p.as.Kernel,
				logkey.Err, err)
			return
		}
		if p.waiters == nil {
			p.waiters = map[string]*devices.Waiter{}
		}
		p.waiters[uuid] = w
	}
}

// Waits reports whether a kernel waits.
func (p *Place) Waits() bool { return p.Reason() != "" }

// Reason says what a kernel waits for; "" if it does not wait.
func (p *Place) Reason() string {
	if p == nil {
		return ""
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	if _, waits := p.l.waiting[p]; !waits {
		return ""
	}
	return p.reason
}

// Hopeless reports whether kernels that have waited for longer get all that would do.
func (t Turn) Hopeless() bool {
	t.l.mu.Lock()
	defer t.l.mu.Unlock()
	return len(t.candidates) > 0 && !slices.ContainsFunc(t.candidates, func(uuid string) bool { return !t.Promised[uuid] })
}

// Waits reports whether any kernel waits.
func (l *Lender) Waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting) > 0
}

// Wait is a kernel that waits.
type Wait struct {
	Kernel string
	Want   devices.Want
	For    time.Duration
}

// People returns the kernels that wait and are not those of jobs.
func (l *Lender) People() (all []Wait) {
	now := l.opts.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.waiting {
		if !p.as.Job {
			all = append(all, Wait{p.as.Kernel, p.want, now.Sub(p.since)})
		}
	}
	return all
}

// inTurn returns the kernels that wait, in the order of arrival, the kernels of jobs after all others.
func (l *Lender) inTurn() (all []*Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.waiting {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Place) int {
		return cmp.Or(behind(a, b), a.since.Compare(b.since), cmp.Compare(a.as.Kernel, b.as.Kernel))
	})
	return all
}

// behind orders the kernels of jobs behind all others.
func behind(a, b *Place) int {
	switch {
	case a.as.Job == b.as.Job:
		return 0
	case a.as.Job:
		return 1
	}
	return -1
}

// promised returns the GPUs that other kernels wait for, if those go before this one: a job's kernel goes behind all
// others.
func (l *Lender) promised(to *Place) map[string]bool {
	list := l.List()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for p := range l.waiting {
		if to.as.Job || !p.as.Job {
			l.promise(p, list, all)
		}
	}
	return all
}

// promise adds the GPUs that a kernel which waits keeps from those that go behind it. It keeps them before this
// launcher has first looked for one, as another gateway may be working on it. After BusyLimit it keeps none. The lock
// is held.
func (l *Lender) promise(p *Place, list gpu.List, to map[string]bool) {
	if p.keepsNoneLocked() {
		return
	}
	uuids := p.candidates
	if len(uuids) == 0 {
		uuids = p.want.Candidates(list)
	}
	for _, uuid := range uuids {
		to[uuid] = true
	}
}

// keepsNoneLocked reports whether the kernel keeps no GPU from others: it could not be looked at for BusyLimit.
func (p *Place) keepsNoneLocked() bool {
	return !p.busySince.IsZero() && p.l.opts.Now().Sub(p.busySince) >= BusyLimit
}
