package launchertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// TestFakeKernel_Cells runs every command and compares all messages of the kernel.
func TestFakeKernel_Cells(t *testing.T) {
	out := func(text string) string { return fmt.Sprintf(`stream {"name":"stdout","text":"%s\n"}`, text) }
	tests := []struct {
		code  string
		want  []string // between execute_input and idle
		reply string
	}{
		{"print 3", []string{out("0"), out("1"), out("2")}, "ok "},
		{"print 2 every 1ms", []string{out("0"), out("1")}, "ok "},
		{"# nothing\n\necho a b", []string{out("a b")}, "ok "},
		{"stderr oh", []string{`stream {"name":"stderr","text":"oh\n"}`}, "ok "},
		{"flood 2", []string{`display_data {"data":{"text/plain":"0"},"metadata":{},"transient":{}}`,
			`display_data {"data":{"text/plain":"1"},"metadata":{},"transient":{}}`}, "ok "},
		{"big 5", []string{`display_data {"data":{"text/plain":"xxxxx"},"metadata":{},"transient":{}}`}, "ok "},
		{
			"set a 1 2\nget a",
			[]string{`execute_result {"data":{"text/plain":"1 2"},"execution_count":8,"metadata":{}}`},
			"ok ",
		},
		{
			"get b",
			[]string{
				`error {"ename":"NameError","evalue":"name 'b' is not defined","traceback":["NameError: name 'b' is not defined"]}`,
			},
			"error NameError",
		},
		{
			"error\necho never",
			[]string{`error {"ename":"ValueError","evalue":"as asked","traceback":["ValueError: as asked"]}`},
			"error ValueError",
		},
		{
			"what",
			[]string{
				`error {"ename":"NameError","evalue":"name 'what' is not defined",` +
					`"traceback":["NameError: name 'what' is not defined"]}`,
			},
			"error NameError",
		},
		{
			"sleep 1ms\nresult x",
			[]string{`execute_result {"data":{"text/plain":"x"},"execution_count":12,"metadata":{}}`},
			"ok ",
		},
		{"buffers 3", []string{`comm_msg {"comm_id":"fake","data":{"size":3}}`}, "ok "},
		{"flood 1 of 3", []string{`display_data {"data":{"text/plain":"0xxx"},"metadata":{},"transient":{}}`}, "ok "},
		{"flood 2 of 300k", []string{
			`display_data {"data":{"text/plain":"0` + strings.Repeat("x", 300_000) + `"},"metadata":{},"transient":{}}`,
			`display_data {"data":{"text/plain":"1` + strings.Repeat("x", 300_000) + `"},"metadata":{},"transient":{}}`}, "ok "},
		{"show NaN", []string{`display_data {"data":{"application/json":NaN},"metadata":{},"transient":{}}`}, "ok "},
	}
	for _, transport := range []string{"tcp", "ipc"} {
		t.Run(transport, func(t *testing.T) {
			_, c := startKernel(t, transport, FakeKernelOptions{})
			for i, tt := range tests {
				if i == 6 { // this row contains the count, which is 8 with the cell before it
					c.cell(c.run(""))
				}
				said, reply := c.cell(c.run(tt.code))
				if len(said) < 3 || said[0] != "busy" || !strings.HasPrefix(said[1], "execute_input ") {
					t.Fatalf("%q: got %q", tt.code, said)
				}
				if got, want := strings.Join(said[2:], "|"), strings.Join(append(tt.want, "idle"), "|"); got != want {
					t.Errorf("%q: got %s, want %s", tt.code, got, want)
				}
				if reply != tt.reply {
					t.Errorf("%q: got reply %q, want %q", tt.code, reply, tt.reply)
				}
			}
		})
	}
}

func TestFakeKernel_Stdin(t *testing.T) {
	_, c := startKernel(t, "tcp", FakeKernelOptions{})
	id := c.run("input name?")
	ask := c.recv(jupyter.Stdin)
	if h := c.header(ask.Header); h.MsgType != "input_request" || jupyter.StringField(ask.Content, "prompt") != "name?" {
		t.Errorf("got %s %s", h.MsgType, ask.Content)
	}
	c.send(jupyter.Stdin, "input_reply", content{"value": "Ada"})
	said, reply := c.cell(id)
	if len(said) != 4 || !strings.Contains(said[2], `"Ada\n"`) || reply != "ok " {
		t.Errorf("got %q, %q", said, reply)
	}
	id = c.send(jupyter.Shell, "execute_request", content{"code": "input", "allow_stdin": false})
	if _, reply := c.cell(id); reply != "error StdinNotImplementedError" {
		t.Errorf("got %q", reply)
	}
	t.Run("an interrupt ends the question", func(t *testing.T) {
		id := c.run("input again?")
		c.recv(jupyter.Stdin)
		c.send(jupyter.Control, "interrupt_request", content{})
		c.recv(jupyter.Control)
		deadline := c.recv(jupyter.Shell)
		if jupyter.StringField(deadline.Content, "ename") != "KeyboardInterrupt" || c.header(deadline.Parent).MsgID != id {
			t.Errorf("got %s", deadline.Content)
		}
	})
}

// TestFakeKernel_Faults runs the commands that end badly.
func TestFakeKernel_Faults(t *testing.T) {
	t.Run("lose idle", func(t *testing.T) {
		_, c := startKernel(t, "tcp", FakeKernelOptions{})
		number := func(m jupyter.Message) int {
			id := c.header(m.Header).MsgID
			n, err := strconv.Atoi(id[strings.LastIndexByte(id, '_')+1:])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		c.run("echo a\nlose 5\necho b\nlose idle")
		var numbers []int
		for range 4 {
			numbers = append(numbers, number(c.recv(jupyter.IOPub)))
		}
		if numbers[3]-numbers[2] != 6 {
			t.Errorf("msg_ids count %v, want a gap of 5 before the last", numbers)
		}
		if n := number(c.recv(jupyter.Shell)); n != numbers[3]+1 {
			t.Errorf("reply is number %d, want the next", n)
		}
		// There is no idle status: the next cell's busy status follows, and the number of the idle status is missing.
		c.run("")
		if m := c.recv(jupyter.IOPub); !strings.Contains(string(m.Content), "busy") || number(m) != numbers[3]+3 {
			t.Errorf("got %d %s, want busy with a number missing before it", number(m), m.Content)
		}
	})
	t.Run("output after idle", func(t *testing.T) {
		_, c := startKernel(t, "tcp", FakeKernelOptions{})
		id := c.run("background 2 every 100ms")
		if said, _ := c.cell(id); len(said) != 3 {
			t.Errorf("got %q before idle", said)
		}
		for range 2 {
			if m := c.recv(jupyter.IOPub); c.header(m.Parent).MsgID != id || c.header(m.Header).MsgType != "stream" {
				t.Errorf("got %s", m.Header)
			}
		}
	})
	t.Run("shell hangs", func(t *testing.T) {
		k, c := startKernel(t, "tcp", FakeKernelOptions{})
		c.awaitInput(c.run("hang"))
		k.Interrupt()
		c.send(jupyter.Shell, "kernel_info_request", content{})
		c.send(jupyter.Control, "kernel_info_request", content{})
		c.recv(jupyter.Control)
		if err := c.raw[jupyter.Shell].SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.lib[jupyter.Shell].RecvMsg(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v on shell, want silence", err)
		}
	})
	t.Run("invalid messages", func(t *testing.T) {
		_, c := startKernel(t, "tcp", FakeKernelOptions{})
		c.run("garbage")
		c.recv(jupyter.IOPub)
		c.recv(jupyter.IOPub)
		for range 3 {
			msg, err := c.lib[jupyter.IOPub].RecvMsg()
			if err != nil {
				t.Fatal(err)
			}
			if m, err := jupyter.ParseFrames(jupyter.IOPub, msg.Frames, c.signer); err == nil {
				t.Errorf("%s is a good message", m.Content)
			}
		}
	})
	for code, want := range map[string]int{"exit 7": 7, "crash": -9} {
		t.Run("the cell "+code+" ends the kernel", func(t *testing.T) {
			k, c := startKernel(t, "ipc", FakeKernelOptions{})
			c.run("print 1000\n" + code)
			for i := range 1002 { // busy, execute_input, and the output before the end
				if m := c.recv(jupyter.IOPub); m.Header == nil {
					t.Fatalf("%d messages", i)
				}
			}
			if got := k.Wait(); got != want {
				t.Errorf("exit code %d, want %d", got, want)
			}
		})
	}
}

func TestFakeKernel_Requests(t *testing.T) {
	k, c := startKernel(t, "tcp", FakeKernelOptions{Subshells: true, Protocol: "5.5"})
	ask := func(ch jupyter.Channel, msgType string, body any) string {
		t.Helper()
		c.send(ch, msgType, body)
		m := c.recv(ch)
		if got, want := c.header(m.Header).MsgType, strings.TrimSuffix(msgType, "request")+"reply"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		return string(m.Content)
	}
	var info struct {
		Version  string   `json:"protocol_version"`
		Features []string `json:"supported_features"`
	}
	if err := json.Unmarshal([]byte(ask(jupyter.Shell, "kernel_info_request", content{})), &info); err != nil ||
		info.Version != "5.5" ||
		len(info.Features) != 1 {
		t.Errorf("kernel_info: %+v, %v", info, err)
	}
	c.send(jupyter.Shell, "comm_open", content{"comm_id": "c1", "target_name": "t"})
	got := ask(jupyter.Shell, "comm_info_request", content{})
	if got != `{"comms":{"c1":{"target_name":"t"}},"status":"ok"}` {
		t.Errorf("comm_info: %s", got)
	}
	for _, r := range []string{"complete_request", "inspect_request", "history_request", "is_complete_request"} {
		ask(jupyter.Shell, r, content{"code": "pri", "cursor_pos": 3})
	}
	debug := ask(jupyter.Control, "debug_request", content{"seq": 3, "command": "x", "arguments": content{"y": 1}})
	if !strings.Contains(debug, `"request_seq":3`) {
		t.Errorf("debug: %s", debug)
	}
	t.Run("a subshell overtakes", func(t *testing.T) {
		id := jupyter.StringField([]byte(ask(jupyter.Control, "create_subshell_request", content{})), "subshell_id")
		cell := c.run("sleep 1h")
		m := jupyter.New(jupyter.Shell, "execute_request", c.session, nil, content{"code": ""})
		m.Header = append(m.Header[:len(m.Header)-1], `,"subshell_id":"`+id+`"}`...)
		if err := c.lib[jupyter.Shell].SendMsg(zmq4.NewMsgFrom(m.Frames(c.signer)...)); err != nil {
			t.Fatal(err)
		}
		if got := c.recv(jupyter.Shell); string(got.Parent) != string(m.Header) {
			t.Errorf("got a reply to %s, want to %s", got.Parent, m.Header)
		}
		c.awaitInput(cell) // an interrupt before it would find no cell
		k.Interrupt()
		c.recv(jupyter.Shell)
		if got := ask(jupyter.Control, "list_subshell_request", content{}); !strings.Contains(got, id) {
			t.Errorf("list: %s", got)
		}
		ask(jupyter.Control, "delete_subshell_request", content{"subshell_id": id})
		if got := ask(jupyter.Control, "delete_subshell_request", content{"subshell_id": id}); !strings.Contains(got,
			"error") {
			t.Errorf("second delete: %s", got)
		}
	})
	t.Run("unsigned and repeated messages are dropped", func(t *testing.T) {
		m := jupyter.New(jupyter.Control, "kernel_info_request", c.session, nil, content{})
		bad := m.Frames(jupyter.NewSigner([]byte("wrong")))
		good := zmq4.NewMsgFrom(m.Frames(c.signer)...)
		for _, msg := range []zmq4.Msg{zmq4.NewMsgFrom(bad...), good, good} {
			if err := c.lib[jupyter.Control].SendMsg(msg); err != nil {
				t.Fatal(err)
			}
		}
		id := c.send(jupyter.Control, "kernel_info_request", content{})
		if got := c.recv(jupyter.Control); string(got.Parent) != string(m.Header) {
			t.Errorf("got a reply to %s", got.Parent)
		}
		if got := c.recv(jupyter.Control); c.header(got.Parent).MsgID != id {
			t.Errorf("got a reply to %s", got.Parent)
		}
	})
	t.Run("a shutdown request", func(t *testing.T) {
		got := ask(jupyter.Control, "shutdown_request", content{"restart": true})
		if got != `{"restart":true,"status":"ok"}` {
			t.Errorf("got %s", got)
		}
		if code := k.Wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
}

func TestFakeKernel_Options(t *testing.T) {
	t.Run("iopub_welcome", func(t *testing.T) {
		k, err := StartFakeKernel(NewConnection("tcp", ""), FakeKernelOptions{Welcome: true})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		c := connect(t, k.Connection(), "")
		if m := c.recv(jupyter.IOPub); c.header(m.Header).MsgType != "iopub_welcome" {
			t.Errorf("got %s", m.Header)
		}
	})
	t.Run("no greeting", func(t *testing.T) {
		k, err := StartFakeKernel(NewConnection("tcp", ""), FakeKernelOptions{NoGreeting: true})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		conn := k.Connection()
		raw, err := dialRaw(conn, conn.ShellPort)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close() //nolint:errcheck // nothing depends on it
		if err := raw.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, err := raw.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %d bytes, %v", n, err)
		}
	})
	t.Run("an identity in use", func(t *testing.T) {
		for _, none := range []bool{false, true} {
			k, first := startKernel(t, "tcp", FakeKernelOptions{NoHandover: none})
			// The reply proves that the shell socket knows the first client before the second one connects.
			first.send(jupyter.Shell, "kernel_info_request", content{})
			first.recv(jupyter.Shell)
			second := connect(t, k.Connection(), "me")
			second.send(jupyter.Shell, "kernel_info_request", content{})
			winner := second
			if none {
				winner = first
				first.send(jupyter.Shell, "kernel_info_request", content{})
			}
			if m := winner.recv(jupyter.Shell); winner.header(m.Parent).Session != winner.session {
				t.Errorf("no handover %v: got a reply to %s", none, m.Parent)
			}
		}
	})
	t.Run("high-water mark", func(t *testing.T) {
		_, c := startKernel(t, "tcp", FakeKernelOptions{HighWaterMark: 10})
		// The test does not read iopub while the cell runs, so the socket is full long before the end.
		id := c.run("flood 200k")
		c.reply(id)
		n := 0
		for ; ; n++ { // until no message comes: the last ones may have been dropped
			if err := c.raw[jupyter.IOPub].SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.lib[jupyter.IOPub].RecvMsg(); err != nil {
				break
			}
		}
		if n < 10 || n > 199_000 {
			t.Errorf("%d messages arrived, want some and not all", n)
		}
	})
	t.Run("a port in use", func(t *testing.T) {
		k, _ := startKernel(t, "tcp", FakeKernelOptions{})
		if _, err := StartFakeKernel(k.Connection(), FakeKernelOptions{}); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("got %v", err)
		}
	})
}
