package supervisor

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// What a client sends and what the kernel says is counted by channel and direction, and told in the status; the supervisor's own
// questions are not.
func TestSupervisor_counts(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	st, _ := r.s.currentStatus()
	if st.Counts.ToKernel != (Flows{}) || st.Counts.FromKernel[0] != [2]int64{} || st.Counts.FromKernel[1] != [2]int64{} || st.Counts.Since.IsZero() {
		t.Errorf("before any client: %+v", st.Counts)
	}
	before := st.Counts.FromKernel[3]
	c := r.dial(dialOption{session: "ann"})
	buffer := make([]byte, 100_000)
	first := c.execute("print 3")
	c.result(first)
	c.result(c.send(wire.Control, "debug_request", map[string]any{}, buffer))
	st, _ = r.s.currentStatus()
	b, err := json.Marshal(st)
	var told Status
	if err == nil {
		err = json.Unmarshal(b, &told)
	}
	if err != nil || told.Counts != st.Counts {
		t.Errorf("told %+v of %+v: %v", told.Counts, st.Counts, err)
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
		return r.until("idle", func(st Status) bool { return st.State == stateIdle }).Counts.FromKernel[3][0]
	}
	few := at()
	c.result(c.execute("print 3"))
	more := at()
	c.result(c.execute("print 103"))
	if got := at() - more - (more - few); got != 100 || few == before[0] {
		t.Errorf("a hundred lines more were %d messages more", got)
	}
}

// What the log lets go is counted, and what a client missed of it, as it is told.
func TestSupervisor_countsLoss(t *testing.T) {
	r := startSupervisor(t, func(c *Config) { c.LogLimit = 1 << 20 }).ready()
	away := r.dial(dialOption{session: "ann"})
	away.result(away.execute("print 1"))
	if err := away.ws.Close(); err != nil {
		t.Fatal(err)
	}
	c := r.dial(dialOption{session: "bob"})
	for range 20 {
		c.result(c.execute("print 500"))
	}
	if st, _ := r.s.currentStatus(); st.Counts.LogEvicted == 0 || st.Counts.LogLost != 0 {
		t.Errorf("%d messages were let go, %d missed by nobody", st.Counts.LogEvicted, st.Counts.LogLost)
	}
	back := r.dial(dialOption{session: "ann"})
	told := back.collect("the loss", func(g got) bool { return strings.Contains(g.text(), "messages of output are missing") })
	var n int64
	text, _, _ := strings.Cut(told[len(told)-1].text(), " messages of output")
	if _, err := fmt.Sscan(text[strings.LastIndexAny(text, " [")+1:], &n); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if st, _ := r.s.currentStatus(); st.Counts.LogLost != n || n == 0 {
		t.Errorf("told of %d messages, counted %d", n, st.Counts.LogLost)
	}
}

// The sum of what supervisors count never decreases, and is all that they have counted since the sum began, whichever come and go.
func TestTally(t *testing.T) {
	began := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		tally := NewTally(began)
		heard, now := map[int]Counts{}, map[int]Counts{}
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			kernel := rapid.IntRange(0, 3).Draw(t, "kernel")
			at := began.Add(time.Duration(step+1) * time.Second)
			switch rapid.SampledFrom([]string{"old", "new", "count", "count", "count", "say", "say"}).Draw(t, "what") {
			case "old": // one that was there before
				if _, ok := now[kernel]; !ok {
					now[kernel] = Counts{Since: began.Add(-time.Hour), LogLost: 1000}
				}
			case "new": // a supervisor after another, or none
				now[kernel] = Counts{Since: at}
			case "count":
				if c, ok := now[kernel]; ok {
					n := int64(rapid.IntRange(0, 10).Draw(t, "n"))
					c.LogLost += n
					c.ToKernel[3][1] += n
					now[kernel] = c
				}
			case "say":
				c, ok := now[kernel]
				if !ok {
					continue
				}
				before := tally.Total()
				tally.Add(heard[kernel], c)
				grown := tally.Total().LogLost - before.LogLost
				expected := c.LogLost - heard[kernel].LogLost
				switch {
				case heard[kernel].Since.IsZero() && c.Since.Before(began):
					expected = 0
				case !heard[kernel].Since.Equal(c.Since):
					expected = c.LogLost
				}
				if grown != expected || grown < 0 {
					t.Fatalf("after %+v, %+v added %d, want %d", heard[kernel], c, grown, expected)
				}
				heard[kernel] = c
			}
		}
	})
}

// A supervisor that says less than before, or that began when another one did, does not make the sum smaller.
func TestTally_liar(t *testing.T) {
	tally := NewTally(time.Time{})
	at := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)
	said := []Counts{{Since: at, LogEvicted: 5}, {Since: at, LogEvicted: 2}, {Since: at, LogEvicted: -1 << 60}, {Since: at, LogEvicted: -1<<60 + 3}}
	last, sum := Counts{}, int64(0)
	for _, c := range said {
		tally.Add(last, c)
		if tally.Total().LogEvicted < sum {
			t.Errorf("after %d: the sum fell from %d to %d", c.LogEvicted, sum, tally.Total().LogEvicted)
		}
		last, sum = c, tally.Total().LogEvicted
	}
}
