//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// This file cuts connections at chosen moments.

// framings runs a test for both framings in parallel.
func framings(t *testing.T, test func(t *testing.T, v1 bool)) {
	for name, v1 := range map[string]bool{"v1": true, "JSON": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, v1)
		})
	}
}

// waiting returns code that prints its process id and continues once a file exists.
func waiting(file string) string {
	return fmt.Sprintf(`import os, time
print('begun', os.getpid(), flush=True)
while not os.path.exists(%q): time.sleep(0.02)
`, file)
}

// begun waits for the first output of waiting, and returns the kernel's process id.
func (c *client) begun(cell string) int {
	c.t.Helper()
	output := ""
	c.until(20*time.Second, "the cell's begin", func(m message) bool { // a message may hold a part of a line
		if m.Parent.MsgID == cell {
			output += m.field("text")
		}
		return strings.Contains(output, "\n")
	})
	var pid int
	if _, err := fmt.Sscanf(output, "begun %d", &pid); err != nil {
		c.t.Fatal(err)
	}
	return pid
}

func touch(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// theLink returns the only connection through the proxy that has no fault.
func (p *faultProxy) theLink(t *testing.T) *link {
	t.Helper()
	var found []*link
	eventually(t, 10*time.Second, "one connection through the proxy", func() error {
		if found = p.live(); len(found) != 1 {
			return fmt.Errorf("there are %d", len(found))
		}
		return nil
	})
	return found[0]
}

// withProxy returns a gateway, and a proxy for the connections that the test breaks.
func withProxy(t *testing.T) (*gateway, *faultProxy) {
	t.Helper()
	g := newGateway(t)
	return g, newFaultProxy(t, g.addr)
}

// noMore checks that nothing more arrives for a cell that has ended.
func (c *client) noMore(cell string) {
	c.t.Helper()
	next := c.begin("pass")
	_, before := c.until(20*time.Second, "the next cell's reply", func(m message) bool {
		return m.Header.MsgType == "execute_reply" && m.Parent.MsgID == next
	})
	for _, m := range before {
		if m.Parent.MsgID == cell {
			c.t.Errorf("after its end came another %s of the cell: %s", m.Header.MsgType, m.Content)
		}
	}
}

// TestE2E_HalfOpen: the connection that sent the cell is gone, and the supervisor does not know it.
func TestE2E_HalfOpen(t *testing.T) {
	t.Parallel()
	framings(t, func(t *testing.T, v1 bool) {
		g, p := withProxy(t)
		for _, returned := range []bool{true, false} {
			t.Run(fmt.Sprintf("reply with the session back on another connection %v", returned), func(t *testing.T) {
				id, file := g.kernel("python3"), filepath.Join(g.dir, fmt.Sprint("go", returned))
				asking := p.through(g).dial(t, id, "s", v1)
				cell := asking.begin(waiting(file) + "print('answered')")
				asking.begun(cell)
				p.theLink(t).set(halfOpen)
				back := asking
				if returned {
					back = p.through(g).dial(t, id, "s", v1)
					back.finish(back.send("shell", "kernel_info_request", "{}"), 20*time.Second)
					if m := g.state(id, "busy", 10*time.Second); m.Connections != 2 {
						t.Errorf("the supervisor has %d connections, want 2: it has noticed the half-open one",
							m.Connections)
					}
				}
				touch(t, file)
				g.state(id, "idle", 20*time.Second)
				if !returned {
					back = p.through(g).dial(t, id, "s", v1)
				}
				r := back.finish(cell, 20*time.Second)
				if !strings.HasSuffix(r.stdout, "answered\n") || r.reply.field("status") != "ok" {
					t.Errorf("the session got %q and %s", r.stdout, r.reply.Content)
				}
				back.noMore(cell)
				p.theLink(t).end()
			})
		}
	})
}

// TestE2E_Window: a client that returns may get unacknowledged messages twice. The supervisor therefore sends no more
// than the window to a client whose acknowledgements do not arrive. This also holds on a connection that never had one.
func TestE2E_Window(t *testing.T) {
	t.Parallel()
	framings(t, func(t *testing.T, v1 bool) {
		g, p := withProxy(t)
		id := g.kernel("python3")
		c := p.through(g).dial(t, id, "s", v1)
		cell := c.begin("for i in range(150): print('line', i, 'x' * 100000, flush=True)")
		c.prints("line 1 ")
		p.theLink(t).end()
		g.state(id, "idle", 20*time.Second)
		for range 2 {
			ws, err := p.through(g).connect(t.Context(), id, "s", v1, 20*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			p.theLink(t).set(deaf) // the client has read nothing yet, so no ping was answered
			got, err := int64(0), error(nil)
			for err == nil {
				limit := 20 * time.Second
				if got > 3<<20 {
					limit = 1500 * time.Millisecond // silence for this long means that the window is full
				}
				if err := ws.SetReadDeadline(time.Now().Add(limit)); err != nil {
					t.Fatal(err)
				}
				var data []byte
				_, data, err = ws.ReadMessage()
				got += int64(len(data))
			}
			if got < 3<<20 || got > maxRepeat {
				t.Errorf("%d bytes came without an acknowledgement, want about 4 MiB", got)
			}
			_ = ws.Close() // the connection is already broken
			for _, k := range p.all() {
				k.end()
			}
		}
		r := p.through(g).dial(t, id, "s", v1).finish(cell, 30*time.Second)
		if n := strings.Count(r.stdout, "line "); n < 140 || !strings.Contains(r.stdout, "line 149 ") {
			t.Errorf("%d lines came at the end", n)
		}
	})
}

// TestE2E_SameIDs: two pages use the same numbers for their requests. Each gets its own reply.
func TestE2E_SameIDs(t *testing.T) {
	g := newGateway(t)
	id := g.kernel("python3")
	pages := map[string]*client{"one": g.dial(t, id, "one", true), "two": g.dial(t, id, "two", false)}
	const rounds = 20
	for i := range rounds {
		for name, c := range pages {
			content := fmt.Sprintf(`{"code": "print('%s')", "silent": false, "store_history": true, "allow_stdin": false,
				"user_expressions": {"who": "'%s'"}, "stop_on_error": true}`, name, name)
			c.send("shell", "execute_request", content, func(m *message) { m.Header.MsgID = fmt.Sprintf("same-%d", i) })
		}
	}
	for name, c := range pages {
		replies, idles := 0, 0
		c.until(60*time.Second, "the ends of all cells of both pages", func(m message) bool {
			if !strings.HasPrefix(m.Parent.MsgID, "same-") {
				return false
			}
			switch {
			case m.Channel == "shell":
				if want := fmt.Sprintf("same-%d", replies); m.Parent.MsgID != want {
					t.Errorf("page %s got the reply to %s, not to %s", name, m.Parent.MsgID, want)
				}
				replies++
				var content struct {
					Expressions map[string]struct{ Data map[string]string } `json:"user_expressions"`
				}
				if err := json.Unmarshal(m.Content, &content); err != nil {
					t.Fatal(err)
				}
				if who := content.Expressions["who"].Data["text/plain"]; who != "'"+name+"'" {
					t.Errorf("page %s got the reply to %s of %s", name, who, m.Parent.MsgID)
				}
			case m.field("execution_state") == "idle":
				idles++
			}
			return replies == rounds && idles == 2*rounds
		})
	}
	for name, c := range pages {
		c.says(fmt.Sprintf("print('%s')", name), name+"\n")
	}
}

// TestE2E_InputAfterCut: the answer to a prompt arrives on another connection than the prompt's.
func TestE2E_InputAfterCut(t *testing.T) {
	t.Parallel()
	framings(t, func(t *testing.T, v1 bool) {
		g, p := withProxy(t)
		id := g.kernel("python3")
		for _, how := range []struct {
			name   string
			seen   bool // the prompt was seen before the cut
			silent bool // the cut is not noticed
		}{{"prompt before the cut", true, false}, {"prompt while away", false, false},
			{"prompt before a half-open cut", true, true},
			{"prompt on a half-open connection", false, true}} {
			t.Run(how.name, func(t *testing.T) {
				file := filepath.Join(g.dir, how.name)
				c := p.through(g).dial(t, id, "s", v1)
				cell := c.begin(waiting(file) + "print('got', input('what? '))")
				c.begun(cell)
				isPrompt := func(m message) bool { return m.Header.MsgType == "input_request" && m.Parent.MsgID == cell }
				var prompt message
				if how.seen {
					touch(t, file)
					prompt, _ = c.until(20*time.Second, "the prompt", isPrompt)
				}
				if k := p.theLink(t); how.silent {
					k.set(halfOpen)
				} else {
					k.end()
				}
				touch(t, file)
				back := p.through(g).dial(t, id, "s", v1)
				again, _ := back.until(20*time.Second, "the prompt", isPrompt)
				if how.seen && again.Header.MsgID != prompt.Header.MsgID {
					t.Errorf("the prompt that came again is %+v, was %+v", again.Header, prompt.Header)
				}
				prompt = again
				back.send("stdin", "input_reply", `{"value": "this", "status": "ok"}`, func(m *message) {
					m.Parent = prompt.Header
				})
				if r := back.finish(cell, 20*time.Second); !strings.HasSuffix(r.stdout, "got this\n") {
					t.Errorf("the cell printed %q", r.stdout)
				}
				back.noMore(cell)
				p.theLink(t).end()
			})
		}
	})
}

// TestE2E_CrashWhileAway: the kernel dies while no client is connected. A client that returns learns of it, and its
// cell ends.
func TestE2E_CrashWhileAway(t *testing.T) {
	t.Parallel()
	framings(t, func(t *testing.T, v1 bool) {
		g, p := withProxy(t)
		id := g.kernel("python3")
		for _, crash := range []string{"os._exit(3)", "os.kill(os.getpid(), 9)"} {
			t.Run(crash, func(t *testing.T) {
				file := filepath.Join(g.dir, crash)
				c := p.through(g).dial(t, id, "s", v1)
				cell := c.begin(waiting(file) + crash)
				pid := c.begun(cell)
				queued := c.begin("print('never')")
				c.send("control", "kernel_info_request", "{}")
				c.until(20*time.Second, "a sign that all was accepted", func(m message) bool { return m.Channel == "control" })
				p.theLink(t).end()
				touch(t, file)
				g.eventually(20*time.Second, "the end of the kernel's process", func() error {
					if syscall.Kill(pid, 0) == nil {
						return fmt.Errorf("process %d lives", pid)
					}
					return nil
				})
				back := p.through(g).dial(t, id, "s", v1)
				r := back.finish(cell, 20*time.Second)
				said := ""
				for _, m := range r.all {
					if m.Header.MsgType == "stream" && m.field("name") == "stderr" {
						said += m.field("text")
					}
				}
				if r.reply.field("status") != "error" || !strings.Contains(said, "[ekg] The kernel died") {
					t.Errorf("the cell ended with %s and says %q", r.reply.Content, said)
				}
				if r := back.finish(queued, 20*time.Second); r.reply.field("status") == "ok" || r.stdout != "" {
					t.Errorf("the cell behind it ended with %s and printed %q", r.reply.Content, r.stdout)
				}
				back.says("print('again')", "again\n")
				p.theLink(t).end()
			})
		}
	})
}
