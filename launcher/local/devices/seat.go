package devices

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

const (
	// waitMark is in the names of the files of those that wait for a unit.
	waitMark = "@wait-"
	// waitRenewal is how long a wait counts without Renew. Its program may have frozen.
	waitRenewal = 30 * time.Second
	// seatTime bounds the wait for a lock that others hold only briefly.
	seatTime = 2 * time.Second
)

// Waiter is a kernel that waits for a unit, as all programs of the machine see it. A file says so, which the program
// keeps locked:
//
//	DIR/UUID@wait-CLASS-NANOSECONDS-PID-N
//
// The names sort as the kernels have come, and those of jobs behind all others. A file that nobody has locked means
// nothing, and is removed by those that look. Its methods may not be called concurrently.
type Waiter struct {
	file *os.File
	name string
}

var waitNumber atomic.Int64 // of the last Wait

// Wait enters a kernel that waits for a unit since a time.
func (p *Pool) Wait(uuid string, since time.Time, job bool) (*Waiter, error) {
	name := fmt.Sprintf("%s-%d-%d", waitName(uuid, since, job), os.Getpid(), waitNumber.Add(1))
	ctx, cancel := context.WithTimeout(context.Background(), seatTime) // a program that looks at it locks it briefly
	defer cancel()
	f, err := flock.Wait(ctx, filepath.Join(p.dir, name))
	if err != nil {
		return nil, err
	}
	return &Waiter{f, name}, nil
}

// Renew says that the kernel still waits. It must be called at least every 10 seconds.
func (w *Waiter) Renew() error {
	now := time.Now()
	return os.Chtimes(w.file.Name(), now, now)
}

// Leave ends the wait.
func (w *Waiter) Leave() {
	_ = os.Remove(w.file.Name()) // without it the file means nothing
	_ = w.file.Close()
}

// waiters returns the names of the files of those that wait for a unit, the first in line first.
func (p *Pool) waiters(uuid string) ([]string, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), uuid+waitMark) && p.waits(e.Name()) {
			all = append(all, e.Name())
		}
	}
	return all, nil // as ReadDir sorts them
}

// waits reports whether the program lives whose file it is, and has renewed it. It removes a file that nobody has
// locked.
func (p *Pool) waits(name string) bool {
	path := filepath.Join(p.dir, name)
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // it was only read
	switch err := flock.Take(f, unix.LOCK_SH); {
	case err == nil:
		if i, serr := f.Stat(); serr == nil && time.Since(i.ModTime()) > waitRenewal {
			_ = os.Remove(path) // another look tries again
		}
		return false
	case !errors.Is(err, flock.ErrBusy):
		return false
	}
	i, err := f.Stat()
	return err == nil && time.Since(i.ModTime()) <= waitRenewal
}

// Seat is a kernel's place at the one unit that it is pinned to. The kernel's processes have inherited the open file of
// the unit's lock. While the lock is held, the unit is the kernel's. It may give the unit back and take it again. All
// methods may be called concurrently.
type Seat struct {
	pool   *Pool
	uuid   string
	kernel string
	lock   *os.File
	pinned bool // others see that the kernel is pinned, and it has perhaps started without the unit
}

// NewSeat returns the seat of a kernel to which Pool.Lend has lent one whole GPU, or that it has pinned to one. The
// files are Loan.Files. For others it returns nil. They cannot give their devices back before their end: NVIDIA's
// driver saves no instances (MIG).
func NewSeat(kernel string, files []*os.File) *Seat {
	if len(files) != 1 && len(files) != 2 {
		return nil
	}
	path, uuid := pathOf(files[0])
	if path == "" || strings.Contains(uuid, "@") || strings.HasPrefix(uuid, "MIG-") {
		return nil
	}
	s := &Seat{pool: &Pool{filepath.Dir(path)}, uuid: uuid, kernel: kernel, lock: files[0], pinned: len(files) == 2}
	if _, pin := pathOf(files[len(files)-1]); s.pinned && !strings.HasPrefix(pin, uuid+pinMark+"@") {
		return nil
	}
	return s
}

// pathOf returns the path of an open file and its last element; "" if they are not known.
func pathOf(f *os.File) (path, name string) {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return "", ""
	}
	return path, filepath.Base(path)
}

// Return gives the unit back.
func (s *Seat) Return() error { return unix.Flock(int(s.lock.Fd()), unix.LOCK_UN) }

// Owns reports whether the unit is the kernel's. A free unit becomes its own, unless the kernel has a pin: then it
// stays free until it is taken.
func (s *Seat) Owns() (bool, error) { return s.take(!s.pinned) }

// TakeFree takes the unit if it is free, whether others wait for it or not. It reports whether the unit is the
// kernel's.
func (s *Seat) TakeFree() (bool, error) { return s.take(true) }

// take reports whether the unit is the kernel's. With free, a unit that is free becomes its own.
func (s *Seat) take(free bool) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), seatTime)
	defer cancel()
	unlock, err := s.pool.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if !free {
		if locked, _, err := s.pool.test(s.uuid, unix.LOCK_SH); !locked || err != nil {
			return false, err
		}
	}
	switch err := flock.Take(s.lock, unix.LOCK_EX); {
	case errors.Is(err, flock.ErrBusy):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, sign(s.lock, holderText{Kernel: s.kernel, Share: gpu.One})
}

// Keep says to those who wait until when the kernel keeps its unit. The zero time, or one that is over, says nothing.
func (s *Seat) Keep(until time.Time) error {
	return sign(s.lock, holderText{Kernel: s.kernel, Share: gpu.One, Until: until})
}

// Kept returns until when another kernel keeps the unit, as it has said. The time is zero if none has.
func (s *Seat) Kept() (time.Time, error) {
	locked, holder, err := s.pool.test(s.uuid, unix.LOCK_SH)
	if !locked || !holder.Until.After(time.Now()) {
		return time.Time{}, err
	}
	return holder.Until, err
}

// Wanted reports whether another kernel waits for the unit.
func (s *Seat) Wanted() bool {
	all, err := s.pool.waiters(s.uuid)
	return err == nil && len(all) > 0
}

// saveLock is in the folder of a Pool, and is held by a kernel that gives its unit back.
const saveLock = "@save"

// Exclusive waits until no other kernel of the machine gives its unit back. So they do not fill the machine's memory
// together, and one kernel that waits for any of several units makes only one holder give its unit back.
func (s *Seat) Exclusive(ctx context.Context) (end func(), err error) {
	f, err := flock.Wait(ctx, filepath.Join(s.pool.dir, saveLock))
	if err != nil {
		return nil, err
	}
	return func() { flock.Unlock(f) }, nil
}

// Wait puts the kernel in the line for its unit.
func (s *Seat) Wait(since time.Time, job bool) (*Turn, error) {
	w, err := s.pool.Wait(s.uuid, since, job)
	if err != nil {
		return nil, err
	}
	return &Turn{Waiter: w, seat: s}, nil
}

// Turn is the wait of a kernel for its own unit. Its methods may not be called concurrently.
type Turn struct {
	*Waiter
	seat    *Seat
	renewed time.Time
}

// Take takes the unit if it is free and the kernel is first in line. before is how many kernels are before it.
func (t *Turn) Take() (taken bool, before int, err error) {
	if time.Since(t.renewed) > waitRenewal/6 {
		if err := t.Renew(); err != nil {
			return false, 0, err
		}
		t.renewed = time.Now()
	}
	all, err := t.seat.pool.waiters(t.seat.uuid)
	if err != nil {
		return false, 0, err
	}
	if before = slices.Index(all, t.name); before < 0 {
		return false, 0, fmt.Errorf("the file of this wait is gone: %w", fs.ErrNotExist)
	}
	if before > 0 {
		return false, before, nil
	}
	taken, err = t.seat.TakeFree()
	return taken, 0, err
}

// awaited reports whether a kernel waits for a unit that goes before another one.
func (p *Pool) awaited(uuid string, other Borrower) (bool, error) {
	all, err := p.waiters(uuid)
	if err != nil || len(all) == 0 {
		return false, err
	}
	return other.Since.IsZero() || all[0] < waitName(uuid, other.Since, other.Job), nil
}

// waitName returns the beginning of the name of the file of a kernel that waits.
func waitName(uuid string, since time.Time, job bool) string {
	class := 0
	if job {
		class = 1
	}
	return fmt.Sprintf("%s%s%d-%020d", uuid, waitMark, class, max(0, since.UnixNano()))
}
