// Package devices lends the GPUs of this machine to kernels. launcher/local/lend calls Pool.Lend. A GPU
// is lent by a lock (flock) on a file that the kernel's processes inherit. The system releases the lock when the last
// of them has ended. So nothing has to be cleaned up, and all Pools with one folder agree, also those of other
// programs.
//
//	DIR/@lock    flocked while devices are chosen or looked at
//	DIR/UUID     flocked exclusively by a kernel that has the device for itself, and shared by those that have a part
//	DIR/UUID@N   flocked by the kernel that has part number N; N counts from 1
//
// A kernel that has a whole device may give it back before its end, and take it again: see Seat and Waiter.
//
// A locked file says which kernel holds it, and how large the kernel's part is. A file that nobody has locked means
// nothing. The package starts no goroutine.
package devices

import (
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

const poolLock = "@lock"

// Loan is what a kernel holds. The locks of Files are held until every process that has inherited them has ended, or
// until one of them calls Return. Its methods may not be called concurrently.
type Loan struct {
	Devices []string // UUIDs, the order for CUDA_VISIBLE_DEVICES
	Memory  int64    // bytes of the part of each device; 0: whole devices, or unknown
	Share   gpu.Amount
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
	Prefer []string  // UUIDs that it would have first
}

// Lend lends what a kernel wants. Units in except, and those for which a kernel waits that goes before, are not lent.
// Of the rest it prefers those with the most left. The error is a *NeverError if the machine does not have so much, and
// a *BusyError if others hold it.
func (p *Pool) Lend(ctx context.Context, to Borrower, list gpu.List, w Want, except map[string]bool) (*Loan, error) {
	matching, err := w.choose(list)
	if err != nil {
		return nil, err
	}
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
		s, err := p.look(u, parts[u.uuid])
		if err != nil {
			return nil, err
		}
		awaited, err := p.awaited(u.uuid, to)
		if err != nil {
			return nil, err
		}
		switch {
		case !s.fits(w.of(u)):
			busy.held++
		case except[u.uuid] || awaited:
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
	slices.SortStableFunc(fitting, func(a, b *state) int {
		if d := place(a) - place(b); d != 0 {
			return d
		}
		if d := a.used - b.used; d != 0 {
			return int(d)
		}
		return int(max(-1, min(1, b.memory-a.memory)))
	})
	loan := &Loan{}
	for _, s := range fitting[:w.count()] {
		if err := p.take(loan, s, to.Kernel, w.of(s.unit)); err != nil {
			loan.Return()
			return nil, err
		}
	}
	return loan, nil
}

// take adds a unit to a loan. The pool's lock is held.
func (p *Pool) take(l *Loan, s *state, kernel string, share gpu.Amount) error {
	how, own := unix.LOCK_EX, s.uuid
	if share < gpu.One {
		how, own = unix.LOCK_SH, fmt.Sprintf("%s@%d", s.uuid, s.free)
		l.Memory = (s.memory - s.kept) * int64(share) / int64(gpu.One)
	}
	device, err := p.take1(l, s.uuid, how)
	if err == nil && own != s.uuid {
		device, err = p.take1(l, own, unix.LOCK_EX)
	}
	if err == nil {
		err = sign(device, holderText{Kernel: kernel, Share: share})
	}
	if err != nil {
		return fmt.Errorf("%s cannot be lent: %w", s.uuid, err)
	}
	l.Devices, l.Share = append(l.Devices, s.uuid), share
	return nil
}

// sign writes who holds a unit, and how much of it, into the file that the holder has locked.
func sign(f *os.File, holder holderText) error {
	text, err := json.Marshal(holder)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(text, 0)
	}
	return err
}

// take1 opens a file, locks it and adds it to a loan.
func (p *Pool) take1(l *Loan, name string, how int) (*os.File, error) {
	f, err := p.open(name)
	if err != nil {
		return nil, err
	}
	l.Files = append(l.Files, f)
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
			s, err := p.look(u, parts[u.uuid])
			if err != nil {
				return nil, err
			}
			h.Holders = append(h.Holders, s.holders...)
		}
		all = append(all, h)
	}
	return all, nil
}

// look finds out who holds a unit, of which there are parts with these numbers. The pool's lock is held, so no other
// program looks or lends. Holders may end.
func (p *Pool) look(u unit, numbers []int) (*state, error) {
	s := &state{unit: u, free: 1}
	locked, text, err := p.test(u.uuid, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	if locked { // not even shared: a kernel has it for itself
		s.alone, s.used = true, gpu.One
		s.holders = []gpu.Holder{{Kernel: text.Kernel, Share: gpu.One}}
		return s, nil
	}
	for _, n := range numbers {
		locked, text, err := p.test(fmt.Sprintf("%s@%d", u.uuid, n), unix.LOCK_EX)
		switch {
		case err != nil:
			return nil, err
		case locked:
			s.used += text.Share
			s.holders = append(s.holders, gpu.Holder{Kernel: text.Kernel, Share: text.Share})
			if s.free == n {
				s.free = n + 1
			}
		}
	}
	return s, nil
}

// parts returns the numbers of the parts that each unit has ever had, in ascending order.
func (p *Pool) parts() (map[string][]int, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	all := map[string][]int{}
	for _, e := range entries {
		uuid, text, _ := strings.Cut(e.Name(), "@")
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			all[uuid] = append(all[uuid], n)
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
	b, err := io.ReadAll(io.LimitReader(f, 1<<10))
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
