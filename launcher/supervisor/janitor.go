package supervisor

import (
	"context"
	"time"
)

// sweepInterval is how often the janitor looks while there is something that may turn out to be lost.
const sweepInterval = time.Second

// watchLosses looks for what a kernel's sockets have lost: output, and the idles that end cells. It sleeps while nothing
// is open.
func (s *Supervisor) watchLosses(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.janitor:
			if again == nil {
				again = time.After(sweepInterval)
			}
		case <-again:
			again = nil
			if s.sweep() {
				again = time.After(sweepInterval)
			}
		}
	}
}

// sweep does one round and reports whether another is needed.
func (s *Supervisor) sweep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	gaps := s.announceGaps() // first: a cell that is ended shows nothing more
	idles := s.endLostIdles()
	return gaps || idles
}

// endLostIdles sends idles that were lost: where a reply has come, its idle has not, and the kernel has been silent on
// iopub for idleGrace, ZeroMQ's send limit has thrown it away, and with it most likely output. Without it the cell
// would look busy for ever. It reports whether there are more to wait for. s.mu is held.
func (s *Supervisor) endLostIdles() (more bool) {
	now := s.now()
	for _, r := range s.order {
		if !r.replied || r.idled || r.quiet.IsZero() {
			continue
		}
		since := r.quiet
		if s.lastOutput.After(since) {
			since = s.lastOutput
		}
		if now.Sub(since) < idleGrace {
			more = true
			continue
		}
		if r.session != nil && r.msgType == "execute_request" && !r.lossTold {
			s.log.append(nil, s.notice(r.header, "Output of this cell was lost inside the kernel: it was produced faster than the kernel could send it."), true)
		}
		s.abort(r, "", "", "")
		s.changed()
	}
	return more
}
