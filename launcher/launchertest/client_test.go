package launchertest

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// runAsKernel makes the test binary the fake kernel's program.
const runAsKernel = "EKG_TEST_FAKE_KERNEL"

func TestMain(m *testing.M) {
	if os.Getenv(runAsKernel) != "" {
		os.Exit(FakeKernelMain(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

const testLimit = 30 * time.Second

// client is one client of a kernel. It uses the library that supervisors use, not the fake kernel's own framing.
type client struct {
	t       *testing.T
	signer  *jupyter.Signer
	session string
	raw     map[jupyter.Channel]net.Conn
	lib     map[jupyter.Channel]*zmq4.Conn
}

func dialRaw(conn Connection, port int) (net.Conn, error) {
	scheme, address, _ := strings.Cut(conn.Endpoint(port), "://")
	return net.DialTimeout(map[string]string{"tcp": "tcp", "ipc": "unix"}[scheme], address, testLimit)
}

func connect(t *testing.T, conn Connection, identity string) *client {
	t.Helper()
	c := &client{t: t, signer: jupyter.NewSigner([]byte(conn.Key)), session: jupyter.NewID(),
		raw: map[jupyter.Channel]net.Conn{}, lib: map[jupyter.Channel]*zmq4.Conn{}}
	for ch, port := range map[jupyter.Channel]int{jupyter.Shell: conn.ShellPort, jupyter.Control: conn.ControlPort,
		jupyter.Stdin: conn.StdinPort, jupyter.IOPub: conn.IOPubPort} {
		raw, err := dialRaw(conn, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		if err := raw.SetDeadline(time.Now().Add(testLimit)); err != nil {
			t.Fatal(err)
		}
		typ := zmq4.Dealer
		if ch == jupyter.IOPub {
			typ = zmq4.Sub
		}
		lib, err := zmq4.Open(raw, null.Security(), typ, zmq4.SocketIdentity(identity), false, nil)
		if err != nil {
			t.Fatalf("%v: %v", ch, err)
		}
		c.raw[ch], c.lib[ch] = raw, lib
	}
	if err := c.lib[jupyter.IOPub].SendMsg(zmq4.NewMsg([]byte{1})); err != nil {
		t.Fatal(err)
	}
	return c
}

// ready waits until the subscription to iopub works. Like real clients, it sends requests until a status arrives.
func (c *client) ready() {
	c.t.Helper()
	received := make(chan jupyter.Message)
	go func() { received <- c.recv(jupyter.IOPub) }()
	for {
		c.send(jupyter.Control, "kernel_info_request", content{})
		if h := c.header(c.recv(jupyter.Control).Header); h.MsgType != "kernel_info_reply" {
			c.t.Errorf("got %s, want kernel_info_reply", h.MsgType)
		}
		select {
		case <-received:
			// The last status to arrive is the idle status of the last request.
			id := c.send(jupyter.Control, "kernel_info_request", content{})
			c.recv(jupyter.Control)
			for {
				m := c.recv(jupyter.IOPub)
				if c.header(m.Parent).MsgID == id && strings.Contains(string(m.Content), "idle") {
					return
				}
			}
		default:
		}
	}
}

func (c *client) header(raw []byte) jupyter.Header {
	c.t.Helper()
	h, err := jupyter.ParseHeader(raw)
	if err != nil {
		c.t.Errorf("header %q: %v", raw, err)
	}
	return h
}

func (c *client) send(ch jupyter.Channel, msgType string, body any) (id string) {
	c.t.Helper()
	m := jupyter.New(ch, msgType, c.session, nil, body)
	if err := c.lib[ch].SendMsg(zmq4.NewMsgFrom(m.Frames(c.signer)...)); err != nil {
		c.t.Fatal(err)
	}
	return c.header(m.Header).MsgID
}

func (c *client) recv(ch jupyter.Channel) jupyter.Message {
	c.t.Helper()
	msg, err := c.lib[ch].RecvMsg()
	if err != nil {
		c.t.Errorf("%v: %v", ch, err)
		return jupyter.Message{}
	}
	m, err := jupyter.ParseFrames(ch, msg.Frames, c.signer)
	if err != nil {
		c.t.Errorf("%v: %v: %q", ch, err, msg.Frames)
	}
	return m
}

func (c *client) run(code string) (id string) {
	c.t.Helper()
	return c.send(jupyter.Shell, "execute_request", content{"code": code, "silent": false, "allow_stdin": true})
}

// awaitInput reads iopub until a cell has begun: the kernel can be interrupted from then on.
func (c *client) awaitInput(id string) {
	c.t.Helper()
	for {
		m := c.recv(jupyter.IOPub)
		if m.Header == nil {
			c.t.Fatalf("cell %s has not begun", id)
		}
		if c.header(m.Header).MsgType == "execute_input" && c.header(m.Parent).MsgID == id {
			return
		}
	}
}

// cell reads a request's messages on iopub until its idle status, and its reply. It returns one line for each message.
func (c *client) cell(id string) (said []string, reply string) {
	c.t.Helper()
	for {
		m := c.recv(jupyter.IOPub)
		if m.Header == nil {
			return said, ""
		}
		if c.header(m.Parent).MsgID != id {
			c.t.Errorf("parent %s, want %s", m.Parent, id)
		}
		h := c.header(m.Header)
		if h.MsgType == "status" {
			state := jupyter.StringField(m.Content, "execution_state")
			said = append(said, state)
			if state == "idle" {
				break
			}
			continue
		}
		said = append(said, h.MsgType+" "+string(m.Content))
	}
	return said, c.reply(id)
}

func (c *client) reply(id string) string {
	c.t.Helper()
	m := c.recv(jupyter.Shell)
	if h := c.header(m.Header); h.MsgType != "execute_reply" || c.header(m.Parent).MsgID != id {
		c.t.Errorf("got %s to %s, want execute_reply to %s", h.MsgType, m.Parent, id)
	}
	return jupyter.StringField(m.Content, "status") + " " + jupyter.StringField(m.Content, "ename")
}

func startKernel(t *testing.T, transport string, opts FakeKernelOptions) (*FakeKernel, *client) {
	t.Helper()
	k, err := StartFakeKernel(NewConnection(transport, shortDir(t)), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	c := connect(t, k.Connection(), "me")
	c.ready()
	return k, c
}

// shortDir returns a folder with a short path. The path of t.TempDir may be too long for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ekg-k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
