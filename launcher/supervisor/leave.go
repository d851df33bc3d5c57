package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

const (
	leaveLimit = 3 * time.Second       // for clients to acknowledge what they have; pings go out once a second
	leaveLook  = 20 * time.Millisecond // between two checks
)

// Leave prepares for another supervisor, which adopts the kernel when this program has exited. It waits until the
// kernel works on no request and every client has everything. Then it saves the state. If the wait takes too long,
// Leave reports false and changes nothing. With busy it saves the state all the same: the output that clients do not
// have is lost, and a notice in their cells says so.
//
// After true the supervisor accepts nothing more, so that the saved state stays true. The caller ends the program.
func (s *Supervisor) Leave(ctx context.Context, busy bool) bool {
	if s.stateFile == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	for {
		late := sleep.For(ctx, leaveLook) != nil
		err := s.stateFile.Save(func() ([]byte, error) { return s.lastState(late && busy) })
		switch {
		case err == nil:
			s.logger.Info("supervisor leaves its kernel to the next one")
			return true
		case !errors.Is(err, errIncomplete):
			s.logger.Error("the state for the next supervisor cannot be saved", logkey.Err, err)
			return true // it is saved after each change anyway, so little is missing
		case late:
			s.logger.Info("supervisor stays: the kernel is busy, or a client has not received all output")
			return false
		}
	}
}

var errIncomplete = errors.New("a client would miss output")

// lastState returns the state for the next supervisor, and keeps the lock. If clients would miss output, and must not,
// it gives the lock back and returns errIncomplete. So it does while the kernel is being stopped: the next supervisor
// would take its end for a death, and start it again.
func (s *Supervisor) lastState(mayMiss bool) ([]byte, error) {
	s.mu.Lock()
	complete := s.requests.Len() == 0 && s.sessions.AllRead(s.log.Tail())
	if s.stopping || !complete && !mayMiss {
		s.mu.Unlock()
		return nil, errIncomplete
	}
	state := s.savedStateLocked()
	state.Left, state.Complete = true, complete
	return json.Marshal(state)
}
