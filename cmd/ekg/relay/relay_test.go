package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/gateway/jobs/notebook"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/zmtp"
)

// fakeGateway notes what is asked. No kernel of it can be reached.
type fakeGateway struct {
	startErr, restartErr error
	state                string
	dialed               chan struct{} // gets one when a kernel is dialed

	mu    sync.Mutex
	asked []string
}

func newFake() *fakeGateway { return &fakeGateway{state: "idle", dialed: make(chan struct{}, 1)} }

func (g *fakeGateway) note(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, what)
}

func (g *fakeGateway) all() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.asked, ", ")
}

func (g *fakeGateway) Name() string { return "http://gateway" }
func (g *fakeGateway) Start(context.Context) (string, error) {
	g.note("start")
	return "started", g.startErr
}
func (g *fakeGateway) Restart(_ context.Context, id string) error {
	g.note("restart " + id)
	return g.restartErr
}
func (g *fakeGateway) Interrupt(_ context.Context, id string) error {
	g.note("interrupt " + id)
	return nil
}
func (g *fakeGateway) Stop(_ context.Context, id string) error {
	g.note("stop " + id)
	return nil
}
func (g *fakeGateway) State(context.Context, string) (state, reason string, err error) {
	return g.state, "the reason", nil
}
func (g *fakeGateway) Dial(context.Context, string, url.Values) (*websocket.Conn, error) {
	select {
	case g.dialed <- struct{}{}:
	default:
	}
	return nil, errors.New("away")
}

// connection writes a connection file, whose sockets are in a folder of the test.
func connection(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "relay") // shorter than TempDir: a socket path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := json.Marshal(connectionFile{Transport: "ipc", IP: filepath.Join(dir, "s"), Key: "key", Scheme: "hmac-sha256",
		Shell: 1, IOPub: 2, Stdin: 3, Control: 4, Heartbeat: 5})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kernel-1.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func options(t *testing.T, g *fakeGateway) Options {
	return Options{File: connection(t), Gateway: g, ParentGone: func() bool { return false },
		Say: func(text string) { t.Log(text) }}
}

// TestRun_Ends: who ends a relay decides whether the kernel is deleted, and whether the next relay finds it.
func TestRun_Ends(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*Options, *fakeGateway)
		end      func(signals chan os.Signal, gone *atomic.Bool) // nil: the relay ends by itself
		asked    string
		problem  string
		findable bool
	}{
		{name: "a signal", end: terminate, asked: "start, stop started"},
		{name: "a signal, kept", change: func(o *Options, _ *fakeGateway) { o.Keep = true }, end: terminate, asked: "start"},
		{name: "the program dies", end: func(_ chan os.Signal, gone *atomic.Bool) { gone.Store(true) },
			asked: "start, stop started"},
		{name: "an interrupt first", end: func(signals chan os.Signal, _ *atomic.Bool) {
			signals <- os.Interrupt
			signals <- syscall.SIGTERM
		}, asked: "start, interrupt started, stop started"},
		{name: "an existing kernel", change: func(o *Options, _ *fakeGateway) { o.Existing, o.Keep = "mine", true },
			end: terminate},
		{name: "a start that fails",
			change: func(_ *Options, g *fakeGateway) { g.startErr = errors.New("no such kernelspec") },
			asked:  "start", problem: "no such kernelspec"},
		{name: "a dead kernel", change: func(_ *Options, g *fakeGateway) { g.state = "dead" }, asked: "start",
			problem: "dead: the reason", findable: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newFake()
			o := options(t, g)
			if tt.change != nil {
				tt.change(&o, g)
			}
			signals := make(chan os.Signal, 2)
			var gone atomic.Bool
			o.Signals, o.ParentGone = signals, gone.Load
			if tt.end != nil {
				go func() {
					<-g.dialed
					tt.end(signals, &gone)
				}()
			}
			err := Run(o)
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("got %v", err)
			}
			if got := g.all(); got != tt.asked {
				t.Errorf("the gateway is asked %q, not %q", got, tt.asked)
			}
			if _, err := os.Stat(o.File + ".ekg"); (err == nil) != tt.findable {
				t.Errorf("the kernel's file: %v", err)
			}
		})
	}
}

func terminate(signals chan os.Signal, _ *atomic.Bool) { signals <- syscall.SIGTERM }

// TestRun_Restart: a relay restarts the kernel that another one with the same connection file and key has left. With
// another key, or if the kernel is gone, it starts one.
func TestRun_Restart(t *testing.T) {
	for name, want := range map[string]string{
		"found": "restart left, stop left", "gone": "restart left, start, stop started", "another key": "start, stop started",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newFake()
			o := options(t, g)
			file, err := readConnectionFile(o.File)
			if err != nil {
				t.Fatal(err)
			}
			switch name {
			case "gone":
				g.restartErr = fmt.Errorf("%w: culled", notebook.ErrGone)
			case "another key":
				file.Key = "another"
			}
			if err := noteOf(o, file).write("left"); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(o.File + ".ekg"); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
			signals := make(chan os.Signal, 1)
			o.Signals = signals
			go func() {
				<-g.dialed
				// A second relay with this connection file touches nothing.
				if err := Run(options2(o)); err == nil || !strings.Contains(err.Error(), "in use") {
					t.Errorf("a second relay: %v", err)
				}
				terminate(signals, nil)
			}()
			if err := Run(o); err != nil {
				t.Error(err)
			}
			if got := g.all(); got != want {
				t.Errorf("the gateway is asked %q, not %q", got, want)
			}
		})
	}
}

// options2 are those of a second relay, which gets no signal.
func options2(o Options) Options {
	o.Signals = nil
	return o
}

// TestAsked: a reply is for the one who has asked on that channel, once. The oldest cell is the one that runs.
func TestAsked(t *testing.T) {
	a := newAsked()
	first, second := &zmtp.Peer{}, &zmtp.Peer{}
	add := func(c jupyter.Channel, id, kind string, by *zmtp.Peer) bool {
		return a.add(c, jupyter.Header{MsgID: id, MsgType: kind}, []byte(id), by)
	}
	if !a.answered() {
		t.Error("an answer is missing before the first request")
	}
	add(jupyter.Shell, "1", "kernel_info_request", first)
	add(jupyter.Shell, "2", "execute_request", second)
	add(jupyter.Shell, "3", "execute_request", first)
	add(jupyter.Control, "2", "debug_request", first)
	add(jupyter.Shell, "4", "comm_msg", first)
	if a.answered() || string(a.cell()) != "2" || a.find("2") != second || a.find("4") != nil {
		t.Errorf("%v %s", a.answered(), a.cell())
	}
	got := []*zmtp.Peer{a.take(jupyter.Control, "2"), a.take(jupyter.Shell, "2"), a.take(jupyter.Shell, "2")}
	if !slices.Equal(got, []*zmtp.Peer{first, second, nil}) {
		t.Errorf("got %v", got)
	}
	if !a.answered() || string(a.cell()) != "3" {
		t.Errorf("%v %s", a.answered(), a.cell())
	}
	for i := len(a.requests); i < maxAsked; i++ {
		add(jupyter.Shell, fmt.Sprint("many-", i), "complete_request", first)
	}
	if add(jupyter.Shell, "last", "complete_request", first) || !add(jupyter.Shell, "comm", "comm_msg", first) {
		t.Error("requests have no bound, or it is for other messages too")
	}
}

// TestTell: a cell says that the gateway is away when it has been for a while, and once.
func TestTell(t *testing.T) {
	var said []string
	g := newFake()
	socket, err := zmtp.Listen("tcp", "127.0.0.1:0", zmtp.Options{Type: zmtp.XPub})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close(0)
	r := &relay{o: Options{Gateway: g, Say: func(text string) { said = append(said, text) }}, asked: newAsked(),
		signer: jupyter.NewSigner(nil), sockets: map[jupyter.Channel]*zmtp.Socket{jupyter.IOPub: socket}}
	r.tell()
	r.reached(errors.New("refused"))
	r.tell()
	if len(said) > 0 {
		t.Errorf("said at once: %q", said)
	}
	r.away = time.Now().Add(-patience)
	r.reached(errors.New("still refused"))
	r.tell()
	r.tell()
	r.reached(nil)
	r.reached(nil)
	if len(said) != 2 || !strings.Contains(said[0], "still refused") || !strings.Contains(said[1], "answers again") {
		t.Errorf("said %q", said)
	}
}

// TestReadConnectionFile_Refuses: a file that asks for what the relay does not speak is refused, with what that is.
func TestReadConnectionFile_Refuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kernel.json")
	for text, want := range map[string]string{
		`{"key":"k","signature_scheme":"hmac-md5"}`:     "hmac-md5",
		`{"transport":"pgm"}`:                           "pgm",
		`{"curve_publickey":"p","curve_secretkey":"s"}`: "CurveZMQ",
		`{`: "kernel.json",
		`{"key":"k","signature_scheme":"hmac-sha256","ip":""}`: "",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readConnectionFile(path); (err == nil) != (want == "") || err != nil &&
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
