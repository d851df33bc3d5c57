package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answering is a supervisor's side of one connection: it reads the request and then does what the test wants.
func answering(t *testing.T, token string, answer func(r *http.Request, body string, conn net.Conn)) *Client {
	t.Helper()
	return &Client{KernelID: testKernelID, Token: token, Dial: func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() { _ = theirs.Close() }()
			req, err := http.ReadRequest(bufio.NewReader(theirs))
			if err != nil {
				t.Errorf("request: %v", err)
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Errorf("request body: %v", err)
			}
			answer(req, string(body), theirs)
		}()
		t.Cleanup(func() { <-done })
		return ours, nil
	}}
}

const testKernelID = "0a7e3f52-5a2c-4a63-8a58-0d7c61e1a001"

const streamHeader = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\r\n"

func statusLine(t *testing.T, change func(*Status)) string {
	t.Helper()
	st := Status{Protocol: ProtocolVersion, Build: "test", KernelID: testKernelID, State: "idle"}
	if change != nil {
		change(&st)
	}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

func TestClient_Watch(t *testing.T) {
	t.Run("gives every change and says that the stream ended", func(t *testing.T) {
		c := answering(t, "secret", func(r *http.Request, _ string, conn net.Conn) {
			if r.Host != testKernelID || r.URL.Path != "/api/kernels/"+testKernelID+"/status" || r.Method != "GET" {
				t.Errorf("asked for %s %s of %s", r.Method, r.URL, r.Host)
			}
			if got := r.Header.Get("Authorization"); got != "Bearer secret" {
				t.Errorf("authorization is %q", got)
			}
			first, long := statusLine(t, nil), statusLine(t, func(s *Status) { s.Reason = strings.Repeat("x", 5000) })
			_, _ = io.WriteString(conn, streamHeader+first+first+long+long+first+
				statusLine(t, func(s *Status) { s.Memory = 1 }))
		})
		var got []int
		err := c.Watch(t.Context(), func(s Status) { got = append(got, len(s.Reason)+int(s.Memory)) })
		if !slices.Equal(got, []int{0, 5000, 0, 1}) {
			t.Errorf("lines: %v", got)
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("error is %v", err)
		}
	})
	for _, c := range []struct{ name, answer, want string }{
		{"cut within a line", streamHeader + `{"protocol":1`, "unexpected EOF"},
		{"not JSON", streamHeader + "hello\n", "not a status"},
		{"endless line", streamHeader + strings.Repeat("x", 2*maxStatusLine), "a line of more than"},
		{"another kernel", streamHeader + `{"protocol":1,"kernel_id":"x"}` + "\n", `runs kernel "x"`},
		{"refused", "HTTP/1.1 421 Misdirected\r\nContent-Length: 28\r\n\r\n{\"message\":\"not mine\\u0007\"}",
			"answered 421: not mine"},
		{"endless header", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 2*maxResponseHeader), "no answer"},
		{"no HTTP", "ok\n", "no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) { _, _ = io.WriteString(conn, c.answer) })
			err := cl.Watch(t.Context(), func(Status) { t.Error("a status was told") })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	for _, version := range []int{OldestProtocolVersion - 1, NewestProtocolVersion + 1} {
		t.Run(fmt.Sprint("protocol ", version), func(t *testing.T) {
			c := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) {
				_, _ = io.WriteString(conn, streamHeader+statusLine(t, func(s *Status) { s.Protocol = version }))
			})
			err := c.Watch(t.Context(), func(Status) { t.Error("a status was told") })
			var v *VersionError
			if !errors.As(err, &v) || v.Version != version || v.Build != "test" {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("a newer supervisor's unknown fields and state", func(t *testing.T) {
		line := strings.Replace(statusLine(t, func(s *Status) { s.Protocol, s.State = NewestProtocolVersion, "resting" }),
			`{"protocol"`, `{"unknown":{"x":[1]},"protocol"`, 1)
		c := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) {
			_, _ = io.WriteString(conn, streamHeader+line)
		})
		var got []State
		err := c.Watch(t.Context(), func(s Status) { got = append(got, StateOf(s.State)) })
		if len(got) != 1 || got[0] != Unknown || !errors.Is(err, io.EOF) {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("silence of three intervals ends it, less does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			c := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) {
				_, _ = io.WriteString(conn, streamHeader)
				for range 3 {
					time.Sleep(3*StatusInterval - time.Second) // virtual time
					_, _ = io.WriteString(conn, statusLine(t, nil))
				}
				<-release
			})
			begin := time.Now()
			lines := 0
			err := c.Watch(t.Context(), func(Status) { lines++ })
			if lines != 1 || err == nil || !strings.Contains(err.Error(), "silent") {
				t.Errorf("%d lines were given, then %v", lines, err)
			}
			if got, want := time.Since(begin), 3*(3*StatusInterval-time.Second)+3*StatusInterval; got != want {
				t.Errorf("given up after %v, want %v", got, want)
			}
			close(release)
		})
	})
	t.Run("the context ends it", func(t *testing.T) {
		cause := errors.New("closing")
		ctx, cancel := context.WithCancelCause(t.Context())
		c := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) {
			_, _ = io.WriteString(conn, streamHeader+statusLine(t, nil))
			_, _ = io.Copy(io.Discard, conn)
		})
		if err := c.Watch(ctx, func(Status) { cancel(cause) }); err != cause {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cannot be dialled", func(t *testing.T) {
		cause := errors.New("no")
		c := &Client{KernelID: testKernelID, Dial: func(context.Context) (net.Conn, error) { return nil, cause }}
		if err := c.Watch(t.Context(), nil); err != cause {
			t.Errorf("got %v", err)
		}
	})
}

func TestClient_Requests(t *testing.T) {
	var got, request string
	c := answering(t, "", func(r *http.Request, body string, conn net.Conn) {
		request = r.Header.Get(HeaderRequestID)
		got = r.Method + " " + r.URL.Path + " " + body
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	c.Request = "0123abcd"
	if err := c.Stop(t.Context(), `it was "culled"`); err != nil || request != c.Request {
		t.Errorf("the request is %q: %v", request, err)
	}
	if want := `DELETE /api/kernels/` + testKernelID + ` {"reason":"it was \"culled\""}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := c.SetLimits(t.Context(), 1<<20); err != nil {
		t.Error(err)
	}
	if want := `PUT /api/kernels/` + testKernelID + `/limits {"log_limit":1048576}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	silent := answering(t, "", func(_ *http.Request, _ string, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := silent.Stop(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
