package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
)

// maxChildLine is the bound of a line from a child, in bytes.
const maxChildLine = 1 << 20

func TestPod_NoProgram(t *testing.T) {
	for name, tc := range map[string]struct {
		argv []string
		want string
	}{
		"not on PATH":  {[]string{"no-such-kernel"}, `the image has no program "no-such-kernel" on its PATH`},
		"no such file": {[]string{"/no/such"}, `the image has no program "/no/such"`},
		"crash at start": {[]string{"sh", "-c", "echo it broke >&2; exit 5"},
			"the kernel's process ended with exit code 5: it broke"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, func(c *api.Config) { c.Argv, c.DeadLinger = tc.argv, 100*time.Millisecond })
			c := p.attach("ann") // before or after the failure
			if got := p.exitCode(p.supervisor); got != 0 {
				t.Errorf("exit code %d", got)
			}
			if got := p.exitCode(p.child); got != 0 {
				t.Errorf("the child's exit code is %d", got)
			}
			if got := p.ending(); got.Reason != tc.want || got.Stopped {
				t.Errorf("ending is %+v", got)
			}
			_ = c.ws.Close()
		})
	}
}

func TestPod_ImageKernelspec(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		spec := map[string]any{"argv": fakeKernelArgv(), "display_name": name, "language": "x", "interrupt_mode": "message",
			"env": map[string]string{"FROM_SPEC": name}}
		b, err := json.Marshal(spec)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, "kernels", name), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "kernels", name, "kernel.json"), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("ir")
	env := []string{"JUPYTER_PATH=" + dir, "HOME=/nonexistent", "PATH=/nonexistent", "VIRTUAL_ENV="}
	t.Run("by name", func(t *testing.T) {
		p := newPod(t, func(c *api.Config) { c.Argv, c.ImageKernelspec = nil, "ir" })
		p.childEnv = env
		p.startSupervisor()
		p.startChild()
		p.ready()
		c := p.attach("ann")
		id := c.execute("sleep 1h")
		c.running(id)
		if status, body := p.ask("POST", "/interrupt", ""); status != 204 { // by message: the spec's mode
			t.Fatalf("%d %s", status, body)
		}
		c.result(id)
	})
	t.Run("missing", func(t *testing.T) {
		p := newPod(t, func(c *api.Config) { c.Argv, c.ImageKernelspec = nil, "julia" })
		p.childEnv = env
		p.startSupervisor()
		p.startChild()
		st := p.until("dead", func(st api.Status) bool { return st.State == api.Dead })
		if !strings.HasPrefix(st.Reason, `the image has no kernelspec "julia"; it has: ir`) {
			t.Errorf("reason is %q", st.Reason)
		}
	})
}

// TestPod_OtherUser checks an image whose user is not the supervisor's and cannot write to its home.
func TestPod_OtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	p := newPod(t, func(c *api.Config) { c.WorkingDir = "/nonexistent" })
	// Only root can read the folder in which go test builds.
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p.program = filepath.Join(p.dir, "child")
	if err := os.WriteFile(p.program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	show := filepath.Join(p.dir, "home", "shown")
	p.cfg.Argv = []string{"sh", "-c",
		`for d in "$HOME" "$TMPDIR" "$IPYTHONDIR"; do touch "$d/x" && echo "$d"; done >` + show +
			`.new; mv ` + show + `.new ` + show + `; stat -c '%a %u' "$(dirname "$1")" "$1" >&2; exec "$0" -f "$1"`,
		p.program, "{connection_file}"}
	p.childUser = &syscall.Credential{Uid: 12345, Gid: 12345}
	p.childEnv = []string{"HOME=/root", "TMPDIR=/root", "IPYTHONDIR="}
	p.startSupervisor()
	p.startChild()
	p.ready()
	got, err := os.ReadFile(show)
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(p.dir, "home")
	if want := home + "/home\n" + home + "/tmp\n/\n"; !strings.HasPrefix(string(got), home+"/home\n"+home+"/tmp\n") {
		t.Errorf("folders are %q, want %q", got, want)
	}
	// The kernel writes the modes before it answers, but the child copies its output on its own.
	deadline := time.Now().Add(testLimit)
	for !strings.Contains(p.child.out.String(), "700 12345\n600 12345\n") && time.Now().Before(deadline) {
		<-time.After(5 * time.Millisecond)
	}
	if !strings.Contains(p.child.out.String(), "700 12345\n600 12345\n") {
		t.Errorf("the connection file is not private: %s", p.child.out)
	}
	t.Run("a connection of another user is closed", func(t *testing.T) {
		conn, err := net.Dial("unix", p.cfg.ChildSocket) // as root
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if b, err := readAllOf(conn); err != nil || len(b) > 0 {
			t.Errorf("got %q, %v", b, err)
		}
		if got := p.result(p.attach("ann"), "result alive"); got != "alive" {
			t.Errorf("got %q", got)
		}
	})
}

func readAllOf(conn net.Conn) ([]byte, error) {
	conn.SetReadDeadline(time.Now().Add(testLimit)) //nolint:errcheck // then the read fails
	b := new(bytes.Buffer)
	_, err := b.ReadFrom(conn)
	return b.Bytes(), err
}

// TestPod_Hostile connects peers of the child's own user that break the protocol. Peers that never become the child do
// not disturb the kernel, and it survives those that do.
func TestPod_Hostile(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 1")
	hello := fmt.Sprintf(`{"type":"hello","version":%d}`+"\n", 1)
	for name, said := range map[string][]byte{
		"garbage":          []byte("\x00\xff\n"),
		"no JSON object":   []byte("[1]\n"),
		"no hello":         []byte(`{"type":"exit","life":"x"}` + "\n"),
		"another version":  []byte(`{"type":"hello","version":99}` + "\n"),
		"huge line":        bytes.Repeat([]byte("x"), maxChildLine+4<<10),
		"hello, then huge": append([]byte(hello), bytes.Repeat([]byte("x"), maxChildLine+4<<10)...),
		"hello, then noise": []byte(hello + `{"type":"exit","life":""}` + "\n" + `{"type":"new thing","life":"x"}` +
			"\nx\n"),
		"kernel with no end": []byte(`{"type":"hello","version":1,"kernel":{"life":"x","connection":{"shell_port":-1}}}` +
			"\nx\n"),
		"hello and silence": []byte(hello),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", p.cfg.ChildSocket)
			if err != nil {
				t.Fatal(err)
			}
			conn.Write(said) //nolint:errcheck // the supervisor may have closed it
			if name != "hello and silence" {
				readAllOf(conn) //nolint:errcheck // it may be reset
			}
			_ = conn.Close()
			// The child that was displaced dials again.
			got := p.result(c, "get x")
			for n := 0; got == "" && n < 3; n++ { // an interrupt of the case before was still on its way, and ended the cell
				got = p.result(c, "get x")
			}
			if got != "1" {
				t.Errorf("x is %q", got)
			}
			if status, body := p.ask("POST", "/interrupt", ""); status != 204 {
				eventually(t, "the child is back: "+body, func() bool {
					status, _ := p.ask("POST", "/interrupt", "")
					return status == 204
				})
			}
		})
	}
	c.result(c.execute("sleep " + (child.ReasonLimit + drainLimit).String())) // long enough to give up a lost kernel
	if st := p.until("idle", func(st api.Status) bool { return st.State == api.Idle }); st.Epoch != 1 {
		t.Errorf("the kernel has died: %+v", st)
	}
}

func TestPod_NoZombies(t *testing.T) {
	p := startPod(t, func(c *api.Config) {
		c.Argv = append(
			[]string{"sh", "-c", `for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.2; exit 3' &); done; exec "$0" "$@"`},
			fakeKernelArgv()...)
	}).ready()
	child := p.child.cmd.Process.Pid
	count := func(state string) (n int) {
		for _, e := range proctree.List() {
			if e.Parent == child && strings.ContainsRune(state, rune(e.State)) {
				n++
			}
		}
		return n
	}
	eventually(t, "orphans are reaped", func() bool { return count("Z") == 0 && count("SRDZ") == 1 })
}
