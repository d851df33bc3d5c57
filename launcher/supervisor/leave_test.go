package supervisor

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
)

// TestSupervisor_LeaveReasons: a supervisor stays while its kernel would lose output, and says why.
func TestSupervisor_LeaveReasons(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		change func(*Supervisor)
		busy   bool
		want   error
	}{
		"an idle kernel":               {func(*Supervisor) {}, false, nil},
		"a kernel that printed before": {func(s *Supervisor) { s.clients.lastOutput = now.Add(-quietTime) }, false, nil},
		"a thread of the kernel prints": {func(s *Supervisor) { s.clients.lastOutput = now.Add(-quietTime + 1) }, false,
			staysPrinting},
		"a thread of the kernel prints, and busy": {func(s *Supervisor) { s.clients.lastOutput = now }, true, nil},
		"output that waits for the disk": {func(s *Supervisor) {
			const least = 64 << 10
			s.log = messagelog.New(messagelog.Options{Limit: 1 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
			s.log.Append(allSessions, numbered(0, least/2), false)
			go s.log.AwaitDisk(t.Context(), least)
			for !s.log.Waits() {
				runtime.Gosched()
			}
		}, false, staysPrinting},
		"a request": {func(s *Supervisor) { s.clients.add(&requests.Request{ID: "1"}) }, false, staysBusy},
		"lost messages": {func(s *Supervisor) {
			s.kernel.bridge = &bridge{}
			for _, n := range []int{1, 5000} {
				s.kernel.bridge.gaps.Observe(fmt.Appendf(nil, "a_1_%d", n), now)
			}
		}, false, staysLosing},
		"a stop":           {func(s *Supervisor) { s.kernel.stopping = true }, false, staysStopping},
		"a stop, and busy": {func(s *Supervisor) { s.kernel.stopping = true }, true, staysStopping},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(api.Config{LogLimit: 1 << 20}, "test", quiet())
			s.now = func() time.Time { return now }
			s.stateFile = savedstate.NewFile(t.TempDir())
			s.mu.Lock()
			tc.change(s)
			s.mu.Unlock()
			err := s.stateFile.Save(func() ([]byte, error) { return s.lastState(tc.busy) })
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Fatalf("it leaves with %v, want %v", err, tc.want)
			}
			if err != nil {
				return
			}
			state, err := s.stateFile.Read()
			if err != nil || !state.Left || state.Complete == tc.busy {
				t.Errorf("the state is %+v, %v", state, err)
			}
		})
	}
}
