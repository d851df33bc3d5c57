// Package follow keeps a status stream open to the supervisor of each kernel, for both launchers. It opens at most 64
// streams at a time, and opens a broken one again. A Supervisor holds the last status of one supervisor. A Follower has
// the goroutines, and sums what the supervisors count. Begin with Follower.FollowLocked.
//
// The launcher decides which supervisors are followed, what a status means for its kernel, and whether a broken stream
// is opened again. A Follower starts one goroutine for each followed supervisor, in the launcher's group of goroutines.
// They end with the launcher's context.
package follow

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// maxOpening bounds how many streams are being opened at one time.
	maxOpening = 64

	// unsupportedPause is the pause between two attempts to reach a supervisor that this gateway cannot speak to. They
	// notice its end and that it still lives.
	unsupportedPause = 30 * time.Second
)

// Options says how a launcher's supervisors are followed.
type Options struct {
	Lock        sync.Locker       // the launcher's, which guards every Supervisor and the sums
	Goroutines  *goroutines.Group // of the launcher
	FirstRedial time.Duration     // pause after the end of a stream that has given a status
	LastRedial  time.Duration     // longest pause; each attempt without a status doubles the pause
	Since       time.Time         // counts from before this time are not summed
	Log         *slog.Logger

	Now func() time.Time // for Supervisor.Lost; nil: time.Now
}

// Follower follows the supervisors of a launcher's kernels. Methods whose names end in Locked need Options.Lock.
type Follower struct {
	// Fixed.
	opts    Options
	ctx     context.Context // the launcher's life
	opening chan struct{}   // one element for each stream that is being opened

	tally api.Tally // guarded by Options.Lock
}

// New returns a Follower whose goroutines end with ctx.
func New(ctx context.Context, o Options) *Follower {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Follower{opts: o, ctx: ctx, opening: make(chan struct{}, maxOpening), tally: api.NewTally(o.Since)}
}

// Kernel is a followed supervisor's kernel, as its launcher knows it.
type Kernel interface {
	// ID returns the kernel's id, for logs.
	ID() string

	// Client returns a client for the next stream.
	Client() (*api.Client, error)

	// Receive is called with each status, one after the other, without the lock. It calls enterLocked once, with the lock
	// held, and does what the status asks for. enterLocked records the status and returns what was known until then. It
	// returns ok false if the supervisor has another stream by now; the status must then be ignored.
	Receive(status api.Status, enterLocked func() (before Supervisor, ok bool))

	// Rest waits between two streams, for about the given pause. It reports whether another stream is wanted.
	Rest(pause time.Duration) bool
}

// FollowLocked starts to follow a kernel's supervisor, unless it is being followed or the launcher is closed.
func (f *Follower) FollowLocked(s *Supervisor, k Kernel) {
	if s.stream != nil {
		return
	}
	st := new(stream)
	if f.opts.Goroutines.Go(func() { f.follow(s, st, k) }) {
		s.stream = st
	}
}

// stream stands for a goroutine that follows a supervisor. Supervisor.stream is the present one. A goroutine ends when
// it finds that another stream is the present one.
type stream struct {
	failed bool // at least one attempt has not led to a status; guarded by Options.Lock
}

// follow opens one stream after the other until the launcher closes, the launcher leaves the supervisor, or the kernel
// wants no other stream.
func (f *Follower) follow(s *Supervisor, st *stream, k Kernel) {
	pause := f.opts.FirstRedial
	for {
		received := false
		err := goroutines.Contain(func() (err error) {
			received, err = f.open(s, st, k)
			return err
		})
		if f.ctx.Err() != nil {
			return
		}
		var panicked *goroutines.PanicError
		if errors.As(err, &panicked) {
			f.opts.Log.Error("a kernel's status stream has ended by a panic", logkey.Kernel, k.ID(), logkey.Err, err)
		}
		unsupported := f.ended(s, st, k, err)
		if received {
			pause = f.opts.FirstRedial
		}
		wait := pause + time.Duration(rand.Int64N(int64(pause/4)+1))
		if unsupported {
			wait = unsupportedPause
		}
		again := k.Rest(wait) && f.ctx.Err() == nil
		f.opts.Lock.Lock()
		present := s.stream == st
		if present && !again {
			s.stream = nil
		}
		f.opts.Lock.Unlock()
		if !present || !again {
			return
		}
		pause = min(2*pause, f.opts.LastRedial)
	}
}

// open opens one stream and follows it to its end. It reports whether a status came.
func (f *Follower) open(s *Supervisor, st *stream, k Kernel) (received bool, err error) {
	select {
	case f.opening <- struct{}{}:
	case <-f.ctx.Done():
		return false, context.Cause(f.ctx)
	}
	// A stream counts as being opened until its first line.
	opened := sync.OnceFunc(func() { <-f.opening })
	defer opened()
	client, err := k.Client()
	if err != nil {
		return false, err
	}
	err = client.Watch(f.ctx, func(status api.Status) {
		opened()
		received = true
		k.Receive(status, func() (Supervisor, bool) {
			if s.stream != st {
				return Supervisor{}, false
			}
			before := f.EnterLocked(s, status)
			f.logDeathLocked(s, k.ID(), before)
			return before, true
		})
	})
	return received, err
}

// EnterLocked records a status and returns what was known until then. Launchers call it only for a status that did not
// come by a stream.
func (f *Follower) EnterLocked(s *Supervisor, status api.Status) (before Supervisor) {
	before = *s
	s.Status, s.HasStatus, s.Streaming, s.Lost = status, true, true, time.Time{}
	s.Unsupported, s.Refused = "", time.Time{}
	f.tally.Add(s.counted, status.Counts)
	s.counted = status.Counts
	s.ChangedLocked()
	return before
}

// logDeathLocked logs the kernel's last death, unless it was seen before. A death in the first status may be old: it
// counts if no cell was run since. While the kernel starts, its status does not say that.
func (f *Follower) logDeathLocked(s *Supervisor, id string, before Supervisor) {
	d := s.Status.LastDeath
	if d.At.IsZero() || d.At.Equal(s.died) {
		return // a new supervisor does not know yet what its kernel did
	}
	old := !before.HasStatus || d.At.Equal(before.Status.LastDeath.At)
	if old && s.Status.State == api.Starting {
		return // a later status decides
	}
	s.died = d.At
	if !old || s.Status.Reason == d.Text() || s.Status.State == api.Dead {
		f.opts.Log.Warn("kernel died", logkey.Kernel, id, logkey.At, d.At, logkey.Reason, d.Reason)
	}
}

// unsupportedReason returns the sentence for a supervisor that this gateway cannot speak to, or "".
func unsupportedReason(err error) string {
	var version *api.VersionError
	var other *launcher.UnsupportedError // of a Kernel's Client, or of a client's Dial
	switch {
	case errors.As(err, &version):
		return version.Error()
	case errors.As(err, &other):
		return other.Reason
	}
	return ""
}

// ended records that the supervisor's last status is no longer kept up to date. It reports whether this gateway cannot
// speak to the supervisor.
func (f *Follower) ended(s *Supervisor, st *stream, k Kernel, err error) (unsupported bool) {
	reason := unsupportedReason(err)
	unsupported = reason != ""
	f.opts.Lock.Lock()
	defer f.opts.Lock.Unlock()
	if s.stream != st {
		return unsupported
	}
	was, first, failed := s.Streaming, unsupported && s.Unsupported == "", st.failed
	s.Streaming, st.failed = false, true
	if was {
		s.Lost = f.opts.Now()
	}
	if unsupported {
		s.Unsupported, s.Refused = reason, f.opts.Now()
	}
	if was || first || !failed {
		s.ChangedLocked()
	}
	switch {
	case first:
		f.opts.Log.Error("kernel is left alone", logkey.Kernel, k.ID(), logkey.Err, reason)
	case was:
		f.opts.Log.Debug("status stream ended", logkey.Kernel, k.ID(), logkey.Err, err)
	}
	return unsupported
}

// Await waits until cond, which is called with the lock held, is true. It returns false if ctx or the launcher ends
// before that.
func (f *Follower) Await(ctx context.Context, s *Supervisor, cond func() bool) bool {
	for {
		f.opts.Lock.Lock()
		ok, changed := cond(), s.changed
		f.opts.Lock.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-f.ctx.Done():
			return false
		}
	}
}

// Wait implements launcher.Launcher's Wait for one kernel, which describe returns. The error is that of describe or
// ctx, or the cause of the launcher's end.
func (f *Follower) Wait(ctx context.Context, s *Supervisor, describe func() (launcher.Kernel, error),
	cond func(launcher.Kernel) bool) (launcher.Kernel, error) {
	for {
		f.opts.Lock.Lock()
		changed := s.changed // read before describe, so that no change is missed
		f.opts.Lock.Unlock()
		k, err := describe()
		if err != nil || cond(k) {
			return k, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return k, ctx.Err()
		case <-f.ctx.Done():
			return k, context.Cause(f.ctx)
		}
	}
}

// MeasureLocked adds what supervisors have counted to m.
func (f *Follower) MeasureLocked(m *launcher.Measures) {
	total := f.tally.Total()
	for i, channel := range api.CountedChannels {
		to, from := total.ToKernel[i], total.FromKernel[i]
		m.Traffic = append(m.Traffic,
			launcher.Traffic{Channel: channel, ToKernel: true, Messages: to[0], Bytes: to[1]},
			launcher.Traffic{Channel: channel, Messages: from[0], Bytes: from[1]})
	}
	m.LogEvicted, m.LogLost, m.Failed, m.Wakes = total.LogEvicted, total.LogLost, total.Failed, total.Wakes
}
