package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

func numbered(n, size int) wire.Message {
	return wire.New(wire.IOPub, "stream", "s", nil, map[string]string{"n": strconv.Itoa(n), "pad": strings.Repeat("x", size)})
}

func number(t interface{ Fatalf(string, ...any) }, m *wire.Message) int {
	n, err := strconv.Atoi(wire.StringField(m.Content, "n"))
	if err != nil {
		t.Fatalf("%v in %s", err, m.Content)
	}
	return n
}

// TestLog_model holds the log against a list that forgets nothing: whatever the sizes, a reader sees what is for it in
// order and once, the count of what it missed is exact, essential entries come late rather than never as long as there
// is room for them, and the bound holds; whether all of it is in memory or part of it on disk.
func TestLog_model(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(5000, 50000).Draw(t, "limit")
		l := newLog(limit)
		defer l.close()
		onDisk := rapid.Bool().Draw(t, "on disk")
		bound := func() {
			if onDisk {
				l.memory = limit / 4 // of real limits it is never so little
			}
		}
		if onDisk {
			l.spillTo(dir)
		}
		bound()
		sessions := []*session{nil, {id: "a", number: 1}, {id: "b", number: 2}}
		type written struct{ to, n int }
		var all []written
		type reader struct {
			session int
			at      position
			next    int // index into all of what it has not seen yet
		}
		readers := []*reader{{session: 1}, {session: 2}}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				to := rapid.IntRange(0, 2).Draw(t, "to")
				n := len(all)
				l.append(sessions[to], numbered(n, rapid.IntRange(0, 3000).Draw(t, "size")), rapid.Bool().Draw(t, "essential"))
				all = append(all, written{to, n})
				if bytes, _ := l.sizes(); bytes > limit && len(l.entries) > 1 {
					t.Fatalf("%d bytes of %d with %d entries", bytes, limit, len(l.entries))
				}
			},
			"spill": func(t *rapid.T) {
				if !onDisk {
					t.Skip("all is in memory")
				}
				if rapid.IntRange(0, 20).Draw(t, "fault") == 0 {
					l.dir = dir + "/none"
				}
				_, _, err := l.spillOnce()
				if l.dir == dir && err != nil {
					t.Fatal(err)
				}
				l.dir = dir
			},
			"page": func(t *rapid.T) {
				after := uint64(rapid.IntRange(0, len(all)).Draw(t, "after"))
				lines, now := l.page(after, rapid.Int64Range(1, 20000).Draw(t, "max"), nil)
				next := after + 1
				for _, line := range lines {
					if line.number != next+line.lost-min(line.lost, 1) {
						t.Fatalf("line %d with %d lost came where %d was next", line.number, line.lost, next)
					}
					next = line.number + 1
					if line.e != nil && number(t, &line.e.msg) != int(line.number-1) {
						t.Fatalf("line %d is %s", line.number, line.e.msg.Content)
					}
				}
				if next != now+1 || now == after && int(now) < len(all) {
					t.Fatalf("from %d of %d to %d with %d lines", after, len(all), now, len(lines))
				}
			},
			"read": func(t *rapid.T) {
				r := readers[rapid.IntRange(0, 1).Draw(t, "reader")]
				got, now, lost := l.read(r.at, sessions[r.session], rapid.Int64Range(1, 20000).Draw(t, "max"), nil)
				last := -1
				skippedOut := 0
				i := r.next
				for _, e := range got {
					n := number(t, &e.msg)
					if n <= last {
						t.Fatalf("%d came after %d", n, last)
					}
					last = n
					if e.to != 0 && e.to != sessions[r.session].number {
						t.Fatalf("%d is for another session", n)
					}
					for ; i < n; i++ {
						if all[i].to == 0 {
							skippedOut++
						}
					}
					i++
				}
				for ; i < int(now.seq); i++ {
					if all[i].to == 0 {
						skippedOut++
					} else if all[i].to == r.session && lost == 0 && i >= int(l.gone.seq) {
						t.Fatalf("entry %d for this session was skipped", i)
					}
				}
				if skippedOut != int(lost) {
					t.Fatalf("%d for everyone were skipped, %d announced", skippedOut, lost)
				}
				if now.seq == r.at.seq && int(now.seq) < len(all) && len(got) == 0 {
					t.Fatalf("no progress at %d of %d", now.seq, len(all))
				}
				r.at, r.next = now, int(now.seq)
			},
			"limit": func(t *rapid.T) {
				limit = rapid.Int64Range(5000, 50000).Draw(t, "new limit")
				l.setLimit(limit)
				bound()
			},
		})
	})
}

func TestLog_keepsWhatEndsACell(t *testing.T) {
	l := newLog(20000)
	s := &session{number: 1}
	l.append(s, numbered(-1, 10), true)
	for n := range 100 {
		l.append(nil, numbered(n, 1000), false)
	}
	got, _, lost := l.read(position{}, s, 1<<20, nil)
	if len(got) == 0 || number(t, &got[0].msg) != -1 {
		t.Fatalf("the reply is gone: %d entries", len(got))
	}
	if want := uint64(100 - (len(got) - 1)); lost != want {
		t.Errorf("%d announced as lost, want %d", lost, want)
	}
}

func TestLog_sharesEncodedFrames(t *testing.T) {
	l := newLog(1 << 20)
	l.subscribe(newReader(), nil, framingV1)
	l.append(nil, numbered(1, 100), false)
	e := l.entries[0]
	one, err := l.encode(e, framingV1)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := l.encode(e, framingV1); &again.data[0] == &one.data[0] {
		t.Error("a frame is kept although there is nobody to share it with")
	}
	l.subscribe(newReader(), nil, framingV1)
	before, _ := l.sizes()
	one, _ = l.encode(e, framingV1)
	if again, _ := l.encode(e, framingV1); &again.data[0] != &one.data[0] {
		t.Error("two connections do not share a frame")
	}
	if after, _ := l.sizes(); after != before+int64(len(one.data)) {
		t.Errorf("the kept frame of %d bytes counts %d", len(one.data), after-before)
	}
}

func TestClock(t *testing.T) {
	h := func(msgType, id string) wire.Header { return wire.Header{MsgType: msgType, MsgID: id} }
	type step struct {
		msgType string
		parent  wire.Header
		state   string
		want    string
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"a cell", []step{{"status", h("execute_request", "1"), stateBusy, stateBusy}, {"stream", h("execute_request", "1"), "", stateBusy},
			{"status", h("execute_request", "1"), stateIdle, stateIdle}}},
		{"control while a cell runs", []step{{"status", h("execute_request", "1"), stateBusy, stateBusy},
			{"status", h("debug_request", "2"), stateBusy, stateBusy}, {"status", h("debug_request", "2"), stateIdle, stateBusy}}},
		{"two subshells", []step{{"status", h("execute_request", "1"), stateBusy, stateBusy}, {"status", h("execute_request", "2"), stateBusy, stateBusy},
			{"status", h("execute_request", "1"), stateIdle, stateBusy}, {"status", h("execute_request", "2"), stateIdle, stateIdle}}},
		{"looking at it", []step{{"status", h("kernel_info_request", "1"), stateBusy, stateIdle}}},
		{"a widget's callback", []step{{"status", h("comm_msg", "1"), stateBusy, stateBusy}}},
		{"background output", []step{{"stream", h("execute_request", "1"), "", stateIdle}}},
		{"idle that was never busy", []step{{"status", h("execute_request", "9"), stateIdle, stateIdle}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newClock(fakeNow(), &Cull{})
			c.ready()
			for i, s := range tc.steps {
				c.observe(s.msgType, s.parent, s.state)
				if c.state != s.want {
					t.Fatalf("step %d: state is %s, want %s", i, c.state, s.want)
				}
			}
		})
	}
}

func TestClock_activity(t *testing.T) {
	for _, tc := range []struct {
		msgType, parent string
		busy, moves     bool
	}{
		{"status", "kernel_info_request", false, false},
		{"status", "execute_request", false, true},
		{"stream", "execute_request", false, true},
		{"stream", "", false, false},
		{"stream", "", true, true},
		{"comm_msg", "", false, true},
		{"debug_event", "debug_request", false, false},
		{"status", "", false, false},
	} {
		t.Run(fmt.Sprintf("%s of %q busy %v", tc.msgType, tc.parent, tc.busy), func(t *testing.T) {
			c := newClock(fakeNow(), &Cull{})
			c.ready()
			if tc.busy {
				c.observe("status", wire.Header{MsgType: "execute_request", MsgID: "0"}, stateBusy)
			}
			before := c.lastActivity
			c.observe(tc.msgType, wire.Header{MsgType: tc.parent, MsgID: "1"}, "")
			if moved := c.lastActivity.After(before); moved != tc.moves {
				t.Errorf("moved is %v, want %v", moved, tc.moves)
			}
		})
	}
}

// fakeNow is a clock that moves on by a second whenever it is read.
func fakeNow() func() time.Time {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

func TestLog_keepsAllUnderItsLimit(t *testing.T) {
	l := newLog(100 << 10)
	for n := range 300 {
		l.append(nil, numbered(n, 1000), false)
	}
	got, _, lost := l.read(position{}, nil, 1<<20, nil)
	if bytes, limit := l.sizes(); bytes < limit*9/10 {
		t.Errorf("%d bytes of %d are used, %d entries are left", bytes, limit, len(got))
	}
	if uint64(len(got))+lost != 300 {
		t.Errorf("%d left and %d lost of 300", len(got), lost)
	}
}

func TestGate(t *testing.T) {
	g := newGate()
	ctx, cancel := context.WithCancel(context.Background())
	for n := range 3 {
		if err := g.push(numbered(n, 1), nil); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if m, err := g.take(ctx); err == nil {
		t.Fatalf("a shut gate let %s through", m.msg.Content)
	}
	g.set(true)
	for n := range 3 {
		m, err := g.take(context.Background())
		if err != nil || number(t, &m.msg) != n {
			t.Fatalf("took %s, %v", m.msg.Content, err)
		}
	}
	if err := g.push(numbered(0, gateLimitBytes+1), nil); err != nil {
		t.Errorf("a large message does not fit an empty gate: %v", err)
	}
	if err := g.push(numbered(1, 1), nil); !errors.Is(err, errGateFull) {
		t.Errorf("a full gate says %v", err)
	}
	g.clear()
	for range gateLimitMessages {
		if err := g.push(wire.Message{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.push(wire.Message{}, nil); !errors.Is(err, errGateFull) {
		t.Errorf("too many messages: %v", err)
	}
}
