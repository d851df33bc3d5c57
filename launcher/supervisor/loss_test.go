package supervisor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// TestSupervisor_LostOutput: a cell shows once how many of its messages the kernel's sockets have lost. It shows that
// before its end, since front ends do not listen after it.
func TestSupervisor_LostOutput(t *testing.T) {
	for name, c := range map[string]struct {
		code  string
		least int // messages that the cell must say are lost
		most  int
	}{
		"at the end of the cell":  {"flood 1500\nlose 200\necho end", 200, 200},
		"while the cell runs":     {"flood 1500\nlose 200\necho on\nsleep 4s\necho end", 200, 200},
		"with the cell's idle":    {"flood 1500\nlose 200\nlose idle", 200, 201}, // the idle, if anything has come after it
		"all":                     {"lose 1200\necho end", 1200, 1200},
		"a display hook takes it": {"flood 500\nlose 200\necho end", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startSupervisor(t, nil).ready()
			cl := r.dial(dialOption{session: "ann"})
			id := cl.execute(c.code)
			text := output(cl.result(id), id)
			said := 0
			for _, m := range regexp.MustCompile(`(?m)^\[ekg\] (\d+) messages? `).FindAllStringSubmatch(text, -1) {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					t.Fatal(err)
				}
				said += n
			}
			if said < c.least || said > c.most || strings.Count(text, "[ekg]") > c.most-c.least+1 {
				t.Errorf("the cell says that %d are lost: %s", said, text)
			}
		})
	}
}

// TestFindGaps_ReplyFirst: a reply that overtakes all output of its cell finds the gap. The gap belongs to that cell.
func TestFindGaps_ReplyFirst(t *testing.T) {
	i := newIdling(t, api.Cull{})
	c := i.connects("ann")
	i.sends(c, jupyter.Shell, "execute_request", "cell")()
	number := func(m jupyter.Message, n int) jupyter.Message {
		kind := jupyter.StringField(m.Header, "msg_type")
		m.Header = fmt.Appendf(nil, `{"msg_id":"kernel_1_%d","msg_type":%q,"session":"kernel"}`, n, kind)
		return m
	}
	request := []byte(`{"msg_id":"cell","msg_type":"execute_request","session":"ann"}`)
	i.s.deliver(i.b, number(jupyter.New(jupyter.IOPub, "status", "kernel", nil, struct{}{}), 1))
	i.s.deliver(i.b, number(jupyter.New(jupyter.Shell, "execute_reply", "kernel", request, struct{}{}), 2000))
	lost := i.b.gaps.Overdue(i.s.now().Add(time.Hour))
	if len(lost) != 1 || lost[0].Cell != "cell" || lost[0].Missing != 1998 {
		t.Errorf("lost: %+v", lost)
	}
}

// TestMissingIdle: a cell whose idle is missing gets a notice if its kernel has published so much that its socket may
// have dropped output, and if the cell has run.
func TestMissingIdle(t *testing.T) {
	for name, c := range map[string]struct {
		before, outputs int
		status          string
		want            bool
	}{
		"little output":             {0, dropsFrom - 1, "ok", false},
		"much output":               {0, dropsFrom, "ok", true},
		"much output of earlier":    {dropsFrom, 1, "ok", false},
		"much output, then aborted": {0, dropsFrom, "aborted", false},
		"an error":                  {0, 3, "error", false},
		"much output, and an error": {0, dropsFrom, "error", true},
	} {
		t.Run(name, func(t *testing.T) {
			i := newIdling(t, api.Cull{})
			cl := i.connects("ann")
			request := []byte(`{"msg_id":"cell","msg_type":"execute_request","session":"ann"}`)
			publish := func(n int) {
				for range n {
					i.s.deliver(i.b, jupyter.New(jupyter.IOPub, "stream", "kernel", request, map[string]string{"text": "."}))
				}
			}
			publish(c.before)
			i.sends(cl, jupyter.Shell, "execute_request", "cell")()
			publish(c.outputs)
			reply := map[string]string{"status": c.status}
			i.s.deliver(i.b, jupyter.New(jupyter.Shell, "execute_reply", "kernel", request, reply))
			i.at += idleGrace - 1
			if more := i.s.findLosses(); !more || i.s.clients.requests.Len() != 1 {
				t.Error("the cell has ended too early")
			}
			i.at++
			before := i.s.log.Tail().Seq
			if i.s.findLosses() || i.s.clients.requests.Len() != 0 {
				t.Error("the cell has not ended")
			}
			if said := i.s.log.Tail().Seq-before == 2; said != c.want { // besides the idle
				t.Errorf("a notice: %v, want %v", said, c.want)
			}
		})
	}
}

// TestMissing: a client that has missed output reads how many messages it was, and the true cause of each loss.
func TestMissing(t *testing.T) {
	var lost messagelog.Loss
	if got := missing(lost); got != "" {
		t.Errorf("nothing is missing: %q", got)
	}
	lost[messagelog.DiskSlow], lost[messagelog.DiskFailed] = 1, 20
	want := "1 message of output is missing here: output came faster than the disk of the kernel's log could store it, " +
		"and this page had not read it yet. 20 messages of output are missing here: the disk of the kernel's log failed."
	if got := missing(lost); got != want {
		t.Errorf("%q", got)
	}
	if len(whyMissing) != len(lost) {
		t.Errorf("%d causes have words, of %d", len(whyMissing), len(lost))
	}
	for cause, why := range whyMissing {
		if why == "" {
			t.Errorf("cause %d has no words", cause)
		}
	}
}
