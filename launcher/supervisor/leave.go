package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

const (
	leaveLimit = 3 * time.Second       // for clients to acknowledge what they have; pings go out once a second
	leaveLook  = 20 * time.Millisecond // between two checks
	quietTime  = time.Second           // without output, since threads of an idle kernel may print
)

// Leave prepares for another supervisor, which adopts the kernel when this program has exited. It waits until the
// kernel works on no request and prints nothing, and every client has everything. Then it saves the state. If the wait
// takes too long, Leave returns the reason and changes nothing. With busy it saves the state all the same: the output
// that clients do not have is lost, and a notice in their cells says so.
//
// After nil the supervisor accepts nothing more, so that the saved state stays true. The caller ends the program.
func (s *Supervisor) Leave(ctx context.Context, busy bool) error {
	if s.stateFile == nil {
		return errors.New("it saves no state for another supervisor")
	}
	ctx, cancel := context.WithTimeout(ctx, leaveLimit)
	defer cancel()
	for {
		late := goroutines.Sleep(ctx, leaveLook) != nil
		err := s.stateFile.Save(func() ([]byte, error) { return s.lastState(late && busy) })
		switch {
		case err == nil:
			s.logger.Info("supervisor leaves its kernel to the next one")
			return nil
		case !errors.As(err, new(stayError)):
			s.logger.Error("the state for the next supervisor cannot be saved", logkey.Err, err)
			return nil // it is saved after each change anyway, so little is missing
		case late:
			s.logger.Info("supervisor stays with its kernel", logkey.Reason, err)
			return err
		}
	}
}

// stayError says why a supervisor cannot leave its kernel at present.
type stayError string

// Error returns the reason.
func (e stayError) Error() string { return "its supervisor stays: " + string(e) }

// The reasons of a stayError. A stop is one: the next supervisor would take the kernel's end for a death, and start it
// again.
const (
	staysStopping = stayError("the kernel is being stopped")
	staysBusy     = stayError("it is busy")
	staysUnread   = stayError("a page has not received all output")
	staysPrinting = stayError("the kernel has printed within the last second, and would lose output")
	staysLosing   = stayError("output was lost in the kernel, and pages do not know that yet")
)

// lastState returns the state for the next supervisor, and returns with s.mu locked. It returns a stayError, with s.mu
// unlocked, if the kernel is being stopped, or if clients would miss output and mayMiss is false.
func (s *Supervisor) lastState(mayMiss bool) ([]byte, error) {
	s.mu.Lock()
	why := s.incompleteLocked()
	if s.kernel.stopping {
		why, mayMiss = staysStopping, false
	}
	if why != nil && !mayMiss {
		s.mu.Unlock()
		return nil, why
	}
	state := s.savedStateLocked()
	state.Left, state.Complete = true, why == nil
	return json.Marshal(state)
}

// incompleteLocked returns which output clients would miss if the supervisor left now; nil if they would miss none.
func (s *Supervisor) incompleteLocked() error {
	switch {
	case s.clients.requests.Len() > 0:
		return staysBusy
	// No supervisor reads what the kernel prints while the supervisors change.
	case s.now().Sub(s.clients.lastOutput) < quietTime, s.log.Waits():
		return staysPrinting
	case s.kernel.bridge != nil && s.kernel.bridge.gaps.Open():
		return staysLosing
	case !s.clients.sessions.AllRead(s.log.Tail()):
		return staysUnread
	}
	return nil
}
