//go:build e2e

package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestE2E_Commands: a person lists, starts, changes and ends kernels from a terminal.
func TestE2E_Commands(t *testing.T) {
	g := newGateway(t)
	ok := func(args ...string) string {
		t.Helper()
		code, out, errs := g.prints(args...)
		if code != 0 || errs != "" {
			t.Fatalf("ekg %s: %d\n%s%s", strings.Join(args, " "), code, out, errs)
		}
		return out
	}
	refused := func(code int, want string, args ...string) {
		t.Helper()
		got, out, errs := g.prints(args...)
		if got != code || !strings.Contains(errs, want) {
			t.Errorf("ekg %s: %d\n%s%s\nwant %d with %q", strings.Join(args, " "), got, out, errs, code, want)
		}
	}
	if out := ok("ps"); out != "No kernels.\n" {
		t.Errorf("before any kernel: %q", out)
	}
	id := strings.TrimSpace(ok("start", "python3", "--wait", "--env", "KERNEL_TEAM=vision"))
	other := strings.TrimSpace(ok("start", "-o", "name"))
	g.state(other, "idle", 60*time.Second)
	c := g.dial(t, id, "s", true)
	c.says("import os; x = os.environ['KERNEL_TEAM']; print(x)", "vision\n")

	lines := strings.Split(ok("ps"), "\n")
	if f := strings.Fields(lines[0]); strings.Join(f, " ") != "KERNEL SPEC STATE AGE IDLE" {
		t.Errorf("columns %v", f)
	}
	if f := strings.Fields(lines[1]); f[0] != id[:8] || f[1] != "python3" || f[2] != "idle" {
		t.Errorf("the first kernel is shown as %v", f)
	}
	if out := ok("ps", "-o", "name"); out != id+"\n"+other+"\n" {
		t.Errorf("names: %q", out)
	}
	var models []model
	err := json.Unmarshal([]byte(ok("ps", "-o", "json")), &models)
	if err != nil || len(models) != 2 || models[0].ID != id {
		t.Errorf("%v, %+v", err, models)
	}
	if out := ok("ps", "-o", "yaml"); !strings.HasPrefix(out, "- id: \""+id+"\"\n  name: \"python3\"\n") {
		t.Errorf("YAML:\n%s", out)
	}
	if out := ok("ps", "-o", "wide"); !strings.Contains(out, id) || !strings.Contains(out, "CLIENTS") {
		t.Errorf("wide:\n%s", out)
	}

	if out := ok("keep", id[:8], "--for", "1h"); !strings.HasPrefix(out, id+" is kept until ") {
		t.Errorf("keep: %q", out)
	}
	if out := ok("ps"); !strings.Contains(out, "KEPT FOR") || !strings.Contains(out, " 59m") {
		t.Errorf("a kept kernel:\n%s", out)
	}
	if out := ok("keep", id, "--off"); out != id+" is kept no longer\n" {
		t.Errorf("keep --off: %q", out)
	}

	cell := c.begin("import time\ntry:\n  time.sleep(600)\nexcept KeyboardInterrupt:\n  print('interrupted')")
	g.state(id, "busy", 10*time.Second)
	if out := ok("interrupt", id); out != id+" interrupted\n" {
		t.Errorf("interrupt: %q", out)
	}
	if r := c.finish(cell, 20*time.Second); r.stdout != "interrupted\n" {
		t.Errorf("the cell printed %q", r.stdout)
	}
	if out := ok("restart", id[:8]); out != id+" restarted\n" {
		t.Errorf("restart: %q", out)
	}
	c.says("print('x' in globals())", "False\n")

	if out := ok("ps", "--generate-bash-completion"); out == "" {
		t.Error("nothing completes ekg ps")
	}
	if out := ok("stop", "--generate-bash-completion"); out != id+"\n"+other+"\n" {
		t.Errorf("ekg stop is completed by %q", out)
	}
	refused(1, `no kernel "nope"; the kernels are: `, "stop", "nope")
	refused(1, "Kernel spec nope not found", "start", "nope")
	refused(1, "This gateway has no flavors", "start", "--flavor", "t4")
	refused(2, `--output "xml" is not json, yaml, wide or name`, "ps", "-o", "xml")
	refused(2, "an argument is missing", "stop")
	refused(2, "an argument is empty", "stop", "")
	refused(2, `--env "KERNEL_X" is not NAME=VALUE`, "start", "--env", "KERNEL_X")
	refused(2, "ekg stop prints only ids", "stop", id, "-o", "json")
	refused(2, "is not a positive duration", "keep", id, "--for", "-1h")

	// One failure does not keep the others from being stopped.
	code, out, errs := g.prints("stop", id, "nope", other)
	if code != 1 || out != id+" stopped\n"+other+" stopped\n" || !strings.Contains(errs, `no kernel "nope"`) {
		t.Errorf("stop: %d, %q, %q", code, out, errs)
	}
	if out := ok("ps"); out != "No kernels.\n" {
		t.Errorf("after all were stopped: %q", out)
	}
}

// TestE2E_Completion: the scripts work in a real shell.
func TestE2E_Completion(t *testing.T) {
	g := newGateway(t)
	id := g.kernel("python3")
	for _, tt := range []struct{ typed, want string }{
		{"ekg sto", "stop"}, {"ekg completion f", "fish"}, {"ekg stop " + id[:4], id}, {"ekg log " + id[:4], id},
		{"ekg ps --wat", "--watch"},
	} {
		script := `source <(ekg completion bash); read -ra COMP_WORDS <<<"$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ekg; echo "${COMPREPLY[@]}"`
		cmd := exec.Command("bash", "-c", script, "bash", tt.typed)
		cmd.Env = append(g.command().Env, "PATH="+g.in.bin+":/usr/bin:/bin")
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != tt.want {
			t.Errorf("%q is completed by %q, %v; want %q", tt.typed, out, err, tt.want)
		}
	}
}
