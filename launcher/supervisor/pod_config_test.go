package supervisor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestWriteTermination(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(strings.Repeat("old ", 2000)), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, reason := range map[string]string{"short": "it was stopped", "long": strings.Repeat("ab ", 4000),
		"escaped": strings.Repeat("\"\x01<", 4000), "umlauts": strings.Repeat("ä", 4000), "quotes": strings.Repeat(`"`, 3000), "none": ""} {
		t.Run(name, func(t *testing.T) {
			want := Ending{KernelID: testKernelID, Reason: reason, At: time.Now().UTC().Round(0), Stopped: true}
			if err := WriteTermination(path, want); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var got Ending
			if err := json.Unmarshal(b, &got); err != nil || len(b) > MaxTermination {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
			if len(reason) < 1000 && got != want || len(reason) > 1000 && len(got.Reason) < 300 {
				t.Errorf("got %+v", got)
			}
			if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it is another file, %v", err) // which could not be: the file is mounted on its own
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	secret := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(secret, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tls-seed", strings.Repeat("\x00", 32))
	write("token", strings.Repeat("t", 40))
	write("kernel-key", strings.Repeat("k", 40))
	write("identity", strings.Repeat("i", 40))
	good := func() map[string]any {
		return map[string]any{"protocol": 1, "kernel_id": testKernelID, "spec_name": "x", "transport": "tcp", "interrupt_mode": "signal",
			"log_limit": 1, "child_socket": "/ekg/run/child.sock", "image_kernelspec": "ir", "secret_dir": secret, "listen": "tcp::8889",
			"termination_file": "/dev/termination-log", "termination_grace": 30e9, "program": "/ekg/bin/ekg-supervisor"}
	}
	parse := func(m map[string]any) (Config, error) {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return ParseConfig(b)
	}
	c, err := parse(good())
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Token) != strings.Repeat("t", 40) || c.kernelKey != strings.Repeat("k", 40) || c.identity != strings.Repeat("i", 40) || len(c.TLSSeed) != 32 {
		t.Errorf("the secret was read as %+v", c)
	}
	if b, err := json.Marshal(c); err != nil || strings.Contains(string(b), "kkkk") {
		t.Errorf("keys are written: %s, %v", b, err)
	}
	conn, err := newConnection(&c)
	if err != nil || !strings.Contains(string(conn.content), strings.Repeat("k", 40)) {
		t.Errorf("the kernel's key is another: %s, %v", conn.content, err)
	}
	if s := New(c, "test", quiet()); string(s.identity) != strings.Repeat("i", 40) {
		t.Errorf("the identity is %q", s.identity)
	}
	for name, change := range map[string]func(map[string]any){
		"ipc":                 func(m map[string]any) { m["transport"] = "ipc" },
		"relative socket":     func(m map[string]any) { m["child_socket"] = "child.sock" },
		"long socket":         func(m map[string]any) { m["child_socket"] = "/" + strings.Repeat("x", 107) },
		"argv and kernelspec": func(m map[string]any) { m["argv"] = []string{"x"} },
		"token and secret":    func(m map[string]any) { m["token"] = "x" },
		"grace without a child": func(m map[string]any) {
			delete(m, "child_socket")
			delete(m, "image_kernelspec")
			m["argv"] = []string{"x"}
		},
		"negative grace":   func(m map[string]any) { m["termination_grace"] = -1 },
		"relative program": func(m map[string]any) { m["program"] = "x" },
		"no secret there":  func(m map[string]any) { m["secret_dir"] = "/nonexistent" },
		"unknown":          func(m map[string]any) { m["kernel_key"] = "x" },
	} {
		m := good()
		change(m)
		if c, err := parse(m); err == nil {
			t.Errorf("%s: accepted as %+v", name, c)
		}
	}
	for name, content := range map[string]string{"tls-seed": "short", "token": "new\nline" + strings.Repeat("x", 40), "identity": strings.Repeat("x", 256),
		"kernel-key": ""} {
		b, err := os.ReadFile(filepath.Join(secret, name))
		if err != nil {
			t.Fatal(err)
		}
		write(name, content)
		if _, err := parse(good()); err == nil {
			t.Errorf("%s %q: accepted", name, content)
		}
		write(name, string(b))
	}
	if b, err := json.Marshal(good()); err != nil {
		t.Error(err)
	} else if _, err := ParseConfig(append(b, "{}"...)); err == nil {
		t.Error("something behind it: accepted")
	}
}

// TestClient_tls: what a gateway does with a pod: TLS with the pinned key, the token, REST, the status stream and websockets.
func TestClient_tls(t *testing.T) {
	p := newPod(t, func(c *Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
		if err != nil {
			t.Fatal(err)
		}
		c.Listen = "tcp:" + l.Addr().String()
		l.Close()
	})
	_, address, _ := strings.Cut(p.cfg.Listen, ":")
	conf, err := PinnedTLS([]byte(strings.Repeat("s", 32)), testKernelID)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", address)
	}
	b, err := json.Marshal(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.supervisor = p.start(os.Args[0], nil, podVariable+"="+string(b))
	eventually(t, "it listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	good := &Client{KernelID: testKernelID, Token: strings.Repeat("t", 32), Dial: dial}
	if err := good.SetWaiting(t.Context(), Waiting{Class: WaitingClass, Text: "pulling", Version: 1}); err != nil {
		t.Fatal(err)
	}
	p.startChild()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	seen := ""
	_ = good.Watch(ctx, func(st Status) {
		seen += st.Reason + " " + st.State + "; "
		if st.State == stateIdle {
			cancel()
		}
	})
	if !strings.HasSuffix(seen, " idle; ") {
		t.Errorf("seen: %s", seen)
	}
	bad := *good
	bad.Token = "x"
	if err := bad.SetLimits(t.Context(), 1<<20); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("another token: %v", err)
	}
	d := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	ws, _, err := d.Dial("ws://"+testKernelID+"/api/kernels/"+testKernelID+"/channels?session_id=ann",
		map[string][]string{"Authorization": {"Bearer " + good.Token}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	c := &client{t: t, ws: ws, session: "ann"}
	id := c.execute("print 3")
	if got := output(c.result(id), id); got != "0\n1\n2\n" {
		t.Errorf("output is %q", got)
	}
	if err := good.Stop(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if a, b := p.exitCode(p.supervisor), p.exitCode(p.child); a != 0 || b != 0 {
		t.Errorf("exit codes %d and %d", a, b)
	}
}

func TestFindMemoryGroup(t *testing.T) {
	dir := t.TempDir()
	file := func(path, content string) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("v1/memory.oom_control", "")
	file("v1/kubepods/pod/memory.oom_control", "")
	file("v2/memory.events", "")
	file("v2/app/memory.events", "")
	const v1 = "30 1 0:1 %ROOT %DIR/v1 rw - cgroup cgroup rw,memory\n"
	const v2 = "31 1 0:2 %ROOT %DIR/v2 rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
	for _, tc := range []struct{ name, groups, mounts, root, want string }{
		{"v1 on the host", "4:cpu:/x\n5:memory:/kubepods/pod\n0::/\n", v1, "/", "v1/kubepods/pod"},
		{"v1, the group itself is mounted", "5:memory:/kubepods/pod\n", v1, "/kubepods/pod", "v1"},
		{"v1, the path is the host's", "5:memory:/kubepods/other\n", v1, "/", "v1"},
		{"v1 hybrid", "5:memory:/kubepods/pod\n0::/app\n", v2 + v1, "/", "v1/kubepods/pod"},
		{"v2 with a namespace", "0::/\n", v2, "/", "v2"},
		{"v2 on the host", "0::/app\n", v2, "/", "v2/app"},
		{"v2, outside the namespace", "0::/../../x\n", v2, "/", "v2"},
		{"v2, a name that begins the same", "0::/application\n", v2, "/app", "v2"},
		{"nothing mounted", "0::/\n", v1, "/", ""},
		{"garbage", "x\n", "x - y\n\n", "/", ""},
	} {
		mounts := strings.NewReplacer("%ROOT", tc.root, "%DIR", dir).Replace(tc.mounts)
		want := ""
		if tc.want != "" {
			want = filepath.Join(dir, tc.want)
		}
		if got := findMemoryGroup(tc.groups, mounts).dir; got != want {
			t.Errorf("%s: got %q, want %q", tc.name, got, want)
		}
	}
}
