package supervisor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestSupervisor_Restart(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	before := r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	cell := c.execute("sleep 60s")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	if status, body := r.request("POST", "/restart", "{}"); status != http.StatusOK {
		t.Fatalf("restart: %d %s", status, body)
	}
	next := c.execute("print 1") // at once: it waits for the new kernel, on the old websocket
	all := c.result(next)
	aborted, ok := find(all, "execute_reply", cell)
	if !ok || jupyter.StringField(aborted.Content, "status") != "aborted" {
		t.Errorf("the cell that ran was answered %s", aborted.Content)
	}
	after, _ := r.s.Status()
	if after.Epoch != before.Epoch+1 || after.KernelPID == before.KernelPID {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestSupervisor_Crash(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	id := c.execute("crash")
	all := c.collect("restarting", func(g got) bool {
		return g.msgType == "status" && jupyter.StringField(g.Content, "execution_state") == string(api.Restarting)
	})
	if text := output(all, id); !strings.Contains(text, "SIGKILL") {
		t.Errorf("the cell shows %q", text)
	}
	// JupyterLab drops queued messages when the session of the messages that it receives changes.
	ours, _ := find(all, "stream", id)
	theirs, _ := find(all, "execute_input", id)
	if got, want := jupyter.StringField(ours.Header, "session"),
		jupyter.StringField(theirs.Header, "session"); got != want {
		t.Errorf("our notice is of session %q, the kernel's messages are of %q", got, want)
	}
	if reply, ok := find(all, "execute_reply", id); !ok || jupyter.StringField(reply.Content, "status") != "error" {
		t.Errorf("the crashed cell was answered %s", reply.Content)
	}
	next := c.execute("print 1")
	c.result(next)
	if m := r.model(); m.ExecutionState != api.Idle {
		t.Errorf("model after the crash is %+v", m)
	}
}

func TestSupervisor_CrashesTooOften(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.RestartLimit = 1 }).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 2 {
		c.execute("exit 7")
		r.until("ended", func(st api.Status) bool { return st.State == api.Restarting || st.State == api.Dead })
		st := r.until("up or dead", func(st api.Status) bool { return st.State == api.Idle || st.State == api.Dead })
		if st.State == api.Dead {
			break
		}
	}
	m := r.model()
	if m.ExecutionState != api.Dead || !strings.Contains(m.Reason, "7") {
		t.Fatalf("model is %+v", m)
	}
	var end api.Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || end.Reason != m.Reason || end.Stopped {
		t.Errorf("ending is %s, %v", b, err)
	}
	// Every message to a dead kernel is answered.
	id := c.execute("print 1")
	reply, _ := find(c.result(id), "execute_reply", id)
	if jupyter.StringField(reply.Content, "ename") != "KernelDied" {
		t.Errorf("dead kernel answered %s", reply.Content)
	}
	id = c.send(jupyter.Shell, "kernel_info_request", struct{}{})
	all := c.collect("its idle", func(g got) bool { return g.msgType == "status" && g.parent == id })
	if reply, ok := find(all, "kernel_info_reply", id); ok {
		t.Errorf("dead kernel answered %s", reply.Content)
	}
	if status, body := r.request("POST", "/restart", ""); status != http.StatusOK {
		t.Fatalf("restart of a dead kernel: %d %s", status, body)
	}
	r.ready()
	c.result(c.execute("print 1"))
	if _, err := os.Stat(r.cfg.EndFile); !os.IsNotExist(err) {
		t.Errorf("the record of the end is still there: %v", err)
	}
}

// TestSupervisor_Banner: output of a kernel's start is not the reason for its end. ipykernel prints how to connect.
func TestSupervisor_Banner(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) {
		c.Argv = append(
			[]string{"/bin/sh", "-c", `echo To connect another client: --existing x >&2; exec "$@"`, "sh"},
			fakeKernelArgv()...)
		c.RestartLimit = 0
	}).ready()
	c := r.dial(dialOption{session: "ann"})
	c.execute("exit 4")
	st := r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	if strings.Contains(st.Reason, "--existing") || !strings.Contains(st.Reason, "4") {
		t.Errorf("reason is %q", st.Reason)
	}
}

func TestSupervisor_StartFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		argv []string
		want string
	}{
		{"program missing", []string{"/nonexistent/python", "-f", "{connection_file}"}, "/nonexistent/python"},
		{"program exits at once", []string{"/bin/sh", "-c", "echo no such module >&2; exit 3"}, "no such module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := startSupervisor(t, func(c *api.Config) { c.Argv = tc.argv })
			st := r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
			if !strings.Contains(st.Reason, tc.want) {
				t.Errorf("reason is %q", st.Reason)
			}
			if st.Epoch != 1 {
				t.Errorf("it was tried %d times", st.Epoch)
			}
		})
	}
}

func TestSupervisor_RestartOfABrokenProgram(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.Argv = []string{"/nonexistent/python"} })
	r.until("dead", func(st api.Status) bool { return st.State == api.Dead })
	status, body := r.request("POST", "/restart", "")
	if status != http.StatusInternalServerError || !strings.Contains(body, "/nonexistent/python") {
		t.Errorf("restart: %d %s", status, body)
	}
}

func TestSupervisor_Stop(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	st, _ := r.s.Status()
	if status, body := r.request("DELETE", "", `{"reason":"it was idle for too long"}`); status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", status, body)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", st.KernelPID)); !os.IsNotExist(err) {
		t.Errorf("the kernel's process is still there: %v", err)
	}
	for {
		if _, err := c.recv(); err != nil {
			if !websocket.IsCloseError(err, websocket.CloseNormalClosure) ||
				!strings.Contains(err.Error(), "idle for too long") {
				t.Errorf("websocket ended with %v", err)
			}
			break
		}
	}
	select {
	case <-r.done:
	case <-time.After(testLimit):
		t.Fatal("the supervisor does not end")
	}
	var end api.Ending
	b, err := os.ReadFile(r.cfg.EndFile)
	if err != nil || json.Unmarshal(b, &end) != nil || !end.Stopped || end.Reason != "it was idle for too long" {
		t.Errorf("ending is %s, %v", b, err)
	}
}
