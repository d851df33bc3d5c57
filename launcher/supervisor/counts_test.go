package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Messages of clients and of the kernel are counted by channel and direction, and the status has the counts. The
// supervisor's own requests are not counted.
func TestSupervisor_Counts(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	st, _ := r.s.Status()
	if st.Counts.ToKernel != (api.Flows{}) || st.Counts.FromKernel[0] != [2]int64{} ||
		st.Counts.FromKernel[1] != [2]int64{} ||
		st.Counts.Since.IsZero() {
		t.Errorf("before any client: %+v", st.Counts)
	}
	before := st.Counts.FromKernel[3]
	c := r.dial(dialOption{session: "ann"})
	buffer := make([]byte, 100_000)
	first := c.execute("print 3")
	c.result(first)
	c.result(c.send(jupyter.Control, "debug_request", map[string]any{}, buffer))
	st, _ = r.s.Status()
	b, err := json.Marshal(st)
	var decoded api.Status
	if err == nil {
		err = json.Unmarshal(b, &decoded)
	}
	if err != nil || decoded.Counts != st.Counts {
		t.Errorf("decoded %+v of %+v: %v", decoded.Counts, st.Counts, err)
	}
	n := st.Counts
	if shell := n.ToKernel[0]; shell[0] != 1 || shell[1] < 100 || shell[1] > 10_000 {
		t.Errorf("shell to the kernel: %v", shell)
	}
	if control := n.ToKernel[1]; control[0] != 1 || control[1] < int64(len(buffer)) {
		t.Errorf("control to the kernel: %v with a buffer of %d", control, len(buffer))
	}
	if n.FromKernel[0][0] != 1 || n.FromKernel[1][0] != 1 || n.FromKernel[2][0] != 0 {
		t.Errorf("answers: %v", n.FromKernel)
	}
	at := func() int64 {
		return r.until("idle", func(st api.Status) bool { return st.State == api.Idle }).Counts.FromKernel[3][0]
	}
	few := at()
	c.result(c.execute("print 3"))
	more := at()
	c.result(c.execute("print 103"))
	if got := at() - more - (more - few); got != 100 || few == before[0] {
		t.Errorf("a hundred lines more were %d messages more", got)
	}
}

// Messages that the log evicts are counted, and so are those that a client has missed and got a notice for.
func TestSupervisor_CountsLoss(t *testing.T) {
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit = 1 << 20 }).ready()
	away := r.dial(dialOption{session: "ann"})
	away.result(away.execute("print 1"))
	if err := away.ws.Close(); err != nil {
		t.Fatal(err)
	}
	c := r.dial(dialOption{session: "bob"})
	for range 20 {
		c.result(c.execute("print 500"))
	}
	if st, _ := r.s.Status(); st.Counts.LogEvicted == 0 || st.Counts.LogLost != 0 {
		t.Errorf("%d messages were evicted, and %d count as missed", st.Counts.LogEvicted, st.Counts.LogLost)
	}
	back := r.dial(dialOption{session: "ann"})
	notices := back.collect("the loss", func(g got) bool {
		return strings.Contains(g.text(), "messages of output are missing")
	})
	var n int64
	text, _, _ := strings.Cut(notices[len(notices)-1].text(), " messages of output")
	if _, err := fmt.Sscan(text[strings.LastIndexAny(text, " [")+1:], &n); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if st, _ := r.s.Status(); st.Counts.LogLost != n || n == 0 {
		t.Errorf("the notice counts %d messages, the status %d", n, st.Counts.LogLost)
	}
}
