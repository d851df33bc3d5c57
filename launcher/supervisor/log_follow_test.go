package supervisor

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
)

func TestLogRoute_Follow(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("", func(t *testing.T) {
		r := startSupervisor(t, nil).ready()
		c := r.dial(dialOption{session: "ann"})
		l := r.openLog("follow=true", nil)
		id := c.executeIn("c1", "print 1000")
		idle := func(l logLine) bool {
			return l.parent() == id && jupyter.StringField(l.Content, "execution_state") == string(api.Idle)
		}
		all := l.until("idle", idle)
		if n := strings.Count(streamed(all, id), `\n`); n != 1000 {
			t.Errorf("%d of 1000 lines came", n)
		}
		filtered := r.openLog("follow=1&parent="+id, nil)
		filtered.until("idle", idle)
		// Output after the end of its request still belongs to its cell. Output of other requests is left out.
		late := c.executeIn("c2", "background 1 every 20ms")
		other := r.openLog("follow=1&parent="+late, nil)
		out := other.until("late output", func(l logLine) bool { return l.msgType() == "stream" })
		for _, l := range out {
			if l.Cell == nil || *l.Cell != "c2" {
				t.Errorf("%s has cell %v", l.msgType(), l.Cell)
			}
		}
		gone := r.openLog("follow=1", nil)
		gone.until("anything", func(logLine) bool { return true })
		_ = gone.conn.Close()
		if status, body := r.request("DELETE", "", ""); status != http.StatusNoContent {
			t.Fatalf("delete: %d %s", status, body)
		}
		l.rest() // fails unless the answer is complete
		for _, l := range filtered.rest() {
			if l.parent() != id { // its reply may come behind its idle
				t.Errorf("%s of another request came", l.msgType())
			}
		}
		select {
		case <-r.done:
		case <-time.After(testLimit):
			t.Fatal("the supervisor does not end")
		}
	})
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

// TestLogRoute_SlowFollower: a follower that does not read is dropped. It delays neither the kernel nor other clients.
func TestLogRoute_SlowFollower(t *testing.T) {
	t.Parallel() // it waits more than it works
	dropped := make(chan struct{}, 1)
	r := startSupervisorTuned(t, func(c *api.Config) { c.LogLimit = 8 << 20 }, func(s *Supervisor) {
		s.logPatience = 3 * time.Second
		s.logger = slog.New(slog.NewTextHandler(writerFunc(func(line []byte) {
			if bytes.Contains(line, []byte("a reader of the log has gone")) {
				goroutines.Wake(dropped)
			}
		}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}).ready()
	c := r.dial(dialOption{session: "ann"})
	deaf := r.openLog("follow=true", nil)
	follower := r.openLog("follow=true", nil)
	read := during(func() {
		for {
			if line, err := follower.next(); err != nil || line.text() == `done\n` {
				if err != nil {
					t.Errorf("the one that reads: %v", err)
				}
				return
			}
		}
	})
	for range 4 { // more than the socket buffers hold
		c.result(c.execute("big 1m"))
	}
	c.result(c.execute("echo done"))
	read()
	select {
	case <-dropped:
	case <-time.After(testLimit):
		t.Fatal("the one that does not read is never dropped")
	}
	if _, err := io.ReadAll(deaf.resp.Body); err == nil {
		t.Error("the answer to one that was dropped looks complete")
	}
}

// writerFunc is called with each write.
type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// TestLogRoute_DeafAtTheEnd: a follower that does not read neither delays the end of the supervisor nor makes it fail.
func TestLogRoute_DeafAtTheEnd(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	r.openLog("follow=true", nil)
	for range 4 {
		c.result(c.execute("big 1m"))
	}
	_ = c.ws.Close()
	r.cancel()
	select {
	case <-r.done: // Serve's error would fail the test
	case <-time.After(testLimit):
		t.Fatal("the supervisor does not end")
	}
}

func TestLogRoute_TooManyReaders(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	for range 64 { // logReadersOfOwner
		if l := r.openLog("follow=1", nil); l.resp.StatusCode != http.StatusOK {
			t.Fatalf("got %d", l.resp.StatusCode)
		}
	}
	if l := r.openLog("", nil); l.resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one too many got %d", l.resp.StatusCode)
	}
}

// growingLog is a response. Each chunk that is written to it makes the log longer.
type growingLog struct {
	deadlineWriter
	s      *Supervisor
	chunks int
}

func (w *growingLog) Write(b []byte) (int, error) {
	if w.chunks++; w.chunks < 100 {
		w.s.mu.Lock()
		w.s.log.Append(allSessions, numbered(w.chunks, 2*logstream.PageBytes), false)
		w.s.mu.Unlock()
	}
	return w.deadlineWriter.Write(b)
}

// TestLogRoute_EndsInAFlood: a reader without follow gets the log as it was at first, however fast the log grows.
func TestLogRoute_EndsInAFlood(t *testing.T) {
	s := New(api.Config{KernelID: testKernelID, LogLimit: 1 << 30}, "test", quiet())
	s.mu.Lock()
	for n := range 3 {
		s.log.Append(allSessions, numbered(n, logstream.PageBytes), false)
	}
	s.mu.Unlock()
	w := &growingLog{deadlineWriter: deadlineWriter{header: http.Header{}}, s: s}
	req, err := http.NewRequest("GET", "http://x/api/kernels/"+testKernelID+"/log", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Handler().ServeHTTP(w, req)
	if n := strings.Count(w.body.String(), "\n"); n != 3 {
		t.Errorf("%d lines of 3", n)
	}
}
