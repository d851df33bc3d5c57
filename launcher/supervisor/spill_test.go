package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// openFiles counts this process's descriptors of unlinked files in a folder.
func openFiles(t *testing.T, dir string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir+"/.log-") {
			n++
		}
	}
	return n
}

// TestSpill_returningClient: what a client has missed comes from the disk as it would from memory, and memory holds no
// more than its share.
func TestSpill_returningClient(t *testing.T) {
	dir := t.TempDir()
	r := startSupervisor(t, func(c *Config) { c.LogLimit, c.SpillDir = 64<<20, dir }).ready()
	c := r.dial(dialOption{session: "ann", relay: true})
	begin := c.cursor
	cell := c.execute("flood 10000\nbig 20m\nbuffers 3m\necho end")
	r.until("busy", func(st Status) bool { return st.State == stateBusy })
	c.ws.NetConn().Close()
	r.until("idle", func(st Status) bool { return st.State == stateIdle })
	eventually(t, "memory within its share", func() bool {
		r.s.log.mu.Lock()
		defer r.s.log.mu.Unlock()
		return r.s.log.bytes <= memoryMost
	})
	if st, _ := r.s.currentStatus(); st.LogBytes < memoryMost+1<<20 || openFiles(t, dir) == 0 {
		t.Fatalf("the log has %d bytes, in %d files", st.LogBytes, openFiles(t, dir))
	}
	if seen, err := os.ReadDir(dir); err != nil || len(seen) > 0 {
		t.Errorf("others can see %v, %v", seen, err)
	}
	c = r.dial(dialOption{session: "ann", relay: true, cursor: begin})
	all := c.result(cell)
	displays, bigs, buffers := 0, 0, 0
	for _, g := range all {
		switch {
		case g.msgType == "display_data" && len(g.Content) > 1<<20:
			bigs++
		case g.msgType == "display_data":
			displays++
		case len(g.Buffers) == 1 && len(g.Buffers[0]) == 3_000_000:
			buffers++
		}
	}
	if text := output(all, cell); displays != 10000 || bigs != 1 || buffers != 1 || text != "end\n" {
		t.Errorf("%d displays, %d large ones, %d with buffers, %q", displays, bigs, buffers, text)
	}
}

// TestSpill_record: an entry is the same after it has been on disk, and one for another session is not even read.
func TestSpill_record(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	now := time.Now().UTC()
	large := make([]byte, 300<<10)
	for i := range large {
		large[i] = byte(rand.Int())
	}
	m := wire.New(wire.Control, "x", "s", []byte(`{"a":1}`), map[string]string{"b": "c"})
	m.Buffers = [][]byte{large, {}, []byte("z")}
	in := []*entry{
		{at: position{7, 3}, msg: m, essential: true, stamp: stamp{now, 5, "cell"}},
		{at: position{8, 3}, to: 9, msg: wire.Message{Channel: wire.Shell, Content: large}},
		{at: position{9, 4}, msg: wire.Message{Channel: wire.IOPub}, stamp: stamp{time: now}},
	}
	seg := segment{file: f}
	for _, e := range in {
		if seg, err = seg.write([]*entry{e}); err != nil {
			t.Fatal(err)
		}
		seg.file = f
	}
	for after := uint64(6); after < 9; after++ {
		var got []*entry
		err := seg.read(after, func(head *entry) action {
			if head.to == 9 {
				if head.msg.Content != nil {
					t.Errorf("entry %d was read", head.at.seq)
				}
				got = append(got, head)
				return passOver
			}
			return fillIn
		}, func(e *entry) { got = append(got, e) })
		if err != nil || len(got) != int(9-after) {
			t.Fatalf("after %d: %d entries, %v", after, len(got), err)
		}
		for i, e := range got {
			want := in[int(after)-6+i]
			same := e.at == want.at && e.essential == want.essential
			if want.to == 0 {
				same = same && e.stamp.time.Equal(want.stamp.time) && e.stamp.cell == want.stamp.cell &&
					e.stamp.epoch == want.stamp.epoch && e.msg.Channel == want.msg.Channel &&
					fmt.Sprint(e.msg.Header, e.msg.Parent, e.msg.Metadata, e.msg.Content) ==
						fmt.Sprint(want.msg.Header, want.msg.Parent, want.msg.Metadata, want.msg.Content) &&
					len(e.msg.Buffers) == len(want.msg.Buffers)
				for n := range e.msg.Buffers {
					same = same && bytes.Equal(e.msg.Buffers[n], want.msg.Buffers[n])
				}
			}
			if !same {
				t.Errorf("after %d: entry %d is %+v", after, i, e.at)
			}
		}
	}
	if err := f.Truncate(seg.size / 2); err != nil {
		t.Fatal(err)
	}
	err = seg.read(6, func(*entry) action { return fillIn }, func(*entry) {})
	if err == nil {
		t.Error("half a file reads like a whole one")
	}
}

// TestSpill_lostFile: entries that the disk does not give back are announced like evicted ones.
func TestSpill_lostFile(t *testing.T) {
	l := newLog(100 << 10)
	l.spillTo(t.TempDir())
	l.memory = 10 << 10
	defer l.close()
	for n := range 60 {
		l.append(nil, numbered(n, 1000), false)
	}
	spillAll(t, l)
	if err := l.segments[0].file.Truncate(100); err != nil {
		t.Fatal(err)
	}
	s := &session{number: 1}
	seen, missing, at := 0, uint64(0), position{}
	for at.seq < 60 {
		got, now, lost := l.read(at, s, 1<<20, nil)
		if now.seq == at.seq {
			t.Fatalf("stands at %d", now.seq)
		}
		seen, missing, at = seen+len(got), missing+lost, now
	}
	if seen+int(missing) != 60 || missing == 0 || seen == 0 {
		t.Errorf("%d seen, %d missing", seen, missing)
	}
	lines, _ := l.page(0, 1<<20, nil)
	if len(lines) != 1 || lines[0].lost == 0 {
		t.Errorf("the log's reader sees %+v", lines)
	}
}

// TestSpill_fullDisk: a full disk costs older output, which is announced, and nothing else; once there is room, it is
// used again.
func TestSpill_fullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no file system of a bounded size: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	blocker := dir + "/blocker"
	if err := os.WriteFile(blocker, make([]byte, 3<<20), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	const limit = 4 << 20
	l := newLog(limit)
	l.spillTo(dir)
	l.memory = 100 << 10
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	announced := make(chan error, 10)
	wg.Go(func() { l.spill(ctx, func(err error) { announced <- err }) })
	defer func() { cancel(); wg.Wait(); l.close() }()
	n := 0
	fill := func() {
		for range 500 {
			l.append(nil, numbered(n, 1000), false)
			n++
		}
	}
	fill()
	select {
	case err := <-announced:
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("announced %v", err)
		}
	case <-time.After(testLimit):
		t.Fatal("a full disk is not announced")
	}
	fill() // and nothing is missing for it
	s := &session{number: 1}
	if seen, lost := countRead(l, s); seen != n || lost != 0 {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	// Room again. The loop would look after spillAgain; here it is done by hand, while the loop waits.
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	for range 20 { // more than the limit
		fill()
		for more := true; more; {
			_, more, _ = l.spillOnce() // the disk holds less than the limit
		}
	}
	if seen, lost := countRead(l, s); seen+lost != n || l.disk == 0 {
		t.Errorf("%d read and %d lost of %d, %d bytes on disk", seen, lost, n, l.disk)
	}
	if size, _ := l.sizes(); size > limit {
		t.Errorf("%d bytes, the limit is %d", size, limit)
	}
}

// TestSpill_announces: a disk is said to be of use again when something was written to it, and of none once.
func TestSpill_announces(t *testing.T) {
	dir := t.TempDir()
	l := newLog(1 << 20)
	l.spillTo(dir + "/none")
	l.memory = 10 << 10
	l.again = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	announced := make(chan error, 100)
	wg.Go(func() { l.spill(ctx, func(err error) { announced <- err }) })
	defer func() { cancel(); wg.Wait(); l.close() }()
	next := func() error {
		t.Helper()
		select {
		case err := <-announced:
			return err
		case <-time.After(testLimit):
			t.Fatal("nothing is announced")
			return nil
		}
	}
	for n := range 100 {
		l.append(nil, numbered(n, 1000), false)
	}
	if err := next(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("announced %v", err)
	}
	if err := os.Mkdir(dir+"/none", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := next(); err != nil {
		t.Errorf("announced %v in between", err)
	}
	if seen, lost := countRead(l, &session{number: 1}); seen != 100 || lost != 0 {
		t.Errorf("%d read and %d lost of 100", seen, lost)
	}
	if openFiles(t, dir+"/none") == 0 {
		t.Error("nothing was written")
	}
}

// TestSpill_keepsWhatEndsACell: what was on disk is forgotten but for replies and idles, as what was in memory.
func TestSpill_keepsWhatEndsACell(t *testing.T) {
	t.Run("the disk keeps up", func(t *testing.T) { keepsWhatEndsACell(t, 0) })
	t.Run("appends are faster", func(t *testing.T) { keepsWhatEndsACell(t, 4000) })
}

// keepsWhatEndsACell does nothing on disk any more from the append of slowFrom on, if that is not 0.
func keepsWhatEndsACell(t *testing.T, slowFrom int) {
	const limit = 8 << 20
	l := newLog(limit)
	l.spillTo(t.TempDir())
	defer l.close()
	s, other := &session{number: 1}, &session{number: 2}
	l.append(s, numbered(-1, 10), true)
	n := 1
	for l.gone.seq < 2000 {
		l.append(nil, numbered(n, 1000), false)
		if n%1000 == 500 {
			l.append(other, numbered(n, 1000), true)
		}
		n++
		if slowFrom == 0 || n < slowFrom {
			spillAll(t, l)
		}
	}
	got, _, lost := l.read(position{}, s, 1<<20, nil)
	if len(got) == 0 || number(t, &got[0].msg) != -1 || lost == 0 {
		t.Fatalf("the reply is gone: %d entries, %d lost", len(got), lost)
	}
	if seen, lost := countRead(l, s); seen+lost != n {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	if size, _ := l.sizes(); size > limit {
		t.Errorf("%d bytes, the limit is %d", size, limit)
	}
}

func spillAll(t *testing.T, l *messageLog) {
	t.Helper()
	for more := true; more; {
		var err error
		if _, more, err = l.spillOnce(); err != nil {
			t.Fatal(err)
		}
	}
}

// countRead reads a log as a session does, and counts what it got and what it was told to have missed.
func countRead(l *messageLog, s *session) (seen, missing int) {
	at := position{}
	for {
		got, now, lost := l.read(at, s, 1<<20, nil)
		seen, missing = seen+len(got), missing+int(lost)
		if now == at {
			return seen, missing
		}
		at = now
	}
}

// TestSpill_concurrently: appending, spilling, forgetting and reading at once.
func TestSpill_concurrently(t *testing.T) {
	dir := t.TempDir()
	l := newLog(300 << 10)
	l.spillTo(dir)
	l.memory = 50 << 10
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.spill(ctx, func(err error) { t.Errorf("announced %v", err) }) })
	const total = 5000
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			s := &session{number: uint64(i + 1)}
			at, seen := position{}, 0
			news := newReader()
			l.subscribe(news, s, framingV1)
			defer l.unsubscribe(news, framingV1)
			for at.seq < total {
				got, now, lost := l.read(at, s, int64(i)*10000, nil)
				seen += len(got) + int(lost)
				for j, e := range got {
					if want := number(t, &e.msg); want != int(e.at.seq)-1 {
						t.Errorf("entry %d of a batch says %d, its number is %d", j, want, e.at.seq)
						return
					}
					if _, err := l.encode(e, framingV1); err != nil {
						t.Error(err)
					}
				}
				if now == at {
					<-news.wake
				}
				at = now
			}
			if seen != total {
				t.Errorf("%d seen or announced of %d", seen, total)
			}
		})
	}
	for n := range total {
		l.append(nil, numbered(n, 500), false)
	}
	readers.Wait()
	cancel()
	wg.Wait()
	l.close()
	if n := openFiles(t, dir); n > 0 {
		t.Errorf("%d files are open at the end", n)
	}
}
