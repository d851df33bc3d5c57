package messagelog

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

func numbered(n, size int) jupyter.Message {
	return jupyter.New(
		jupyter.IOPub,
		"stream",
		"s",
		nil,
		map[string]string{"n": strconv.Itoa(n), "pad": strings.Repeat("x", size)},
	)
}

func number(t interface{ Fatalf(string, ...any) }, m *jupyter.Message) int {
	n, err := strconv.Atoi(jupyter.StringField(m.Content, "n"))
	if err != nil {
		t.Fatalf("%v in %s", err, m.Content)
	}
	return n
}

// countHeld counts the entries that were not evicted.
func countHeld(l *Log) int64 {
	n := len(l.entries)
	for _, seg := range l.segments {
		n += int(seg.count)
	}
	return int64(n)
}

// TestLog_Model compares the log with a list that forgets nothing, with and without a part on disk. A reader gets its
// entries in order and once. The count of what it missed is exact. Essential entries come late rather than never, as
// long as they fit. The log stays within its bound.
func TestLog_Model(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(5000, 50000).Draw(t, "limit")
		onDisk := rapid.Bool().Draw(t, "on disk")
		options := Options{Limit: limit}
		least := rapid.Int64Range(2000, 20000).Draw(t, "least")
		follows := onDisk && rapid.Bool().Draw(t, "follows the disk")
		if onDisk {
			options.Dir = dir
		}
		if follows {
			options.KeepFree, options.Least = 1, least
		}
		l := New(options)
		room := int64(math.MaxInt64 / 2)
		l.room = func() (left, reserve int64, err error) { return room, 0, nil }
		defer l.Close()
		bound := func() {
			if onDisk {
				l.memory = limit / 4 // real limits never leave so little
			}
		}
		bound()
		type written struct{ to, n int }
		var all []written
		type reader struct {
			session int
			at      Position
			next    int // index into all of the first entry that it has not seen yet
		}
		readers := []*reader{{session: 1}, {session: 2}}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				to := rapid.IntRange(0, 2).Draw(t, "to")
				n := len(all)
				l.Append(uint64(to), numbered(n, rapid.IntRange(0, 3000).Draw(t, "size")), rapid.Bool().Draw(t, "essential"))
				all = append(all, written{to, n})
				if bytes, _ := l.Sizes(); bytes > limit && len(l.entries) > 1 {
					t.Fatalf("%d bytes of %d with %d entries", bytes, limit, len(l.entries))
				}
				if at := len(l.entries) - 1; follows && at > 0 && l.bytes-l.entries[at].size > least {
					t.Fatalf("%d bytes in memory of %d", l.bytes, least)
				}
				if n, held := l.Evicted(), countHeld(l); n+held != int64(len(all)) {
					t.Fatalf("%d evicted and %d held of %d", n, held, len(all))
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
				lines, now := l.Page(after, rapid.Int64Range(1, 20000).Draw(t, "max"), nil)
				next := after + 1
				for _, line := range lines {
					if line.Number != next+line.Lost-min(line.Lost, 1) {
						t.Fatalf("line %d with %d lost came where %d was next", line.Number, line.Lost, next)
					}
					next = line.Number + 1
					if line.Entry != nil && number(t, &line.Entry.Message) != int(line.Number-1) {
						t.Fatalf("line %d is %s", line.Number, line.Entry.Message.Content)
					}
				}
				if next != now+1 || now == after && int(now) < len(all) {
					t.Fatalf("from %d of %d to %d with %d lines", after, len(all), now, len(lines))
				}
			},
			"read": func(t *rapid.T) {
				r := readers[rapid.IntRange(0, 1).Draw(t, "reader")]
				got, now, lost := l.Read(r.at, uint64(r.session), rapid.Int64Range(1, 20000).Draw(t, "max"), nil)
				last := -1
				skippedOut := 0
				i := r.next
				for _, e := range got {
					n := number(t, &e.Message)
					if n <= last {
						t.Fatalf("%d came after %d", n, last)
					}
					last = n
					if e.To != 0 && e.To != uint64(r.session) {
						t.Fatalf("%d is for another session", n)
					}
					for ; i < n; i++ {
						if all[i].to == 0 {
							skippedOut++
						}
					}
					i++
				}
				for ; i < int(now.Seq); i++ {
					if all[i].to == 0 {
						skippedOut++
					} else if all[i].to == r.session && lost.Total() == 0 && i >= int(l.gone.Seq) && !follows {
						t.Fatalf("entry %d for this session was skipped", i)
					}
				}
				if skippedOut != int(lost.Total()) {
					t.Fatalf("%d for everyone were skipped, %d announced", skippedOut, lost)
				}
				if now.Seq == r.at.Seq && int(now.Seq) < len(all) && len(got) == 0 {
					t.Fatalf("no progress at %d of %d", now.Seq, len(all))
				}
				r.at, r.next = now, int(now.Seq)
			},
			"room": func(t *rapid.T) {
				room = rapid.Int64Range(-50000, 50000).Draw(t, "room")
			},
			"limit": func(t *rapid.T) {
				limit = rapid.Int64Range(5000, 50000).Draw(t, "new limit")
				l.SetLimit(limit)
				bound()
			},
		})
	})
}

func TestLog_KeepsWhatEndsACell(t *testing.T) {
	l := New(Options{Limit: 20000})
	s := uint64(1)
	l.Append(s, numbered(-1, 10), true)
	for n := range 100 {
		l.Append(0, numbered(n, 1000), false)
	}
	got, _, lost := l.Read(Position{}, s, 1<<20, nil)
	if len(got) == 0 || number(t, &got[0].Message) != -1 {
		t.Fatalf("the reply is gone: %d entries", len(got))
	}
	if want := uint64(100 - (len(got) - 1)); lost != (Loss{LogFull: want}) {
		t.Errorf("%d announced as lost, want %d", lost, want)
	}
}

// TestLog_LargeEntry: an entry above the limit, and those before it, reach each connection that is there. Then it is
// gone.
func TestLog_LargeEntry(t *testing.T) {
	const limit = 100 << 10
	for name, dir := range map[string]string{"in memory": "", "with a folder": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			l := New(Options{Limit: limit, Dir: dir})
			defer l.Close()
			fast, slow, page := NewReader(), NewReader(), NewReader()
			l.Subscribe(fast, 1, framing.V1)
			l.Subscribe(slow, 2, framing.V1)
			l.Watch(page)
			read := func(r *Reader, session uint64, at Position) (now Position, n int, lost uint64) {
				for {
					r.Pass(at)
					got, next, gone := l.Read(at, session, 1<<20, nil)
					for _, e := range got {
						if number(t, &e.Message)+1 != int(e.At.Seq) {
							t.Errorf("entry %d is %s", e.At.Seq, e.Message.Header)
						}
					}
					n, lost = n+len(got), lost+gone.Total()
					if next == at {
						return at, n, lost
					}
					at = next
				}
			}
			for n := range 5 {
				size := 10
				if n == 1 {
					size = 3 * limit
				}
				l.Append(0, numbered(n, size), n == 3)
			}
			at, n, lost := read(fast, 1, Position{})
			if n != 5 || lost != 0 {
				t.Errorf("got %d entries, %d are lost", n, lost)
			}
			if size, _ := l.Sizes(); size < 3*limit {
				t.Errorf("the large entry is gone before the slow reader has it: %d bytes", size)
			}
			if _, n, lost := read(slow, 2, Position{}); n != 5 || lost != 0 {
				t.Errorf("the slow reader got %d entries, %d are lost", n, lost)
			}
			if size, _ := l.Sizes(); size > limit {
				t.Errorf("%d bytes are left", size)
			}
			// The newest large entry replaces the one before. The end of a connection drops what it has not read.
			for n := 5; n < 8; n++ {
				l.Append(0, numbered(n, 3*limit), false)
			}
			l.Append(0, numbered(8, 10), false)
			if size, _ := l.Sizes(); size > 4*limit {
				t.Errorf("%d bytes are kept for readers", size)
			}
			if _, n, lost := read(fast, 1, at); n != 2 || lost != 2 {
				t.Errorf("of three large entries and a small one %d arrived, %d are lost", n, lost)
			}
			l.Unsubscribe(slow, framing.V1)
			if size, _ := l.Sizes(); size > limit {
				t.Errorf("%d bytes are left without readers", size)
			}
			if _, n, lost := read(NewReader(), 3, Position{}); n+int(lost) != 9 {
				t.Errorf("a late reader got %d entries, %d are lost", n, lost)
			}
		})
	}
}

func TestLog_SharesEncodedFrames(t *testing.T) {
	l := New(Options{Limit: 1 << 20})
	l.Subscribe(NewReader(), 0, framing.V1)
	l.Append(0, numbered(1, 100), false)
	e := l.entries[0]
	one := l.Encode(e, framing.V1)
	if again := l.Encode(e, framing.V1); &again.Parts[0][0] == &one.Parts[0][0] {
		t.Error("a frame is kept although no other connection shares it")
	}
	l.Subscribe(NewReader(), 0, framing.V1)
	before, _ := l.Sizes()
	one = l.Encode(e, framing.V1)
	if again := l.Encode(e, framing.V1); &again.Parts[0][0] != &one.Parts[0][0] {
		t.Error("two connections do not share a frame")
	}
	if after, _ := l.Sizes(); after != before+int64(one.Size()) {
		t.Errorf("the kept frame of %d bytes counts %d", one.Size(), after-before)
	}
}

func TestLog_KeepsAllUnderItsLimit(t *testing.T) {
	l := New(Options{Limit: 100 << 10})
	for n := range 300 {
		l.Append(0, numbered(n, 1000), false)
	}
	got, _, lost := l.Read(Position{}, 0, 1<<20, nil)
	if bytes, limit := l.Sizes(); bytes < limit*9/10 {
		t.Errorf("%d bytes of %d are used, %d entries are left", bytes, limit, len(got))
	}
	if uint64(len(got))+lost[LogFull] != 300 {
		t.Errorf("%d left and %d lost of 300", len(got), lost)
	}
}

// TestLog_Urgent: only a message that a client waits for ends its connection's pause between writes.
func TestLog_Urgent(t *testing.T) {
	l := New(Options{Limit: 1 << 20})
	const mine, other = 1, 2
	r := NewReader()
	l.Subscribe(r, mine, framing.V1)
	m := jupyter.New(jupyter.IOPub, "stream", "s", nil, struct{}{})
	for _, c := range []struct {
		to        uint64
		essential bool
		want      int
	}{{0, false, 0}, {0, true, 1}, {mine, true, 1}, {other, true, 0}} {
		l.Append(c.to, m, c.essential)
		if len(r.Wake) != 1 || len(r.Urgent) != c.want {
			t.Errorf("entry for %d, essential %v: woken %d, urgently %d", c.to, c.essential, len(r.Wake), len(r.Urgent))
		}
		for len(r.Urgent) > 0 {
			<-r.Urgent
		}
	}
}
