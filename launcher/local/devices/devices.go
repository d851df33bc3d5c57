// Package devices lends the GPUs of this machine to kernels. launcher/local/lend calls Pool.Lend. A GPU
// is lent by a lock (flock) on a file that the kernel's processes inherit. The system releases the lock when the last
// of them has ended. So nothing has to be cleaned up, and all Pools with one folder agree, also those of other
// programs.
//
//	DIR/@lock        flocked while devices are chosen or looked at
//	DIR/UUID         flocked exclusively by a kernel that has it for itself, and shared by those that have a part
//	DIR/UUID@N       flocked by the kernel that has part number N; N counts from 1
//	DIR/UUID@pin@N   flocked by a kernel that is pinned to it, whether the kernel has it or not
//
// A kernel that has a whole device may give it back before its end, and take it again: see Seat and Waiter. It is
// pinned to the device until its end. If it is not warm, it starts without the device, and takes it when it needs it.
//
// A locked file says which kernel holds it, and how large the kernel's part is. A file that nobody has locked means
// nothing. The package starts no goroutine.
package devices

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

const (
	poolLock = "@lock"
	pinMark  = "@pin" // behind a UUID, before the number of a pin
)

// Loan is what a kernel holds, or what it is pinned to. The locks of Files are held until every process that has
// inherited them has ended, or until one of them calls Return. Its methods may not be called concurrently.
type Loan struct {
	Devices []string // UUIDs, the order for CUDA_VISIBLE_DEVICES
	Memory  int64    // bytes of the part of each device; 0: whole devices, or unknown
	Share   gpu.Amount
	Pinned  bool // the kernel is pinned to the only device, and has not got it
	Files   []*os.File
}

// Close closes this program's descriptors. The locks stay with the processes that have inherited them.
func (l *Loan) Close() {
	for _, f := range l.Files {
		_ = f.Close() // what was written was checked
	}
	l.Files = nil
}

// Return gives the devices back, whoever has inherited the locks.
func (l *Loan) Return() {
	Return(l.Files)
	l.Close()
}

// Return gives back the devices whose locks the files are, whoever else has inherited them.
func Return(files []*os.File) {
	for _, f := range files {
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // fails for no open file
	}
}

// Pool lends devices. All methods may be called concurrently.
type Pool struct {
	dir string
}

// NewPool returns a Pool whose locks are in a folder, which it creates.
func NewPool(dir string) (*Pool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Pool{dir: dir}, nil
}

// state is who holds a unit.
type state struct {
	unit
	used    gpu.Amount // One if a kernel has it for itself
	alone   bool       // a kernel has it for itself
	free    int        // the smallest number of a part that nobody has
	holders []gpu.Holder
	pinned  []string // kernels that are pinned to it
	freePin int      // the smallest number of a pin that none has
}

// stays reports whether kernels hold the unit that do not give it back.
func (s *state) stays() bool {
	return slices.ContainsFunc(s.holders, func(h gpu.Holder) bool { return !slices.Contains(s.pinned, h.Kernel) })
}

// fits reports whether the unit can be lent now.
func (s *state) fits(share gpu.Amount) bool {
	if share == gpu.One {
		return s.used == 0 && !s.alone
	}
	return !s.alone && s.used+share <= gpu.One
}

// holderText is the content of a holder's file.
type holderText struct {
	Kernel string     `json:"kernel"`
	Share  gpu.Amount `json:"share"`
	Until  time.Time  `json:"until,omitzero"` // until when its owner keeps the unit
}

// Borrower is a kernel that asks for devices.
type Borrower struct {
	Kernel string
	Since  time.Time // it has waited since then; zero: it has not waited, and goes behind all that wait
	Job    bool      // it goes behind all kernels that are not those of jobs
	Parks  bool      // it gives a whole GPU back while it does not use it
	Warm   bool      // it has no owner yet, and takes no GPU that other kernels are pinned to
	Prefer []string  // UUIDs that it would have first
}

// Lend lends what a kernel wants. Units in except, and those for which a kernel waits that goes before, are not lent.
// Of the rest it prefers those that the fewest kernels are pinned to, and then those with the most left.
//
// A kernel that parks, asks for one whole GPU and is not warm is only pinned to one. That may be held, or promised to
// others. It is chosen by the same rules, but a GPU whose holder does not give it back comes last.
//
// The error is a *NeverError if the machine does not have so much, and a *BusyError if others hold it.
func (p *Pool) Lend(ctx context.Context, to Borrower, list gpu.List, w Want, except map[string]bool) (*Loan, error) {
	matching, err := w.choose(list)
	if err != nil {
		return nil, err
	}
	parks := to.Parks && w.parks(matching)
	chooses := parks && !to.Warm
	unlock, err := p.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	var fitting []*state
	busy := &BusyError{want: w, total: len(matching)}
	for _, u := range matching {
		busy.Candidates = append(busy.Candidates, u.uuid)
		s, err := p.look(u, parts)
		if err != nil {
			return nil, err
		}
		awaited, err := p.awaited(u.uuid, to)
		if err != nil {
			return nil, err
		}
		switch {
		case chooses:
			fitting = append(fitting, s)
		case !s.fits(w.of(u)):
			busy.held++
		case except[u.uuid] || awaited || to.Warm && len(s.pinned) > 0:
			busy.promised++
		default:
			fitting = append(fitting, s)
		}
	}
	if len(fitting) < w.count() {
		return nil, busy
	}
	place := func(s *state) int {
		if i := slices.Index(to.Prefer, s.uuid); i >= 0 {
			return i
		}
		return len(to.Prefer)
	}
	stays := func(s *state) int {
		if s.stays() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(fitting, func(a, b *state) int {
		return cmp.Or(place(a)-place(b), stays(a)-stays(b), len(a.pinned)-len(b.pinned), int(a.used-b.used),
			cmp.Compare(b.memory, a.memory))
	})
	loan := &Loan{Pinned: chooses}
	for _, s := range fitting[:w.count()] {
		err := p.take(loan, s, to.Kernel, w.of(s.unit))
		if err == nil && parks {
			err = p.pin(loan, s, to.Kernel)
		}
		if err != nil {
			loan.Return()
			return nil, fmt.Errorf("%s cannot be lent: %w", s.uuid, err)
		}
	}
	return loan, nil
}

// pin pins a kernel to a unit. The pool's lock is held.
func (p *Pool) pin(l *Loan, s *state, kernel string) error {
	f, err := p.take1(l, fmt.Sprintf("%s%s@%d", s.uuid, pinMark, s.freePin), unix.LOCK_EX)
	if err != nil {
		return err
	}
	return sign(f, holderText{Kernel: kernel, Share: gpu.One})
}

// take adds a unit to a loan, or only its file if the kernel is pinned. The pool's lock is held.
func (p *Pool) take(l *Loan, s *state, kernel string, share gpu.Amount) error {
	l.Devices, l.Share = append(l.Devices, s.uuid), share
	if l.Pinned {
		_, err := p.take1(l, s.uuid, 0)
		return err
	}
	how, own := unix.LOCK_EX, s.uuid
	if share < gpu.One {
		how, own = unix.LOCK_SH, fmt.Sprintf("%s@%d", s.uuid, s.free)
		l.Memory = (s.memory - s.kept) * int64(share) / int64(gpu.One)
	}
	device, err := p.take1(l, s.uuid, how)
	if err == nil && own != s.uuid {
		device, err = p.take1(l, own, unix.LOCK_EX)
	}
	if err != nil {
		return err
	}
	return sign(device, holderText{Kernel: kernel, Share: share})
}

// textSize is the size of a holder's text, in bytes. One that is shorter ends with spaces.
const textSize = 512

// sign writes who holds a unit, and how much of it, into the file that the holder has locked. Others read at any time,
// so the text is never cut before it is written.
func sign(f *os.File, holder holderText) error {
	text, err := json.Marshal(holder)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%-*s", textSize, text), 0)
	}
	return err
}

// take1 opens a file, locks it and adds it to a loan. With a how of 0 it does not lock.
func (p *Pool) take1(l *Loan, name string, how int) (*os.File, error) {
	f, err := p.open(name)
	if err != nil {
		return nil, err
	}
	l.Files = append(l.Files, f)
	if how == 0 {
		return f, nil
	}
	return f, flock.Take(f, how)
}

func (p *Pool) open(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(p.dir, name), os.O_RDWR|os.O_CREATE, 0o600)
}

// Held returns all units of the machine with their holders.
func (p *Pool) Held(ctx context.Context, list gpu.List) ([]gpu.Held, error) {
	unlock, err := p.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	parts, err := p.parts()
	if err != nil {
		return nil, err
	}
	all := []gpu.Held{}
	for _, u := range units(list) {
		h := gpu.Held{UUID: u.uuid, Model: u.model, Profile: u.profile, MemoryTotal: u.memory,
			Healthy: u.err == "", Error: u.err, Holders: []gpu.Holder{}}
		if u.uuid != "" {
			s, err := p.look(u, parts)
			if err != nil {
				return nil, err
			}
			h.Holders, h.Pinned = append(h.Holders, s.holders...), s.pinned
		}
		all = append(all, h)
	}
	return all, nil
}

// look finds out who holds a unit, and who is pinned to it. parts are Pool.parts. The pool's lock is held, so no other
// program looks or lends. Holders may end.
func (p *Pool) look(u unit, parts map[string][]int) (*state, error) {
	s := &state{unit: u}
	pins, freePin, err := p.having(u.uuid+pinMark, parts)
	if err != nil {
		return nil, err
	}
	s.freePin = freePin
	for _, h := range pins {
		s.pinned = append(s.pinned, h.Kernel)
	}
	locked, text, err := p.test(u.uuid, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	if locked { // not even shared: a kernel has it for itself
		s.alone, s.used = true, gpu.One
		s.holders = []gpu.Holder{{Kernel: text.Kernel, Share: gpu.One}}
		return s, nil
	}
	all, free, err := p.having(u.uuid, parts)
	if err != nil {
		return nil, err
	}
	s.free = free
	for _, h := range all {
		s.used += h.Share
		s.holders = append(s.holders, gpu.Holder{Kernel: h.Kernel, Share: h.Share})
	}
	return s, nil
}

// having returns who has parts or pins, whose files begin with a name, and the smallest number that none has. The
// pool's lock is held.
func (p *Pool) having(name string, parts map[string][]int) (all []holderText, free int, err error) {
	free = 1
	for _, n := range parts[name] {
		locked, text, err := p.test(fmt.Sprintf("%s@%d", name, n), unix.LOCK_EX)
		switch {
		case err != nil:
			return nil, 0, err
		case locked:
			all = append(all, text)
			if free == n {
				free = n + 1
			}
		}
	}
	return all, free, nil
}

// parts returns the numbers of the parts that each unit has ever had, in ascending order. Those of its pins are behind
// its UUID with pinMark.
func (p *Pool) parts() (map[string][]int, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]int{}
	for _, e := range entries {
		at := strings.LastIndex(e.Name(), "@")
		if n, err := strconv.Atoi(e.Name()[at+1:]); at > 0 && err == nil && n > 0 {
			all[e.Name()[:at]] = append(all[e.Name()[:at]], n)
		}
	}
	for _, numbers := range all {
		slices.Sort(numbers)
	}
	return all, nil
}

// test reports whether a lock is held such that it could not be taken, and the holder's text. A text that cannot be
// read stands for a whole unit.
func (p *Pool) test(name string, how int) (locked bool, text holderText, err error) {
	f, err := p.open(name)
	if err != nil {
		return false, text, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	switch err := flock.Take(f, how); {
	case err == nil:
		// A process that is being started may have a copy of the descriptor.
		return false, text, unix.Flock(int(f.Fd()), unix.LOCK_UN)
	case !errors.Is(err, flock.ErrBusy):
		return false, text, err
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*textSize))
	if err != nil || json.Unmarshal(b, &text) != nil || text.Share <= 0 {
		text.Share = gpu.One
	}
	return true, text, nil
}

// lock keeps every other Pool of the folder from looking and lending until unlock is called.
func (p *Pool) lock(ctx context.Context) (unlock func(), err error) {
	f, err := flock.Wait(ctx, filepath.Join(p.dir, poolLock))
	if err != nil {
		return nil, fmt.Errorf("lock of the GPUs: %w", err)
	}
	return func() { flock.Unlock(f) }, nil
}
