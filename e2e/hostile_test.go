//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
)

// This file tests a gateway and its clients beside hostile ones.

// TestE2E_Hostile: each hostile request ends in a clear error, or in the end of its connection. A kernel in use is not
// disturbed. Afterwards the gateway has no more goroutines and files than before.
func TestE2E_Hostile(t *testing.T) {
	raiseFiles(t)
	metrics := freeAddress(t, "127.0.0.1")
	g := prepare(t, "", "--allow-origin", "https://good.com", "--metrics-listen", metrics, "--log-level", "debug",
		"--audit-log", "-")
	outside := g.resources()
	g.start()
	id := g.kernel("python3")
	healthy := g.dial(t, id, "healthy", true)
	healthy.says("x = 41", "")
	before := g.held(metrics)
	beat := g.pulse(healthy)

	slow := g.slowClients(g.kernel("fake"))
	for name, attack := range map[string]func(*gateway){
		"sizes":          (*gateway).sizes,
		"paths":          (*gateway).paths,
		"framing":        (*gateway).framing,
		"origins":        (*gateway).origins,
		"variables":      (*gateway).variables,
		"invalid frames": func(g *gateway) { g.badFrames(id) },
	} {
		t.Run(name, func(t *testing.T) {
			mine := *g
			mine.t = t
			attack(&mine)
		})
	}
	t.Run("foreign host names", rebinding)
	t.Run("idle connections", idle)
	slow()

	beat()
	healthy.t = t
	healthy.says("print(x + 1)", "42\n")
	var all []model
	g.want(200, "GET", "/api/kernels", "", &all)
	for _, m := range all {
		if m.ID != id {
			g.want(204, "DELETE", "/api/kernels/"+m.ID, "", nil)
		}
	}
	g.eventually(30*time.Second, "as many goroutines and open files as before", func() error {
		if now := g.held(metrics); now[0] > before[0]+8 || now[1] > before[1]+8 {
			return fmt.Errorf("got %v, %v before", now, before)
		}
		return nil
	})
	if b, err := os.ReadFile(outside); err != nil || string(b) != outsideText {
		t.Errorf("%s holds %q: %v", outside, b, err)
	}
	if _, err := os.Stat("/tmp/hostile"); err == nil {
		t.Error("a shell has read a variable")
	}
	g.wholeLines()
}

// raiseFiles raises the limit of open files for this process and its children.
func raiseFiles(t *testing.T) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Max = max(limit.Max, idleConnections+2000) // only root may exceed the hard limit
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatalf("this machine does not allow the %d open files that %d connections take: %v",
			limit.Max, idleConnections, err)
	}
}

// held returns the numbers of goroutines and of open files of the gateway.
func (g *gateway) held(metrics string) [2]int {
	g.t.Helper()
	n := 0
	line := regexp.MustCompile(`(?m)^go_goroutines \d+$`).FindString(scrape(g.t, metrics))
	if _, err := fmt.Sscanf(line, "go_goroutines %d", &n); err != nil {
		g.t.Fatalf("no go_goroutines: %v", err)
	}
	return [2]int{n, g.descriptors()}
}

// pulse runs cells and lists kernels until the returned function is called. Each of them must succeed within a short
// time.
func (g *gateway) pulse(c *client) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; n++ {
			select {
			case <-end:
				g.t.Logf("%d cells were run meanwhile", n)
				return
			default:
			}
			began := time.Now()
			cell := c.begin(fmt.Sprintf("print(%d + x)", n))
			text, idle := "", false
			for deadline := time.After(2 * promptly); !idle; {
				select {
				case m, ok := <-c.got:
					if !ok {
						g.t.Errorf("the healthy session has ended: %v", c.failed)
						return
					}
					if m.Parent.MsgID == cell && m.Header.MsgType == "stream" {
						text += m.field("text")
					}
					idle = m.Parent.MsgID == cell && m.field("execution_state") == "idle"
				case <-deadline:
					g.t.Errorf("a cell has not ended within %v", 2*promptly)
					return
				}
			}
			if want := fmt.Sprintf("%d\n", n+41); text != want {
				g.t.Errorf("a cell printed %q, not %q", text, want)
			}
			if took := time.Since(began); took > promptly {
				g.t.Errorf("a cell took %v", took)
			}
			began = time.Now()
			if status, b, err := g.tryAsk("GET", "/api/kernels", ""); err != nil || status != 200 ||
				time.Since(began) > promptly {
				g.t.Errorf("a list took %v: %d %s %v", time.Since(began), status, b, err)
			}
		}
	}()
	return func() { close(end); <-done }
}

// wholeLines checks that a log holds only complete lines of its own program.
func (g *gateway) wholeLines() {
	g.t.Helper()
	logs, err := filepath.Glob(filepath.Join(g.dir, "state/*/*/supervisor.log"))
	if err != nil {
		g.t.Fatal(err)
	}
	lines := 0
	for _, file := range append(logs, g.log) {
		b, err := os.ReadFile(file)
		if err != nil {
			g.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			line, lines = strings.TrimSuffix(line, "\n"), lines+1
			whole := strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "{") && json.Valid([]byte(line)) ||
				strings.HasPrefix(line, "ekg is ready at ")
			if !whole || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) ||
				strings.Contains(line, g.token) {
				g.t.Errorf("%s has the line %q", file, line)
			}
		}
	}
	if lines < 1000 {
		g.t.Errorf("there are %d lines: the test proves nothing", lines)
	}
}

// raw sends text on a new connection and returns all data until the gateway closes it. The text must make the gateway
// do so.
func (g *gateway) raw(text string) string {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(slowHead + promptly)); err != nil {
		g.t.Fatal(err)
	}
	go io.WriteString(conn, text) //nolint:errcheck // the gateway may hang up before it has read everything
	b, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		g.t.Errorf("%.100q: the connection is not ended", text)
	}
	return string(b)
}

// refusedWith checks that the answer to a raw request has this status and a reason. Go's server rejects text that is
// not HTTP, in plain text.
func (g *gateway) refusedWith(status int, text string) {
	g.t.Helper()
	got := g.raw(text)
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(got)), nil)
	if err != nil {
		g.t.Errorf("%.100q: %v in %.200q", text, err, got)
		return
	}
	body, _ := io.ReadAll(resp.Body) // as much as the connection delivered
	var e struct{ Reason, Message string }
	plain := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") && resp.Header.Get("X-Request-Id") == ""
	if err := json.Unmarshal(body, &e); resp.StatusCode != status ||
		!plain && (err != nil || e.Reason == "" || e.Message == "") {
		g.t.Errorf("%.100q: got %d %.300s, want %d", text, resp.StatusCode, body, status)
	}
}

// head returns the beginning of a request with the token. The connection ends after the request.
func (g *gateway) head(method, target string) string {
	return method + " " + target + " HTTP/1.1\r\nHost: " + g.addr + "\r\nConnection: close\r\nAuthorization: token " +
		g.token + "\r\n"
}
