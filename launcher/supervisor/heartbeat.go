package supervisor

import (
	"context"
	"time"
)

// heartbeatInterval is the time between two heartbeats. One that is not answered for two intervals is missed.
const heartbeatInterval = 30 * time.Second

// silentReason is shown of a kernel that answers no heartbeat: kernels answer from a thread that user code does not
// hold up, so the process as a whole does nothing.
const silentReason = "the kernel's process does not respond: it may be stopped, or the machine may be out of memory"

// keepBeating asks on the heartbeat channel until ctx ends. Nothing depends on it: a kernel whose heartbeat is broken
// works, and is not judged by it.
func (b *bridge) keepBeating(ctx context.Context) {
	for {
		if sock, err := dialSocket(ctx, b.hb, dealer, nil, bridgeLimits); err == nil {
			b.beatOn(ctx, sock)
		} else if ctx.Err() == nil {
			b.complain("heartbeat", "kernel's heartbeat cannot be reached", "err", err)
		}
		if !pause(ctx, b.beat) {
			return
		}
	}
}

// beatOn asks on one connection until it breaks or ctx ends. One question at a time: a kernel that is stopped for a
// week must not find a week's questions.
func (b *bridge) beatOn(ctx context.Context, sock socket) {
	defer sock.Close()                                      //nolint:errcheck // never fails
	defer context.AfterFunc(ctx, func() { sock.Close() })() //nolint:errcheck // likewise
	missed := func() {}                                     // until the first answer the kernel may have no heartbeat at all
	for {
		// A REP socket needs the empty frame; a ROUTER sends both back.
		if err := sock.Send([][]byte{{}, []byte("ping")}); err != nil {
			return
		}
		late := time.AfterFunc(2*b.beat, missed)
		_, err := sock.Recv()
		late.Stop()
		if err != nil {
			return
		}
		missed = b.beaten(b)
		if !pause(ctx, b.beat) {
			return
		}
	}
}

// pause waits, and reports false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// heartbeatAnswered notes that the kernel's process responds. missed is to be called when the next heartbeat is not
// answered in time; called too late it does nothing.
func (s *Supervisor) heartbeatAnswered(b *bridge) (missed func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.beats++
	n := b.beats
	s.setSilent(b, false)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.beats == n {
			s.setSilent(b, true)
		}
	}
}

// setSilent notes whether the kernel's process answers heartbeats. s.mu is held.
func (s *Supervisor) setSilent(b *bridge, silent bool) {
	if s.bridge != b || s.silent == silent {
		return
	}
	s.silent = silent
	s.logger.Warn("kernel's heartbeat", "answered", !silent)
	s.changed()
}
