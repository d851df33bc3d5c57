package supervisor

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// TestSupervisor_KernelOversized: a message that exceeds the limits is replaced by a notice, on each channel. The
// kernel lives, and no other message is lost.
func TestSupervisor_KernelOversized(t *testing.T) {
	r := startSupervisorTuned(t, nil, func(s *Supervisor) {
		s.kernelLimits.Frame, s.kernelLimits.Message = 1<<20, 2<<20
	}).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("set x 1"))
	const leftOut = "was left out: the gateway takes at most 1 MiB in one part and 2 MiB in all."

	for _, command := range []string{"big 3m", "buffers 9m"} {
		id := c.execute("echo before\n" + command + "\necho after\nget x")
		all := c.result(id)
		text := output(all, id)
		if !strings.HasPrefix(text, "before\n[ekg] A message of type ") || !strings.HasSuffix(text, leftOut+"\nafter\n") {
			t.Errorf("%s: the cell shows %q", command, text)
		}
		if g, ok := find(all, "execute_result", id); !ok || displayed(g).Data["text/plain"] != "1" {
			t.Errorf("%s: no result", command)
		}
	}

	id := c.send(jupyter.Control, "debug_request", map[string]any{"seq": 1, "command": "x",
		"arguments": map[string]string{"y": strings.Repeat("z", 2<<20)}})
	g, ok := find(c.result(id), "debug_reply", id)
	if !ok || jupyter.StringField(g.Content, "ename") != "MessageLeftOut" ||
		!strings.Contains(jupyter.StringField(g.Content, "evalue"), leftOut) {
		t.Errorf("the reply: %s", g.Content)
	}

	id = c.execute("input " + strings.Repeat("y", 2<<20) + "\nget x")
	all := c.collect("input_request", func(g got) bool { return g.msgType == "input_request" })
	if prompt := jupyter.StringField(all[len(all)-1].Content, "prompt"); !strings.Contains(prompt, leftOut) {
		t.Errorf("the prompt is %q", prompt)
	}
	c.send(jupyter.Stdin, "input_reply", map[string]string{"value": "Ann"})
	if text := output(c.result(id), id); !strings.HasSuffix(text, "Ann\n") { // its input is repeated, and left out, too
		t.Errorf("the cell shows %q", text)
	}
	if st := r.until("idle", func(st api.Status) bool { return st.State == api.Idle }); st.Epoch != 1 {
		t.Errorf("the kernel was started %d times", st.Epoch)
	}
}

// TestSupervisor_KernelBreaksProtocol: a kernel whose frame has an impossible length is connected again, and lives.
func TestSupervisor_KernelBreaksProtocol(t *testing.T) {
	logged := new(transcript.Buffer)
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.logger = loggerTo(logged) }).ready()
	c := r.dial(dialOption{session: "ann"})
	c.result(c.execute("set x 1"))
	c.result(c.execute("claim 2000g"))
	eventually(t, "the connection broke", func() bool {
		return strings.Contains(logged.String(), "frame of 2000000000000 bytes")
	})
	id := c.execute("get x")
	if g, ok := find(c.result(id), "execute_result", id); !ok || displayed(g).Data["text/plain"] != "1" {
		t.Error("the variables are gone")
	}
}

// TestSupervisor_KernelOversizedHead: where even the header of a message was discarded, the running cell shows the
// notice.
func TestSupervisor_KernelOversizedHead(t *testing.T) {
	i := newIdling(t, api.Cull{})
	i.b.log = quiet()
	i.sends(i.connects("ann"), jupyter.Shell, "execute_request", "cell")()
	i.status("execute_request", "cell", api.Busy)()
	i.s.deliverOversized(i.b, jupyter.IOPub, nil, &zeromq.TooLargeError{Bytes: 1 << 40, Frames: 7})
	entries, _, _ := i.s.log.Read(messagelog.Position{}, 0, 1<<20, nil)
	if last := entries[len(entries)-1].Message; !strings.Contains(string(last.Parent), `"cell"`) ||
		!strings.Contains(string(last.Content), "[ekg] A message of 1099511627776 bytes was left out") {
		t.Errorf("the cell shows %s under %s", last.Content, last.Parent)
	}
}

// TestSupervisor_AboveLogLimit: an output that is larger than the whole log reaches a page that is connected.
func TestSupervisor_AboveLogLimit(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 1 << 20 }).ready()
	c := r.dial(dialOption{session: "ann"})
	for range 3 {
		id := c.execute("echo before\nbig 5m\necho after")
		all := c.result(id)
		if text := output(all, id); text != "before\nafter\n" {
			t.Errorf("the cell shows %q", text)
		}
		if g, ok := find(all, "display_data", id); !ok || len(g.Content) < 5e6 {
			t.Errorf("the display has %d bytes", len(g.Content))
		}
	}
}
