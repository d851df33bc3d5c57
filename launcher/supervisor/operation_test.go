package supervisor

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// during starts f and returns a function that waits for its end.
func during(f func()) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	return wg.Wait
}

// TestOperations_Race: every one of several concurrent requests is answered, nothing hangs, and the last request
// decides the final state.
func TestOperations_Race(t *testing.T) {
	stubborn := func(c *api.Config) {
		c.Argv, c.StopGrace = fakeKernelArgv("--ignore-shutdown", "--ignore-sigterm"), 200*time.Millisecond
	}
	answers := func(r *running, method, path string, want ...int) func() {
		return func() {
			got, body := r.request(method, path, "")
			for _, w := range want {
				if got == w {
					return
				}
			}
			r.t.Errorf("%s %s: %d %s", method, path, got, body)
		}
	}
	for name, test := range map[string]func(*testing.T){
		"two restarts are one": func(t *testing.T) {
			r := startSupervisor(t, stubborn).ready()
			before, _ := r.s.Status()
			wait := []func(){}
			for range 5 {
				wait = append(wait, during(answers(r, "POST", "/restart", http.StatusOK)))
			}
			for _, w := range wait {
				w()
			}
			after, _ := r.s.Status()
			if n := after.Epoch - before.Epoch; n < 1 || n > 2 {
				t.Errorf("five restarts at once were %d", n)
			}
			r.ready()
		},
		"restart while it starts": func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.Argv = fakeKernelArgv("--start-delay", "200ms") })
			r.until("started", func(st api.Status) bool { return st.KernelPID != 0 })
			answers(r, "POST", "/restart", http.StatusOK)()
			r.ready()
		},
		"stop during a restart, twice": func(t *testing.T) {
			r := startSupervisor(t, stubborn).ready()
			restart := during(answers(r, "POST", "/restart", http.StatusOK, http.StatusNotFound))
			first := during(answers(r, "DELETE", "", http.StatusNoContent))
			second := during(answers(r, "DELETE", "", http.StatusNoContent))
			restart()
			first()
			second()
			<-r.done
		},
		"a signal during a restart": func(t *testing.T) {
			r := startSupervisor(t, stubborn).ready()
			restart := during(func() { r.s.Restart(context.Background()) }) //nolint:errcheck // either end will do
			r.cancel()
			<-r.done
			restart()
		},
		"a crash during a stop": func(t *testing.T) {
			r := startSupervisor(t, stubborn).ready()
			c := r.dial(dialOption{session: "ann"})
			stop := during(answers(r, "DELETE", "", http.StatusNoContent))
			c.execute("crash")
			stop()
			<-r.done
		},
		"interrupts all the while": func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.InterruptMode = "message" }).ready()
			ctx, cancel := context.WithCancel(context.Background())
			interrupts := during(func() {
				for ctx.Err() == nil {
					answers(r, "POST", "/interrupt", http.StatusNoContent, http.StatusConflict)()
				}
			})
			for range 3 {
				answers(r, "POST", "/restart", http.StatusOK)()
			}
			cancel()
			interrupts()
			r.ready()
			c := r.dial(dialOption{session: "ann"})
			c.result(c.execute("print 1"))
		},
		"a websocket when it is over": func(t *testing.T) {
			r := startSupervisor(t, nil).ready()
			dials := make(chan error, 50)
			stop := during(answers(r, "DELETE", "", http.StatusNoContent))
			for range cap(dials) {
				c, err := r.tryDial(dialOption{session: "late"})
				if err != nil {
					break // rejected, or the server has ended
				}
				for err == nil {
					_, err = c.recv()
				}
				if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
					t.Errorf("ended with %v", err)
				}
			}
			stop()
			<-r.done
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// TestRestart_AwaitsTheKernel: a restart is answered when the kernel is up, but not later than restartWait.
func TestRestart_AwaitsTheKernel(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	if status, body := r.request("POST", "/restart", ""); status != http.StatusOK ||
		!strings.Contains(body, `"execution_state":"idle"`) {
		t.Errorf("%d %s", status, body)
	}
}
