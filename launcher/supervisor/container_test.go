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
)

func TestPod_noProgram(t *testing.T) {
	for name, tc := range map[string]struct {
		argv []string
		want string
	}{
		"on PATH": {[]string{"no-such-kernel"}, `the image has no program "no-such-kernel" on its PATH`},
		"a path":  {[]string{"/no/such"}, `the image has no program "/no/such"`},
		"crashes": {[]string{"sh", "-c", "echo it broke >&2; exit 5"}, "the kernel's process ended with exit code 5: it broke"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startPod(t, func(c *Config) { c.Argv, c.DeadLinger = tc.argv, 100*time.Millisecond })
			c := p.attach("ann") // in time, or not
			if got := p.exitCode(p.supervisor); got != 0 {
				t.Errorf("exit code %d", got)
			}
			if got := p.exitCode(p.child); got != 0 {
				t.Errorf("the child's exit code is %d", got)
			}
			if got := p.ending(); got.Reason != tc.want || got.Stopped {
				t.Errorf("ending is %+v", got)
			}
			c.ws.Close()
		})
	}
}

func TestPod_imageKernelspec(t *testing.T) {
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
		p := newPod(t, func(c *Config) { c.Argv, c.ImageKernelspec = nil, "ir" })
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
		p := newPod(t, func(c *Config) { c.Argv, c.ImageKernelspec = nil, "julia" })
		p.childEnv = env
		p.startSupervisor()
		p.startChild()
		st := p.until("dead", func(st Status) bool { return st.State == stateDead })
		if !strings.HasPrefix(st.Reason, `the image has no kernelspec "julia"; it has: ir`) {
			t.Errorf("reason is %q", st.Reason)
		}
	})
}

// TestPod_otherUser: the image's user has no home that it may write to, and is not the one of the supervisor.
func TestPod_otherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	p := newPod(t, func(c *Config) { c.WorkingDir = "/nonexistent" })
	// The folder in which go test builds is root's alone.
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	p.program = filepath.Join(p.dir, "child")
	if err := os.WriteFile(p.program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	show := filepath.Join(p.dir, "home", "shown")
	p.cfg.Argv = []string{"sh", "-c", `for d in "$HOME" "$TMPDIR" "$IPYTHONDIR"; do touch "$d/x" && echo "$d"; done >` + show +
		`.new; mv ` + show + `.new ` + show + `; stat -c '%a %u' "$(dirname "$1")" "$1" >&2; exec "$0" -f "$1"`, p.program, "{connection_file}"}
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
	if !strings.Contains(p.child.out.String(), "700 12345\n600 12345\n") {
		t.Errorf("the connection file is not private: %s", p.child.out)
	}
	t.Run("another user is refused", func(t *testing.T) {
		conn, err := net.Dial("unix", p.cfg.ChildSocket) // as root
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
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

// TestPod_hostile: peers of the child's own user that break the protocol. The kernel is not disturbed by those that never
// become the child, and survives those that do.
func TestPod_hostile(t *testing.T) {
	p := startPod(t, nil).ready()
	c := p.attach("ann")
	p.result(c, "set x 1")
	hello := fmt.Sprintf(`{"type":"hello","version":%d}`+"\n", childProtocol)
	for name, said := range map[string][]byte{
		"garbage":            []byte("\x00\xff\n"),
		"no JSON object":     []byte("[1]\n"),
		"no hello":           []byte(`{"type":"exit","life":"x"}` + "\n"),
		"another version":    []byte(`{"type":"hello","version":99}` + "\n"),
		"huge line":          bytes.Repeat([]byte("x"), maxChildLine+4<<10),
		"hello, then huge":   append([]byte(hello), bytes.Repeat([]byte("x"), maxChildLine+4<<10)...),
		"hello, then noise":  []byte(hello + `{"type":"exit","life":""}` + "\n" + `{"type":"new thing","life":"x"}` + "\nx\n"),
		"kernel with no end": []byte(`{"type":"hello","version":1,"kernel":{"life":"x","connection":{"shell_port":-1}}}` + "\nx\n"),
		"hello and silence":  []byte(hello),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("unix", p.cfg.ChildSocket)
			if err != nil {
				t.Fatal(err)
			}
			conn.Write(said) //nolint:errcheck // the other side may have hung up
			if name != "hello and silence" {
				readAllOf(conn) //nolint:errcheck // it may be reset
			}
			conn.Close()
			// The child that was displaced is back in a moment.
			if got := p.result(c, "get x"); got != "1" {
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
	c.result(c.execute("sleep " + (childReturns + 2*drainLimit).String())) // in which a kernel that was lost is given up
	if st := p.until("idle", func(st Status) bool { return st.State == stateIdle }); st.Epoch != 1 {
		t.Errorf("the kernel has died: %+v", st)
	}
}

func TestPod_noZombies(t *testing.T) {
	p := startPod(t, func(c *Config) {
		c.Argv = append([]string{"sh", "-c", `for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.2; exit 3' &); done; exec "$0" "$@"`}, fakeKernelArgv()...)
	}).ready()
	child := p.child.cmd.Process.Pid
	count := func(state string) (n int) {
		for _, e := range processes() {
			if e.parent == child && strings.ContainsRune(state, rune(e.state)) {
				n++
			}
		}
		return n
	}
	eventually(t, "orphans have come and have been reaped", func() bool { return count("Z") == 0 && count("SRDZ") == 1 })
}
