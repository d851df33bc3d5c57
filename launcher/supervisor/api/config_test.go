package api

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

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
		return map[string]any{"protocol": 1, "kernel_id": testKernelID, "spec_name": "x", "transport": "tcp",
			"interrupt_mode": "signal",
			"log_limit":      1, "child_socket": "/ekg/run/child.sock", "image_kernelspec": "ir", "secret_dir": secret,
			"listen":           "tcp::8889",
			"termination_file": "/dev/termination-log", "termination_grace": 30e9, "program": "/ekg/bin/ekg-supervisor"}
	}
	onThisMachine := func(m map[string]any) {
		delete(m, "image_kernelspec")
		delete(m, "termination_grace")
		m["same_machine"], m["argv"], m["connection_file"], m["transport"] = true, []string{"x"}, "/x", "ipc"
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
	if string(c.Token) != strings.Repeat("t", 40) || c.Secret.KernelKey != strings.Repeat("k", 40) ||
		c.Secret.Identity != strings.Repeat("i", 40) || len(c.TLSSeed) != 32 {
		t.Errorf("the secret was read as %+v", c)
	}
	if b, err := json.Marshal(c); err != nil || strings.Contains(string(b), "kkkk") {
		t.Errorf("keys are written: %s, %v", b, err)
	}
	local := good()
	onThisMachine(local)
	if _, err := parse(local); err != nil {
		t.Errorf("on this machine: %v", err)
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
		"a grace on this machine": func(m map[string]any) {
			onThisMachine(m)
			m["termination_grace"] = 1
		},
		"no command on this machine": func(m map[string]any) {
			onThisMachine(m)
			delete(m, "argv")
		},
		"no connection file on this machine": func(m map[string]any) {
			onThisMachine(m)
			delete(m, "connection_file")
		},
		"no socket on this machine": func(m map[string]any) {
			onThisMachine(m)
			delete(m, "child_socket")
		},
		"no secret there": func(m map[string]any) { m["secret_dir"] = "/nonexistent" },
		"another version": func(m map[string]any) { m["protocol"] = ProtocolVersion + 1 },
		"a bad value":     func(m map[string]any) { m["log_limit"] = "x" },
		"a bad limit":     func(m map[string]any) { m["cull"] = map[string]any{"idle_timeout": "x"} },
	} {
		m := good()
		change(m)
		if c, err := parse(m); err == nil {
			t.Errorf("%s: accepted as %+v", name, c)
		}
	}
	for name, content := range map[string]string{"tls-seed": "short", "token": "new\nline" + strings.Repeat("x", 40),
		"identity":   strings.Repeat("x", 256),
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

// TestParseConfig_Newer: a supervisor ignores settings of a newer gateway and names them. A Config of a newer version
// is rejected for that version, whatever else it has.
func TestParseConfig_Newer(t *testing.T) {
	good := `"kernel_id": "x", "argv": ["x"], "transport": "ipc", "interrupt_mode": "signal", "log_limit": 1`
	for name, tc := range map[string]struct {
		config, err string
		ignored     []string
	}{
		"all is known": {`{"protocol": 1, ` + good + `, "env": {"x": "y"}, "cull": {"busy": true}}`, "", nil},
		"null":         {`{"protocol": 1, ` + good + `, "cull": null}`, "", nil},
		"other letters": {`{"protocol": 1, ` + good + `, "CULL": {"Busy": true, "X": 1}, "Env": {"x": "y"}}`, "",
			[]string{"CULL.X"}},
		"newer settings": {`{"protocol": 1, ` + good + `, "z": {"y": 1}, "cull": {"busy": true, "x": [1]}, "a": "b"}`, "",
			[]string{"a", "cull.x", "z"}},
		"a secret": {`{"protocol": 1, ` + good + `, "kernel_key": "x", "KernelKey": "x", "-": "x"}`, "",
			[]string{"-", "KernelKey", "kernel_key"}},
		"a newer version":  {`{"protocol": 2, ` + good + `}`, "protocol version 2", nil},
		"and other fields": {`{"protocol": 2, ` + good + `, "env": [1]}`, "protocol version 2", nil},
		"a newer version that needs this one": {`{"protocol": 2, "needs_protocol": 1, ` + good + `, "a": "b"}`, "",
			[]string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ParseConfig([]byte(tc.config))
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error is %v, want %q", err, tc.err)
			}
			if !slices.Equal(c.Ignored, tc.ignored) || c.Secret.KernelKey != "" {
				t.Errorf("ignored %q, want %q; key %q", c.Ignored, tc.ignored, c.Secret.KernelKey)
			}
		})
	}
}

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
		"escaped": strings.Repeat("\"\x01<", 4000), "umlauts": strings.Repeat("ä", 4000), "quotes": strings.Repeat(`"`, 3000),
		"none": ""} {
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
