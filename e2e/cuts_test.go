//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cuts holds the numbers of a test of cut connections.
type cuts struct {
	lines    int           // that each cell prints, at least
	pace     time.Duration // between two lines
	cuts     int           // of connections
	kills    int           // of the gateway
	inputs   int           // cells that a relay sends, connected or not
	pauses   int           // of a reader
	pause    time.Duration // length of a reader's pause
	patience time.Duration // a client's limit for silence on its connection
}

// TestE2E_Cuts checks the promise to a client that returns. Connections and the gateway may break at any moment. No
// output is missing, all of it is in order, and a repetition holds only the last messages before the cut.
func TestE2E_Cuts(t *testing.T) {
	cuts{lines: 1000, pace: 4 * time.Millisecond, cuts: 20, kills: 3, inputs: 100, pauses: 1, pause: 3 * time.Second,
		patience: 2 * time.Second}.run(t)
}

// TestChaos_Cuts runs the same test for longer, in `make chaos`.
func TestChaos_Cuts(t *testing.T) {
	cuts{lines: 10000, pace: 20 * time.Millisecond, cuts: 200, kills: 20, inputs: 1000, pauses: 3, pause: 20 * time.Second,
		patience: 3 * time.Second}.run(t)
}

// numbered returns a cell that prints numbered lines until a file exists, but at least this many. Each hundredth line
// is long, so that cuts hit the middle of a line. It is too short to be left out after three cuts. The last line holds
// the number of lines.
func numbered(lines int, pace time.Duration, until string) string {
	return fmt.Sprintf(`import os, time
n = 0
while n < %d or not os.path.exists(%q):
    print('line', n, 'x' * 120000 if n %% 100 == 99 else '', flush=True)
    n += 1
    time.sleep(%g)
print('total', n, flush=True)`, lines, until, pace.Seconds())
}

// wantNumbered checks that a numbered cell's output is complete and in order, and that the cell ended once and without
// error.
func wantNumbered(t *testing.T, name string, o *outcome) {
	t.Helper()
	n, total := 0, -1
	for line := range strings.Lines(o.stdout.String()) {
		var i int
		if _, err := fmt.Sscanf(line, "total %d", &total); err == nil {
			continue
		}
		if _, err := fmt.Sscanf(line, "line %d ", &i); err != nil || i != n {
			t.Fatalf("%s: got %.40q, want line %d", name, line, n)
		}
		n++
	}
	if n != total {
		t.Fatalf("%s: %d lines of %d", name, n, total)
	}
	if len(o.replies) != 1 || o.replies[0].field("status") != "ok" || len(o.idles) != 1 || o.notices != "" {
		t.Errorf("%s: %d replies, %d idles, and the cell says %q: %v",
			name, len(o.replies), len(o.idles), o.notices, o.replies)
	}
}

func (c cuts) run(t *testing.T) {
	n := seed(t)
	g := prepare(t, "", "--log-limit=256MiB") // the limit holds more than the longest absence
	g.moveTo("127.0.0.2")                     // no other program takes its port while it is down
	g.start()
	p := newFaultProxy(t, g.addr)
	stop := filepath.Join(g.dir, "stop")
	var clients []*returning
	var cells []string
	for _, subprotocol := range []string{subprotocolV1, "", subprotocolRelay} {
		r := newReturning(t, p.through(g), g.kernel("python3"), subprotocol, c.patience)
		cell := r.begin(numbered(c.lines, c.pace, stop))
		r.until(20*time.Second, "the cell's begin", func() bool { // a request that the gateway has not accepted may be lost
			return r.has(func(m message) bool { return m.Parent.MsgID == cell && m.Header.MsgType == "execute_input" })
		})
		clients, cells = append(clients, r), append(cells, cell)
	}
	began := time.Now()
	x := &chaos{t: t, g: g, p: p, random: rand.New(rand.NewPCG(n, 1)), clients: clients}
	for _, event := range c.events(x) {
		event()
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, r := range clients {
		if r.ext != nil {
			x.wantInputs(r)
		}
		wantNumbered(t, r.session, r.ended(cells[i], 2*time.Minute))
		r.mu.Lock()
		t.Logf("%s: %d messages in %d connections; %d messages came twice, at most %d bytes at once",
			r.session, len(r.got), r.connections, r.repeated, r.maxRepeat)
		r.mu.Unlock()
	}
	t.Logf("%d connections cut in %v", x.cut, time.Since(began).Round(time.Second))
}

// events returns all events of the test in random order.
func (c cuts) events(x *chaos) []func() {
	var events []func()
	for i := range c.cuts {
		events = append(events, func() { x.cutOne(i) })
	}
	for range c.kills {
		events = append(events, x.killGateway)
	}
	for range c.inputs {
		events = append(events, x.input)
	}
	for i := range c.pauses {
		events = append(events, func() { x.pauseReader(i, c.pause) })
	}
	x.random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return events
}

// chaos disturbs clients while their cells run.
type chaos struct {
	t       *testing.T
	g       *gateway
	p       *faultProxy
	random  *rand.Rand
	clients []*returning
	cut     int      // connections
	inputs  []string // msg_ids of the cells that a relay sent
}

// wait lets clients receive more messages: a random number, often zero.
func (x *chaos) wait(most int) {
	x.t.Helper()
	want := x.frames() + max(0, x.random.IntN(most)-most/4)
	eventually(x.t, time.Minute, "the clients go on", func() error {
		if n := x.frames(); n < want {
			return fmt.Errorf("%d of %d messages", n, want)
		}
		return nil
	})
}

func (x *chaos) frames() int {
	sum := 0
	for _, r := range x.clients {
		r.mu.Lock()
		sum += r.frames
		r.mu.Unlock()
	}
	return sum
}

// cutOne breaks one connection or all of them, in one of the ways in which real connections break.
func (x *chaos) cutOne(i int) {
	x.t.Helper()
	x.wait(300)
	var links []*link
	all := x.random.IntN(4) == 0
	eventually(x.t, time.Minute, "a connection that can be cut", func() error {
		if links = x.p.some(all, x.random); len(links) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	x.cut += len(links)
	switch i % 10 {
	case 0:
		for _, k := range links {
			k.set(halfOpen)
		}
	case 1, 2:
		for _, k := range links {
			k.set(mute)
		}
	case 3:
		for _, k := range links {
			k.set(crawling)
		}
	case 4, 5: // until the connection is reset
		for _, k := range links {
			k.set(deaf)
		}
		x.wait(300)
		fallthrough
	case 6, 7, 8:
		for _, k := range links {
			k.end()
		}
	case 9:
		x.hole()
	}
}

// hole turns the network into one that accepts everything and answers nothing, until a client tries to connect.
func (x *chaos) hole() {
	x.t.Helper()
	x.p.swallow()
	defer x.p.restore()
	before := x.p.swallowedSoFar()
	eventually(x.t, time.Minute, "a client connects to a network that swallows everything", func() error {
		if x.p.swallowedSoFar() == before {
			return errors.New("no client has connected")
		}
		return nil
	})
}

func (x *chaos) killGateway() {
	x.t.Helper()
	x.wait(300)
	if err := x.g.signal(syscall.SIGKILL); err != nil {
		x.t.Fatal(err)
	}
	x.g.start()
}

func (x *chaos) pauseReader(i int, d time.Duration) {
	x.t.Helper()
	x.wait(300)
	x.clients[i%len(x.clients)].pauses <- d
}

// input makes the relay send a cell. It is queued behind the running one.
func (x *chaos) input() {
	x.t.Helper()
	r := x.clients[len(x.clients)-1]
	x.inputs = append(x.inputs, r.begin(fmt.Sprintf("ran = [*globals().get('ran', []), %d]", len(x.inputs))))
}

// wantInputs checks that all cells ran once and in order, and got their replies.
func (x *chaos) wantInputs(r *returning) {
	x.t.Helper()
	for _, cell := range x.inputs {
		if o := r.ended(cell, 2*time.Minute); len(o.replies) != 1 || o.replies[0].field("status") != "ok" ||
			len(o.idles) != 1 {
			x.t.Errorf("cell %s has %d replies and %d idles", cell, len(o.replies), len(o.idles))
		}
	}
	check := r.begin(fmt.Sprintf("print(ran == list(range(%d)), ran)", len(x.inputs)))
	if o := r.ended(check, time.Minute); !strings.HasPrefix(o.stdout.String(), "True ") {
		x.t.Errorf("the relay sent %d cells, and these ran: %s", len(x.inputs), o.stdout.String())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x.t.Logf("%d cells sent, %d of them without a connection; %d messages were sent again",
		len(x.inputs), r.ext.offline, r.ext.again)
}
