package supervisor

import (
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

func TestPacer(t *testing.T) {
	now := time.Unix(1e9, 0)
	var p pacer
	for i := range paceBurst {
		if d := p.wrote(1, now); d != 0 {
			t.Fatalf("write %d after a pause has to wait %v", i, d)
		}
	}
	if d := p.wrote(1, now); d != paceGap {
		t.Errorf("the write after a burst has to wait %v", d)
	}
	if d := p.wrote(paceEntries, now); d != 0 {
		t.Errorf("a large write has to wait %v", d)
	}
	if d := p.wrote(0, now); d != 0 {
		t.Errorf("where nothing was written one has to wait %v", d)
	}
	if d := p.wrote(1, now.Add(paceGap)); d != 0 {
		t.Errorf("a write in its time has to wait %v", d)
	}
}

// TestLog_urgent: what a client waits for, and only that, ends its connection's pause between writes.
func TestLog_urgent(t *testing.T) {
	l := newLog(1 << 20)
	mine, other := &session{id: "mine"}, &session{id: "other"}
	r := newReader()
	l.subscribe(r, mine, framingV1)
	m := wire.New(wire.IOPub, "stream", "s", nil, struct{}{})
	for _, c := range []struct {
		to        *session
		essential bool
		want      int
	}{{nil, false, 0}, {nil, true, 1}, {mine, true, 1}, {other, true, 0}} {
		l.append(c.to, m, c.essential)
		if len(r.wake) != 1 || len(r.urgent) != c.want {
			t.Errorf("entry for %v, essential %v: woken %d, urgently %d", c.to, c.essential, len(r.wake), len(r.urgent))
		}
		for len(r.urgent) > 0 {
			<-r.urgent
		}
	}
}

// TestConn_asksAtOnce: what ends a cell, or says that the kernel restarts, is followed by a ping at once, whether or not an
// earlier one is answered: a page that opens its websocket anew because of it must not get it again.
func TestConn_asksAtOnce(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	pings := 0
	c.ws.SetPingHandler(func(string) error { pings++; return nil })
	const cells = 10
	for range cells {
		c.result(c.execute("echo x"))
	}
	if pings < cells-1 { // the last one's may still come
		t.Errorf("%d pings in %d cells", pings, cells)
	}
}
