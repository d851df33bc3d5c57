package supervisor

import (
	"context"
	"time"
)

func (s *Supervisor) wakeJanitor() {
	select {
	case s.janitor <- struct{}{}:
	default:
	}
}

// keepIdles sends idles that a kernel's sockets have lost: where a reply has come, its idle has not, and the kernel has
// been silent on iopub for idleGrace, ZeroMQ's send limit (1,000 messages in most kernels) has thrown it away, and with
// it most likely output. Without it the cell would look busy for ever. It sleeps while nothing is open.
func (s *Supervisor) keepIdles(ctx context.Context) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.janitor:
			if again == nil {
				again = time.After(idleGrace)
			}
		case <-again:
			again = nil
			if wait := s.endLostIdles(); wait > 0 {
				again = time.After(wait)
			}
		}
	}
}

// endLostIdles does one round and returns when the next is due; 0 if nothing is open.
func (s *Supervisor) endLostIdles() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var wait time.Duration
	for _, r := range s.order {
		if !r.replied || r.idled || r.quiet.IsZero() {
			continue
		}
		since := r.quiet
		if s.lastOutput.After(since) {
			since = s.lastOutput
		}
		if left := idleGrace - now.Sub(since); left > 0 {
			wait = max(wait, left)
			continue
		}
		if r.session != nil && r.msgType == "execute_request" {
			s.log.append(nil, s.notice(r.header, "Output of this cell was lost inside the kernel: it was produced faster than the kernel could send it."), true)
		}
		s.abort(r, "", "", "")
		s.changed()
	}
	return wait
}
