package gateway

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/channels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// scriptedLog is a supervisor's answer to a reader of its log: each text that is sent is written at once, nil breaks
// the connection, and the end of the channel ends the answer.
type scriptedLog struct {
	say  chan *string
	gone chan struct{} // closed when the gateway has left
}

func scriptLog(s *fakeSupervisor) *scriptedLog {
	l := &scriptedLog{say: make(chan *string), gone: make(chan struct{})}
	s.answerWith(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "evil=1")
		w.Header().Set("Content-Type", "text/html")
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for {
			select {
			case text, ok := <-l.say:
				if !ok {
					return
				}
				if text == nil {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, *text)
				_ = rc.Flush()
			case <-r.Context().Done():
				close(l.gone)
				return
			}
		}
	})
	return l
}

func (l *scriptedLog) write(t *testing.T, text string) {
	t.Helper()
	select {
	case l.say <- &text:
	case <-time.After(10 * time.Second):
		t.Fatal("the gateway has left")
	}
}

// follow opens a kernel's log.
func (g *testGateway) follow(t *testing.T, id string) (*http.Response, *bufio.Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", g.http.URL+"/api/kernels/"+id+"/log?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "token "+testToken)
	resp, err := g.http.Client().Transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %d", resp.StatusCode)
	}
	return resp, bufio.NewReader(resp.Body)
}

func wantLine(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	if got, err := in.ReadString('\n'); err != nil || got != want {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

func TestLog_PassedOn(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	script := scriptLog(super)
	resp, in := g.follow(t, idA) // the head comes before any line
	if resp.Header.Get("Content-Type") != "application/x-ndjson" || resp.Header.Get("Set-Cookie") != "" ||
		resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers are %v", resp.Header)
	}
	// each is there before the next is written
	for _, line := range []string{"{\"number\":1}\n", "\n", "{\"number\":2}\n"} {
		script.write(t, line)
		wantLine(t, in, line)
	}
	close(script.say)
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("the end: %q, %v", rest, err)
	}
	for name, want := range map[string]string{
		"0123456789abcdef": "0123456789abcdef", "0123456789abcdef0": "", "<script>": "",
	} {
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(api.HeaderLog, name)
			_, _ = io.WriteString(w, "{}\n")
		})
		if got := g.do("GET", "/api/kernels/"+idA+"/log?log=x", "").Header.Get(api.HeaderLog); got != want {
			t.Errorf("the log named %q is called %q", name, got)
		}
	}
	if want := "/log?log=x host="; !strings.Contains(super.sent(), want) {
		t.Errorf("sent %s", super.sent())
	}
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}\n") })
	g.do("GET", "/api/kernels/"+idA+"/log?after=3&limit=4&parent=a%20b&follow=0&token="+testToken+"&session_id=x&more=y",
		"").want(t, 200, "{}\n")
	if want := "GET /api/kernels/" + idA +
		"/log?after=3&follow=0&limit=4&parent=a+b host="; !strings.Contains(super.sent(), want) {
		t.Errorf("sent %s", super.sent())
	}
	if !strings.Contains(super.sent(), api.HeaderRight+": own") {
		t.Errorf("the right is missing in %s", super.sent())
	}
}

// A client must be able to tell a log that has ended from one that was cut off.
func TestLog_CutOff(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	start := func(t *testing.T) (*scriptedLog, *bufio.Reader) {
		script := scriptLog(super)
		_, in := g.follow(t, idA)
		script.write(t, "{}\n")
		wantLine(t, in, "{}\n")
		return script, in
	}
	t.Run("the supervisor dies", func(t *testing.T) {
		script, in := start(t)
		script.say <- nil
		if rest, err := io.ReadAll(in); !errors.Is(err, io.ErrUnexpectedEOF) || len(rest) > 0 {
			t.Errorf("got %q, %v", rest, err)
		}
	})
	t.Run("the client goes", func(t *testing.T) {
		script := scriptLog(super)
		resp, _ := g.follow(t, idA)
		_ = resp.Body.Close()
		select {
		case <-script.gone:
		case <-time.After(10 * time.Second):
			t.Error("the supervisor still writes")
		}
	})
	t.Run("the kernel is stopped", func(t *testing.T) {
		script, in := start(t)
		g.logReaders.Revoke(idA, channels.ErrKernelStopped)
		script.write(t, "{\"last\":1}\n")
		close(script.say)
		if rest, err := io.ReadAll(in); err != nil || string(rest) != "{\"last\":1}\n" {
			t.Errorf("got %q, %v", rest, err)
		}
	})
	t.Run("the kernel is stopped, and its supervisor hangs", func(t *testing.T) {
		_, in := start(t)
		g.logReaders.Revoke(idA, channels.ErrKernelStopped)
		if _, err := io.ReadAll(in); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the gateway ends", func(t *testing.T) {
		_, in := start(t)
		g.EndLogs()
		if _, err := io.ReadAll(in); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
		g.do("GET", "/api/kernels/"+idA+"/log", "").want(t, 503, "stopping")
	})
}

func TestLog_Refused(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	path := "/api/kernels/" + idA + "/log"
	for status, message := range map[int]string{
		400: "limit: \"x\" is not a number from 1 on", 403: "you may only look", 503: "too many readers",
	} {
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			_ = writeJSON(w, status, errorBody{Reason: "Because", Message: message})
		})
		g.do("GET", path, "").want(t, status, strings.ReplaceAll(message, `"`, `\"`))
	}
	g.do("GET", "/api/kernels/"+idUnknown+"/log", "").want(t, 404, "Kernel does not exist")
	g.do("GET", "/api/kernels/x/log", "").want(t, 404, "Kernel does not exist")
	g.do("POST", path, "").want(t, 405, "")
	g.do("HEAD", path+"?follow=1", "")

	super.close()
	g.do("GET", path, "").want(t, 503, "cannot be reached")
	g.fake.change(func() { g.fake.kernels[idA].super = nil })
	g.fake.set(idA, api.Dead, "it was killed by SIGKILL")
	g.do("GET", path, "").want(t, 404, "its supervisor has ended: it was killed by SIGKILL")
	g.fake.change(func() {
		delete(g.fake.kernels, idA)
		g.fake.gone[idA] = &launcher.GoneError{ID: idA, Reason: "it was shut down on request"}
	})
	g.do("GET", path, "").want(t, 404, "it was shut down on request")
}

// deadlineRecorder is an answer that remembers the deadline of each write.
type deadlineRecorder struct {
	header http.Header
	next   time.Duration
	writes []time.Duration
}

func (w *deadlineRecorder) Header() http.Header { return w.header }
func (w *deadlineRecorder) WriteHeader(int)     {}
func (w *deadlineRecorder) Flush()              {}
func (w *deadlineRecorder) Write(b []byte) (int, error) {
	w.writes = append(w.writes, w.next)
	return len(b), nil
}
func (w *deadlineRecorder) SetWriteDeadline(t time.Time) error { w.next = time.Until(t); return nil }

// Without deadlines a client that does not read would be kept endlessly, and would delay the end of the gateway.
func TestLog_Deadlines(t *testing.T) {
	client, end := context.WithCancel(context.Background())
	defer end()
	w := &deadlineRecorder{header: http.Header{}}
	rc := http.NewResponseController(w)
	for range 2 {
		if err := pass(client, rc, w, []byte("x")); err != nil {
			t.Fatal(err)
		}
		end()
	}
	if len(w.writes) != 2 || w.writes[0] < logPatience/2 || w.writes[0] > logPatience || w.writes[1] > channels.FlushTime {
		t.Errorf("writes had %v", w.writes)
	}
}
