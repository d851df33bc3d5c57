package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

// testLimit is how long a test waits for another goroutine or process.
const testLimit = 20 * time.Second

// listen starts a Container at a socket, without closing it at the end of the test.
func listen(t *testing.T, socket string, grace time.Duration) *Container {
	t.Helper()
	c := NewContainer(
		ContainerOptions{Socket: socket, Grace: grace, Measured: func() {}, Log: slog.New(slog.DiscardHandler)},
	)
	if err := c.Listen(); err != nil {
		t.Fatal(err)
	}
	go c.Serve()
	return c
}

// connected waits until a child is connected.
func connected(t *testing.T, c *Container) {
	t.Helper()
	for limit := time.After(testLimit); !c.Connected(); {
		select {
		case <-c.Changed():
		case <-limit:
			t.Fatal("no child connects")
		}
	}
}

// running is a child of this test's own process.
type running struct {
	cancel context.CancelFunc // the pod ends
	code   chan int           // receives the result of Run
}

func runChild(t *testing.T, socket string) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, code: make(chan int, 1)}
	go func() { r.code <- Run(ctx, Options{Socket: socket}) }()
	t.Cleanup(cancel)
	return r
}

func (r *running) exitCode(t *testing.T) int {
	t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(testLimit):
		t.Fatal("the child does not end")
		return 0
	}
}

func mustStart(t *testing.T, c *Container, argv ...string) *Process {
	t.Helper()
	p, err := c.Start(t.Context(), StartOptions{KernelID: uuid.NewString(), Argv: argv, ConnectionFile: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func waitDone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(testLimit):
		t.Fatal("the process does not end")
	}
}

func TestContainer_Start(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	socket := filepath.Join(t.TempDir(), "run", "s")
	c := listen(t, socket, time.Minute)
	if _, err := c.Start(t.Context(), StartOptions{}); !errors.Is(err, ErrNoContainer) {
		t.Errorf("without a child: %v", err)
	}
	child := runChild(t, socket)
	connected(t, c)

	p := mustStart(t, c, "sh", "-c", "cat $0; echo bye >&2; exit 3", "{connection_file}")
	waitDone(t, p)
	if e := p.Exit(); e.Code != 3 || e.Lost || p.LastOutput(100, time.Time{}) != "bye\n" {
		t.Errorf("exit is %+v after %q", e, p.LastOutput(100, time.Time{}))
	}
	if err := p.Signal(syscall.SIGINT); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to an ended process gives %v", err)
	}

	_, err := c.Start(t.Context(), StartOptions{Argv: []string{"no-such-program"}, ConnectionFile: []byte(`{}`)})
	if want := `the image has no program "no-such-program" on its PATH`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}

	p = mustStart(t, c, "sleep", "1000")
	next := mustStart(t, c, "sleep", "1000") // ends the one before
	if err := next.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	waitDone(t, next)
	if e := next.Exit(); e.Signal != syscall.SIGTERM {
		t.Errorf("exit is %+v", e)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal to a replaced process gives %v", err)
	}

	c.Close([]byte("the end"))
	if code := child.exitCode(t); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
	if b, err := os.ReadFile(EndedFile(socket)); err != nil || string(b) != "the end" {
		t.Errorf("the ended file has %q, %v", b, err)
	}
	if code := runChild(t, socket).exitCode(t); code != 0 {
		t.Errorf("a child that comes later exits with %d", code)
	}
}

// TestContainer_Adopt checks that another supervisor finds the kernel of the one before.
func TestContainer_Adopt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first := listen(t, socket, time.Minute)
	child := runChild(t, socket)
	connected(t, first)
	before := mustStart(t, first, "sleep", "1000")
	if err := first.listener.Close(); err != nil { // as if its program were killed
		t.Fatal(err)
	}
	first.link.close()

	second := listen(t, socket, time.Minute)
	connected(t, second)
	k := second.Inherited()
	if k == nil || string(k.ConnectionFile) != `{}` {
		t.Fatalf("inherited is %+v", k)
	}
	p := second.Adopt(k)
	if p.PID() == 0 || p.PID() != before.PID() {
		t.Errorf("the process id is %d, was %d", p.PID(), before.PID())
	}
	p.Kill()
	waitDone(t, p)
	if e := p.Exit(); e.Signal != syscall.SIGKILL || e.Lost {
		t.Errorf("exit is %+v", e)
	}
	second.Close(nil)
	if code := child.exitCode(t); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
}

// TestContainer_AdoptEnded: a kernel that ends between a child's hello and its adoption has ended.
func TestContainer_AdoptEnded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	first := listen(t, socket, time.Minute)
	child := runChild(t, socket)
	connected(t, first)
	mustStart(t, first, "sleep", "1000")
	if err := first.listener.Close(); err != nil { // as if its program were killed
		t.Fatal(err)
	}
	first.link.close()

	second := listen(t, socket, time.Minute)
	connected(t, second)
	k := second.Inherited()
	if k == nil || k.Exit != nil {
		t.Fatalf("inherited is %+v", k)
	}
	if err := syscall.Kill(k.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "its end is reported", func() bool { return second.Inherited().Exit != nil })
	p := second.Adopt(k)
	waitDone(t, p)
	if e := p.Exit(); e.Signal != syscall.SIGKILL || e.Lost {
		t.Errorf("exit is %+v", e)
	}
	second.Close(nil)
	if code := child.exitCode(t); code != 0 {
		t.Errorf("the child's exit code is %d", code)
	}
}

// TestProcess_Lost checks that a kernel ends with its container, with the cluster's reason.
func TestProcess_Lost(t *testing.T) {
	for name, reasonFirst := range map[string]bool{"reason before the end": true, "reason after the end": false} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			c := listen(t, socket, GiveUpBefore) // so the child gives up at once
			child := runChild(t, socket)
			connected(t, c)
			p := mustStart(t, c, "sleep", "1000")
			if reasonFirst {
				c.SetEndReason("evicted")
			}
			child.cancel()
			if code := child.exitCode(t); code != 1 {
				t.Errorf("the child's exit code is %d", code)
			}
			if !reasonFirst {
				c.SetEndReason("evicted")
			}
			waitDone(t, p)
			if e := p.Exit(); !e.Lost || e.Describe("", process.InContainer) != "evicted" {
				t.Errorf("exit is %+v", e)
			}
			c.Close(nil)
		})
	}
}

func TestLink_Hello(t *testing.T) {
	for name, tt := range map[string]struct{ sent, want string }{
		"good":            {fmt.Sprintf(`{"type":"hello","version":%d,"new":1}`+"\n", protocolVersion), ""},
		"another version": {`{"type":"hello","version":99}` + "\n", "version 99"},
		"another line":    {`{"type":"exit"}` + "\n", `"exit", not hello`},
		"no JSON":         {"\x00\n", "not JSON"},
		"too long":        {strings.Repeat("x", maxLine+8<<10), "a line of more than"},
		"end":             {"", "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			l := newLink(ours)
			defer func() { l.close(); <-l.done }()
			defer theirs.Close() //nolint:errcheck // a pipe
			go func() {
				theirs.Write([]byte(tt.sent)) //nolint:errcheck // our side may close it first
				if tt.want == "EOF" {
					theirs.Close() //nolint:errcheck // a pipe
				}
			}()
			if _, err := l.awaitHello(); (err == nil) != (tt.want == "") ||
				err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestChild_Rejected: a child whose connections are rejected dials ever less often.
func TestChild_Rejected(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "child.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := runChild(t, socket)
	begun := time.Now()
	for range 60 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close() // the child sees the end
	}
	// The pauses grow with the time that has passed: 60 of them take some 150 ms.
	if took := time.Since(begun); took < 120*time.Millisecond {
		t.Errorf("60 connections in %v", took)
	}
	r.cancel()
	_ = l.Close() // a connection that waits sees the end
	if code := r.exitCode(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// TestLink_Backlog checks that a peer that reads nothing costs bounded memory and holds up no sender.
func TestLink_Backlog(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close() //nolint:errcheck // a pipe
	l := newLink(ours)
	if err := l.send(line{Type: lineFailed, Text: strings.Repeat("x", maxLine)}); err == nil {
		t.Error("a line that is too long is sent")
	}
	var err error
	for range maxQueue + 2 { // the writer holds one
		if err = l.send(line{Type: lineKill}); err != nil {
			break
		}
	}
	if !errors.Is(err, errBacklog) {
		t.Errorf("got %v, want errBacklog", err)
	}
	<-l.done
	if err := l.send(line{Type: lineKill}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want closed", err)
	}
}

func TestMakeWritable(t *testing.T) {
	home, other := t.TempDir(), t.TempDir()
	for name, tt := range map[string]struct{ env, want map[string]string }{
		"all writable": {map[string]string{"HOME": other, "TMPDIR": other},
			map[string]string{"HOME": other, "TMPDIR": other}},
		"no home":       {map[string]string{}, map[string]string{"HOME": home + "/home", "TMPDIR": ""}},
		"home missing":  {map[string]string{"HOME": "/no/such"}, map[string]string{"HOME": home + "/home"}},
		"relative home": {map[string]string{"HOME": "x"}, map[string]string{"HOME": home + "/home"}},
		"no such TMPDIR": {map[string]string{"HOME": other, "TMPDIR": "/no/such"},
			map[string]string{"TMPDIR": home + "/tmp"}},
		"new IPYTHONDIR": {map[string]string{"HOME": other, "IPYTHONDIR": other + "/a/b"},
			map[string]string{"IPYTHONDIR": other + "/a/b"}},
		"IPYTHONDIR a file": {map[string]string{"HOME": other, "IPYTHONDIR": "/dev/null"},
			map[string]string{"IPYTHONDIR": home + "/ipython"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := makeWritable(tt.env, home); err != nil {
				t.Fatal(err)
			}
			for v, want := range tt.want {
				if got := tt.env[v]; got != want {
					t.Errorf("%s is %q, want %q", v, got, want)
				}
			}
		})
	}
}

// TestMirror_Write checks that an output that is not read delays the kernel once, and not at every write.
func TestMirror_Write(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // nothing is read
	defer w.Close() //nolint:errcheck // the reader wants nothing
	m := openMirror(w)
	defer m.close()
	block := bytes.Repeat([]byte("x"), 1<<20) // more than a pipe holds
	for _, limit := range []time.Duration{mirrorPatience + time.Second, mirrorPatience / 2} {
		began := time.Now()
		if n, err := m.Write(block); n != len(block) || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("took %s", took)
		}
	}
}
