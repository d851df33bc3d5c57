// Package podseat is a kernel's place at a GPU that the kernels of several pods share. It is a gpumemory.Seat that
// remembers what a gateway has granted. Gateways hear its wishes in the supervisor's status, and tell it whose turn it
// is. While none does, the kernel keeps what it has, and waits for what it has not. Begin with Open. The package starts
// no goroutine.
package podseat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
)

const (
	// answerTime is for a gateway to answer a wish for the first time.
	answerTime = 5 * time.Second
	// silence is how long gateways may tell a kernel nothing that waits. They do it every 10 seconds.
	silence = 25 * time.Second
	// trusted is how long news count although another gateway cannot tell any.
	trusted = 15 * time.Second
)

// wholeGPU matches the UUID of a GPU, and none of an instance (MIG). A Lease is named after it.
var wholeGPU = regexp.MustCompile(`^GPU-[0-9A-Za-z]+(-[0-9A-Za-z]+){0,9}$`)

// Seat is a kernel's place at the GPU that its pod sees. All methods may be called concurrently.
type Seat struct {
	// Fixed.
	file    string
	last    bool
	changed func()
	now     func() time.Time

	mu      sync.Mutex
	kept    kept
	taken   bool      // the kernel knows that it has the GPU
	since   time.Time // since when the kernel waits; zero: it does not
	until   time.Time // until when it keeps the GPU
	news    api.SeatNews
	heard   time.Time // when the last news came; zero: none has come
	version uint64    // changes with what Say returns
}

// kept is what the next supervisor of the kernel has to know.
type kept struct {
	GPU      string `json:"gpu,omitempty"`
	Holds    int64  `json:"holds,omitempty"`
	Returned int64  `json:"returned,omitempty"`
}

// Open returns the seat of a kernel, with what an earlier supervisor has left in a file. Last puts it behind all
// others. Changed is called after each change of what Say returns, without a lock of the seat.
func Open(file string, last bool, changed func(), now func() time.Time) (*Seat, error) {
	s := &Seat{file: file, last: last, changed: changed, now: now}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &s.kept)
	}
	if err != nil {
		return nil, fmt.Errorf("whether the kernel has its GPU is not known: %w", err)
	}
	return s, nil
}

// change changes the seat, and keeps the change for the next supervisor. An error means that nothing has changed.
func (s *Seat) change(f func(*kept)) error {
	k := s.kept
	if f(&k); k == s.kept {
		return nil
	}
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := files.Replace(s.file, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	}); err != nil {
		return err
	}
	s.kept = k
	s.version++
	return nil
}

// locked calls f with the lock, and tells of a change.
func (s *Seat) locked(f func() error) error {
	s.mu.Lock()
	before := s.version
	err := f()
	told := s.version != before
	s.mu.Unlock()
	if told {
		s.changed()
	}
	return err
}

// Version changes with what Say returns. It may be called with any lock held.
func (s *Seat) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Say returns what gateways have to know. The devices are what the kernel's pod sees. The first answer counts, since
// the pod keeps its GPU, and its user can forge later ones. Only one whole GPU can be shared by turns. It may be called
// with any lock held.
func (s *Seat) Say(devices []api.GPU) api.Seat {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept.GPU == "" && len(devices) == 1 && wholeGPU.MatchString(devices[0].UUID) {
		// It is kept with the next grant. The next supervisor hears it again from ekg-gpu.
		s.kept.GPU = devices[0].UUID
		s.version++
	}
	return api.Seat{GPU: s.kept.GPU, Last: s.last, Since: s.since, Holds: s.kept.Holds, Returned: s.kept.Returned,
		Until: s.until, News: s.news}
}

// Told takes news of a gateway. A grant that the kernel did not ask for is given back at once. An error means that the
// grant is not taken.
func (s *Seat) Told(n api.SeatNews) error {
	return s.locked(func() error {
		now := s.now()
		if n.Problem != "" && !s.heard.IsZero() && now.Sub(s.heard) < trusted && s.news.Problem == "" {
			return nil // another gateway knows
		}
		if n.Grant != 0 && n.Grant < s.kept.Holds {
			return nil // it is late
		}
		if n.Grant > s.kept.Returned && n.Grant > s.kept.Holds {
			if err := s.change(func(k *kept) {
				if k.Holds == 0 && s.since.IsZero() {
					k.Returned = n.Grant
				} else {
					k.Holds = n.Grant
				}
			}); err != nil {
				return fmt.Errorf("the grant is not taken: %w", err)
			}
		}
		if !n.Same(s.news) {
			s.version++
		}
		s.news, s.heard = n, now
		return nil
	})
}

// Owns reports whether the GPU is the kernel's. Unlike on one machine, a GPU that is free has to be granted first.
func (s *Seat) Owns() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = s.kept.Holds != 0
	return s.taken, nil
}

// TakeFree is Owns: no GPU is taken that was not granted.
func (s *Seat) TakeFree() (bool, error) { return s.Owns() }

// Return gives the GPU back.
func (s *Seat) Return() error { return s.locked(s.giveBack) }

func (s *Seat) giveBack() error {
	if s.kept.Holds == 0 {
		return nil
	}
	err := s.change(func(k *kept) { k.Holds, k.Returned = 0, k.Holds })
	if err == nil {
		s.taken, s.until = false, time.Time{}
	}
	return err
}

// Keep says until when the kernel keeps its GPU.
func (s *Seat) Keep(until time.Time) error {
	return s.locked(func() error {
		if until = until.UTC().Round(0); !until.Equal(s.until) {
			s.until = until
			s.version++
		}
		return nil
	})
}

// Kept returns until when another kernel keeps the GPU. The error is a gpumemory.Unknown while that is not known.
func (s *Seat) Kept() (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	switch {
	case s.kept.GPU == "":
		return time.Time{}, gpumemory.Unknown("ekg-gpu has not said yet which GPU its pod has")
	case s.heard.Before(s.since) && now.Sub(s.since) < answerTime:
		return time.Time{}, gpumemory.Unknown("a gateway is asked for it")
	case s.heard.Before(s.since), now.Sub(s.heard) >= silence:
		return time.Time{}, gpumemory.Unknown("no gateway answers")
	case s.news.Problem != "":
		return time.Time{}, gpumemory.Unknown(s.news.Problem)
	case !s.news.Kept.After(now):
		return time.Time{}, nil
	}
	return s.news.Kept, nil
}

// Wanted reports whether another kernel waits for the GPU that this one has.
func (s *Seat) Wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Holds != 0 && s.news.Grant == s.kept.Holds && s.news.Wanted
}

// Exclusive does not wait: each pod has memory of its own.
func (s *Seat) Exclusive(context.Context) (end func(), err error) { return func() {}, nil }

// Saved returns 0, for the same reason.
func (s *Seat) Saved() (int64, error) { return 0, nil }

// NoteSaved does nothing: nobody asks.
func (s *Seat) NoteSaved(int, int64) error { return nil }

// ForgetSaved does nothing.
func (s *Seat) ForgetSaved() error { return nil }

// Wait puts the kernel in the line for the GPU.
func (s *Seat) Wait(since time.Time) (gpumemory.Turn, error) {
	return turn{s}, s.locked(func() error {
		s.since = since.UTC().Round(0)
		s.version++
		return nil
	})
}

// turn is the wait of a kernel for its GPU.
type turn struct{ *Seat }

// Take takes the GPU if it was granted. before is how many kernels wait before this one.
func (t turn) Take() (taken bool, before int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken = t.kept.Holds != 0
	if !t.heard.Before(t.since) {
		before = t.news.Before
	}
	return t.taken, before, nil
}

// Leave ends the wait. A GPU that was granted meanwhile is given back.
func (t turn) Leave() {
	_ = t.locked(func() error { // the kernel has the GPU then, and may be parked later
		if t.since = (time.Time{}); !t.taken {
			_ = t.giveBack()
		}
		t.version++
		return nil
	})
}
