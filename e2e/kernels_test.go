//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var noSubshells = []string{"ipykernel6", "xpython"} // subshells came with ipykernel 7

const noInterrupt = "xpython" // PyPI's version ends on SIGINT and ignores interrupt_request, with or without a gateway

// TestE2E_Kernels tests every real kernel in both framings.
func TestE2E_Kernels(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.messageMode("ipykernel7-message", "lab/bin/python")
	for _, spec := range []string{"python3", "ipykernel6", "xpython", "ipykernel7-message"} {
		for _, v1 := range []bool{true, false} {
			name := spec + "/v1"
			if !v1 {
				name = spec + "/JSON"
			}
			t.Run(name, func(t *testing.T) {
				mine := *g
				mine.t = t
				id := mine.kernel(spec)
				c := mine.dial(t, id, "s1", v1)
				t.Run("execute", func(t *testing.T) { execute(t, c) })
				t.Run("completion", func(t *testing.T) { completion(t, c) })
				t.Run("stdin", func(t *testing.T) { stdin(t, &mine, id, c, v1) })
				t.Run("comm with buffers", func(t *testing.T) { commBuffers(t, c) })
				t.Run("control overtakes a busy shell", func(t *testing.T) { controlOvertakes(t, c) })
				t.Run("debugger", func(t *testing.T) { debugger(t, c) })
				if !slices.Contains(noSubshells, spec) {
					t.Run("subshells", func(t *testing.T) { subshells(t, c) })
				}
				if spec != noInterrupt {
					t.Run("interrupt", func(t *testing.T) { interrupt(t, &mine, id, c) })
				}
				t.Run("restart", func(t *testing.T) { restart(t, &mine, id, c) })
				mine.want(204, "DELETE", "/api/kernels/"+id, "", nil)
				mine.noProcesses(id)
			})
		}
	}
}

// messageMode writes a kernelspec of ipykernel with interrupts by message instead of signal.
func (g *gateway) messageMode(name, python string) {
	g.t.Helper()
	g.specWith(name, map[string]any{"interrupt_mode": "message"}, g.in.dir+"/"+python, "-m", "ipykernel_launcher",
		"--IPCompleter.use_jedi=False", "-f", "{connection_file}")
}

func execute(t *testing.T, c *client) {
	c.t = t
	c.says("print('a', 1)\nprint('ünïcode ✓')", "a 1\nünïcode ✓\n")
	r := c.execute("1/0", 20*time.Second)
	if r.reply.field("status") != "error" || !strings.Contains(r.reply.field("ename"), "ZeroDivisionError") {
		t.Errorf("the reply of a failing cell is %s", r.reply.Content)
	}
	const displays = 900 // each kernel's sockets hold this many; TestE2E_LostOutput uses more
	r = c.execute(fmt.Sprintf("from IPython.display import display\nfor i in range(%d): display(i)", displays),
		60*time.Second)
	var want int
	for _, m := range r.all {
		if m.Header.MsgType != "display_data" {
			continue
		}
		if !bytes.Contains(m.Content, fmt.Appendf(nil, `"%d"`, want)) {
			t.Fatalf("display %d is %s", want, m.Content)
		}
		want++
	}
	if want != displays {
		t.Errorf("%d of %d displays arrived", want, displays)
	}
}

func completion(t *testing.T, c *client) {
	c.t = t
	r := c.finish(c.send("shell", "complete_request", `{"code": "isinst", "cursor_pos": 6}`), 30*time.Second)
	if !bytes.Contains(r.reply.Content, []byte(`"isinstance`)) {
		t.Errorf("the reply is %s", r.reply.Content)
	}
}

// stdin answers a prompt. Only the session that sent the cell may see the prompt.
func stdin(t *testing.T, g *gateway, id string, c *client, v1 bool) {
	c.t = t
	other := g.dial(t, id, "another", v1)
	cell := c.begin("print('got', input('what? '))")
	prompt, _ := c.until(20*time.Second, "the prompt", func(m message) bool { return m.Header.MsgType == "input_request" })
	if prompt.Channel != "stdin" || prompt.field("prompt") != "what? " {
		t.Errorf("the prompt is %+v", prompt)
	}
	c.send("stdin", "input_reply", `{"value": "this", "status": "ok"}`, func(m *message) { m.Parent = prompt.Header })
	if r := c.finish(cell, 20*time.Second); r.stdout != "got this\n" && !strings.HasSuffix(r.stdout, "got this\n") {
		t.Errorf("the cell printed %q", r.stdout)
	}
	_, seen := other.until(20*time.Second, "the cell's idle at the other session", func(m message) bool {
		return m.Parent.MsgID == cell && m.field("execution_state") == "idle"
	})
	for _, m := range seen {
		if m.Header.MsgType == "input_request" || m.Channel == "shell" && m.Parent.MsgID == cell {
			t.Errorf("the other session got %s on %s", m.Header.MsgType, m.Channel)
		}
	}
}

func commBuffers(t *testing.T, c *client) {
	c.t = t
	cell := c.begin(`from comm import create_comm
c = create_comm(target_name='e2e', buffers=[bytes(range(256)), b''])
def answer(m):
    c.send({'got': [bytes(b).hex() for b in m['buffers']]}, buffers=[b'\xff\x00\xfe'])
c.on_msg(answer)`)
	// The reply comes on another channel, and may come first.
	var open message
	for _, m := range c.finish(cell, 20*time.Second).all {
		if m.Header.MsgType == "comm_open" {
			open = m
		}
	}
	if len(open.Buffers) != 2 || len(open.Buffers[0]) != 256 || open.Buffers[0][255] != 255 || len(open.Buffers[1]) != 0 {
		t.Fatalf("comm_open has the buffers %x", open.Buffers)
	}
	content := fmt.Sprintf(`{"comm_id": %q, "data": {}}`, open.field("comm_id"))
	c.send("shell", "comm_msg", content, func(m *message) { m.Buffers = [][]byte{{1, 128, 255}, {}} })
	answer, _ := c.until(20*time.Second, "comm_msg", func(m message) bool { return m.Header.MsgType == "comm_msg" })
	if len(answer.Buffers) != 1 || !bytes.Equal(answer.Buffers[0], []byte{255, 0, 254}) ||
		!bytes.Contains(answer.Content, []byte("0180ff")) {
		t.Errorf("comm_msg is %s with the buffers %x", answer.Content, answer.Buffers)
	}
}

func controlOvertakes(t *testing.T, c *client) {
	c.t = t
	cell := c.begin("import time\nprint('begun', flush=True)\ntime.sleep(3)")
	c.until(20*time.Second, "the cell's begin", func(m message) bool { return strings.Contains(m.field("text"), "begun") })
	began := time.Now()
	request := c.send("control", "kernel_info_request", "{}")
	c.until(20*time.Second, "the answer on control", func(m message) bool {
		return m.Channel == "control" && m.Parent.MsgID == request
	})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the answer on control took %v while the shell was busy", took)
	}
	c.until(20*time.Second, "the cell's end", func(m message) bool {
		return m.Parent.MsgID == cell && m.Header.MsgType == "execute_reply"
	})
}

func debugger(t *testing.T, c *client) {
	c.t = t
	request := c.send("control", "debug_request", `{"type": "request", "seq": 1, "command": "initialize",
		"arguments": {"clientID": "e2e", "adapterID": "", "pathFormat": "path", "linesStartAt1": true,
		"columnsStartAt1": true}}`)
	r := c.finish(request, 30*time.Second)
	if r.reply.Header.MsgType != "debug_reply" || !bytes.Contains(r.reply.Content, []byte(`"success"`)) {
		t.Errorf("the answer is %s %s", r.reply.Header.MsgType, r.reply.Content)
	}
}

// subshells runs a cell in a subshell (JEP 91) while the main shell is busy.
func subshells(t *testing.T, c *client) {
	c.t = t
	r := c.finish(c.send("control", "kernel_info_request", "{}"), 20*time.Second)
	if !bytes.Contains(r.reply.Content, []byte(`"kernel subshells"`)) {
		t.Fatalf("the kernel offers no subshells: %s", r.reply.Content)
	}
	r = c.finish(c.send("control", "create_subshell_request", "{}"), 20*time.Second)
	sub := r.reply.field("subshell_id")
	if sub == "" {
		t.Fatalf("the answer is %s", r.reply.Content)
	}
	busy := c.begin("import time\nprint('begun', flush=True)\ntime.sleep(4)")
	c.until(20*time.Second, "the busy cell", func(m message) bool { return strings.Contains(m.field("text"), "begun") })
	beside := c.send("shell", "execute_request", executeRequest("print('beside')", false), func(m *message) {
		m.Header.Subshell = sub
	})
	_, before := c.until(20*time.Second, "the reply of the cell in the subshell", func(m message) bool {
		return m.Parent.MsgID == beside && m.Header.MsgType == "execute_reply"
	})
	for _, m := range before {
		if m.Parent.MsgID == busy && m.Header.MsgType == "execute_reply" {
			t.Error("the cell in the subshell waited for the busy one")
		}
	}
	c.until(20*time.Second, "the busy cell's end", func(m message) bool {
		return m.Parent.MsgID == busy && m.Header.MsgType == "execute_reply"
	})
	c.finish(c.send("control", "delete_subshell_request", fmt.Sprintf(`{"subshell_id": %q}`, sub)), 20*time.Second)
}

func interrupt(t *testing.T, g *gateway, id string, c *client) {
	c.t = t
	cell := c.begin("import time\nprint('begun', flush=True)\nfor i in range(600): time.sleep(0.1)")
	c.until(20*time.Second, "the cell's begin", func(m message) bool { return strings.Contains(m.field("text"), "begun") })
	g.want(204, "POST", "/api/kernels/"+id+"/interrupt", "{}", nil)
	r := c.finish(cell, 20*time.Second)
	if !strings.Contains(r.reply.field("ename"), "KeyboardInterrupt") {
		t.Errorf("the interrupted cell's reply is %s", r.reply.Content)
	}
	c.says("print('goes on')", "goes on\n")
}

// restart restarts the kernel. The websocket stays open, and the variables are lost.
func restart(t *testing.T, g *gateway, id string, c *client) {
	c.t = t
	c.says("kept = 1", "")
	c.begin("import time\nfor i in range(600): time.sleep(0.1)") // a busy kernel gets no shutdown request
	g.want(200, "POST", "/api/kernels/"+id+"/restart", "{}", nil)
	r := c.execute("print('kept' in dir())", 30*time.Second)
	if r.stdout != "False\n" {
		t.Errorf("after the restart the cell printed %q", r.stdout)
	}
}
