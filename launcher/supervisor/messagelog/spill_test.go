package messagelog

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

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
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

// TestSpill_Record: an entry is the same after it has been on disk, and one for another session is not even read.
func TestSpill_Record(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	now := time.Now().UTC()
	large := make([]byte, 300<<10)
	for i := range large {
		large[i] = byte(rand.Int())
	}
	m := jupyter.New(jupyter.Control, "x", "s", []byte(`{"a":1}`), map[string]string{"b": "c"})
	m.Buffers = [][]byte{large, {}, []byte("z")}
	in := []*Entry{
		{At: Position{7, 3}, Message: m, Essential: true, Stamp: Stamp{now, 5, "cell"}},
		{At: Position{8, 3}, To: 9, Message: jupyter.Message{Channel: jupyter.Shell, Content: large}},
		{At: Position{9, 4}, Message: jupyter.Message{Channel: jupyter.IOPub}, Stamp: Stamp{Time: now}},
	}
	seg := segment{file: f}
	for _, e := range in {
		if seg, err = seg.write([]*Entry{e}); err != nil {
			t.Fatal(err)
		}
		seg.file = f
	}
	for after := uint64(6); after < 9; after++ {
		var got []*Entry
		err := seg.read(after, func(head *Entry) action {
			if head.To == 9 {
				if head.Message.Content != nil {
					t.Errorf("entry %d was read", head.At.Seq)
				}
				got = append(got, head)
				return passOver
			}
			return fillIn
		}, func(e *Entry) { got = append(got, e) })
		if err != nil || len(got) != int(9-after) {
			t.Fatalf("after %d: %d entries, %v", after, len(got), err)
		}
		for i, e := range got {
			want := in[int(after)-6+i]
			same := e.At == want.At && e.Essential == want.Essential
			if want.To == 0 {
				same = same && e.Stamp.Time.Equal(want.Stamp.Time) && e.Stamp.Cell == want.Stamp.Cell &&
					e.Stamp.Epoch == want.Stamp.Epoch && e.Message.Channel == want.Message.Channel &&
					fmt.Sprint(e.Message.Header, e.Message.Parent, e.Message.Metadata, e.Message.Content) ==
						fmt.Sprint(want.Message.Header, want.Message.Parent, want.Message.Metadata, want.Message.Content) &&
					len(e.Message.Buffers) == len(want.Message.Buffers)
				for n := range e.Message.Buffers {
					same = same && bytes.Equal(e.Message.Buffers[n], want.Message.Buffers[n])
				}
			}
			if !same {
				t.Errorf("after %d: entry %d is %+v", after, i, e.At)
			}
		}
	}
	if err := f.Truncate(seg.size / 2); err != nil {
		t.Fatal(err)
	}
	err = seg.read(6, func(*Entry) action { return fillIn }, func(*Entry) {})
	if err == nil {
		t.Error("half a file reads like a whole one")
	}
}

// TestSpill_LostFile: entries that the disk does not give back are announced like evicted ones.
func TestSpill_LostFile(t *testing.T) {
	l := New(Options{Limit: 100 << 10, Dir: t.TempDir()})
	l.memory = 10 << 10
	defer l.Close()
	for n := range 60 {
		l.Append(0, numbered(n, 1000), false)
	}
	spillAll(t, l)
	if err := l.segments[0].file.Truncate(100); err != nil {
		t.Fatal(err)
	}
	s := uint64(1)
	seen, missing, at := 0, uint64(0), Position{}
	for at.Seq < 60 {
		got, now, lost := l.Read(at, s, 1<<20, nil)
		if now.Seq == at.Seq {
			t.Fatalf("stands at %d", now.Seq)
		}
		seen, missing, at = seen+len(got), missing+lost.Total(), now
	}
	if seen+int(missing) != 60 || missing == 0 || seen == 0 {
		t.Errorf("%d seen, %d missing", seen, missing)
	}
	wantCause(t, l, s, DiskFailed)
	lines, _ := l.Page(0, 1<<20, nil)
	if len(lines) != 1 || lines[0].Lost == 0 {
		t.Errorf("the log's reader sees %+v", lines)
	}
}

// smallDisk returns a folder on a file system of a bounded size, which the options of its mount give.
func smallDisk(t *testing.T, options string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("no file system of a bounded size: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestSpill_FullDisk: with a full disk only older output is lost, and the loss is announced. The disk is used again
// once it has room.
func TestSpill_FullDisk(t *testing.T) {
	dir := smallDisk(t, "size=3m")
	blocker := dir + "/blocker"
	if err := os.WriteFile(blocker, make([]byte, 3<<20), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	const limit = 4 << 20
	l := New(Options{Limit: limit, Dir: dir})
	l.memory = 100 << 10
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	announced := make(chan error, 10)
	wg.Go(func() { l.Spill(ctx, func(err error) { announced <- err }) })
	defer func() { cancel(); wg.Wait(); l.Close() }()
	n := 0
	fill := func() {
		for range 500 {
			l.Append(0, numbered(n, 1000), false)
			n++
		}
	}
	fill()
	select {
	case err := <-announced:
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("announced %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a full disk is not announced")
	}
	fill() // and it misses nothing
	s := uint64(1)
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
	if size, _ := l.Sizes(); size > limit {
		t.Errorf("%d bytes, the limit is %d", size, limit)
	}
}

// TestSpill_Announces: a failure of the disk is announced once. So is the first write after it.
func TestSpill_Announces(t *testing.T) {
	dir := t.TempDir()
	l := New(Options{Limit: 1 << 20, Dir: dir + "/none"})
	l.memory = 10 << 10
	l.retry = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	announced := make(chan error, 100)
	wg.Go(func() { l.Spill(ctx, func(err error) { announced <- err }) })
	defer func() { cancel(); wg.Wait(); l.Close() }()
	next := func() error {
		t.Helper()
		select {
		case err := <-announced:
			return err
		case <-time.After(time.Minute):
			t.Fatal("nothing is announced")
			return nil
		}
	}
	for n := range 100 {
		l.Append(0, numbered(n, 1000), false)
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
	if seen, lost := countRead(l, uint64(1)); seen != 100 || lost != 0 {
		t.Errorf("%d read and %d lost of 100", seen, lost)
	}
	if openFiles(t, dir+"/none") == 0 {
		t.Error("nothing was written")
	}
}

// TestSpill_KeepsWhatEndsACell: entries on disk are evicted, except for replies and idles, as entries in memory are.
func TestSpill_KeepsWhatEndsACell(t *testing.T) {
	t.Run("the disk keeps up", func(t *testing.T) { keepsWhatEndsACell(t, 0) })
	t.Run("appends are faster", func(t *testing.T) { keepsWhatEndsACell(t, 4000) })
}

// keepsWhatEndsACell stops all work on disk at the append numbered slowFrom, unless that is 0.
func keepsWhatEndsACell(t *testing.T, slowFrom int) {
	const limit = 8 << 20
	l := New(Options{Limit: limit, Dir: t.TempDir()})
	defer l.Close()
	s, other := uint64(1), uint64(2)
	l.Append(s, numbered(-1, 10), true)
	n := 1
	for l.gone.Seq < 2000 {
		l.Append(0, numbered(n, 1000), false)
		if n%1000 == 500 {
			l.Append(other, numbered(n, 1000), true)
		}
		n++
		if slowFrom == 0 || n < slowFrom {
			spillAll(t, l)
		}
	}
	got, _, lost := l.Read(Position{}, s, 1<<20, nil)
	if len(got) == 0 || number(t, &got[0].Message) != -1 || lost[LogFull] == 0 {
		t.Fatalf("the reply is gone: %d entries, %d lost", len(got), lost)
	}
	if seen, lost := countRead(l, s); seen+lost != n {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	if size, _ := l.Sizes(); size > limit {
		t.Errorf("%d bytes, the limit is %d", size, limit)
	}
}

func spillAll(t *testing.T, l *Log) {
	t.Helper()
	for more := true; more; {
		var err error
		if _, more, err = l.spillOnce(); err != nil {
			t.Fatal(err)
		}
	}
}

// countRead reads a log as a session does. It counts the entries that it got and the losses that were reported.
func countRead(l *Log, session uint64) (seen, missing int) {
	seen, lost := readAll(l, session)
	return seen, int(lost.Total())
}

// readAll is countRead with the causes of the losses.
func readAll(l *Log, session uint64) (seen int, lost Loss) {
	at := Position{}
	for {
		got, now, more := l.Read(at, session, 1<<20, nil)
		seen += len(got)
		for cause, n := range more {
			lost[cause] += n
		}
		if now == at {
			return seen, lost
		}
		at = now
	}
}

// wantCause checks that all losses that a session reads have the same cause, and that there are some.
func wantCause(t *testing.T, l *Log, session uint64, want Cause) {
	t.Helper()
	if _, lost := readAll(l, session); lost.Total() == 0 || lost[want] != lost.Total() {
		t.Errorf("lost by cause: %d, want only cause %d", lost, want)
	}
}

// TestSpill_Concurrently: appending, spilling, forgetting and reading at once.
func TestSpill_Concurrently(t *testing.T) {
	dir := t.TempDir()
	l := New(Options{Limit: 300 << 10, Dir: dir})
	l.memory = 50 << 10
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.Spill(ctx, func(err error) { t.Errorf("announced %v", err) }) })
	const total = 5000
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			s := uint64(i + 1)
			at, seen := Position{}, 0
			reader := NewReader()
			l.Subscribe(reader, s, framing.V1)
			defer l.Unsubscribe(reader, framing.V1)
			for at.Seq < total {
				got, now, lost := l.Read(at, s, int64(i)*10000, nil)
				seen += len(got) + int(lost.Total())
				for j, e := range got {
					if want := number(t, &e.Message); want != int(e.At.Seq)-1 {
						t.Errorf("entry %d of a batch says %d, its number is %d", j, want, e.At.Seq)
						return
					}
					l.Encode(e, framing.V1)
				}
				if now == at {
					<-reader.Wake
				}
				at = now
			}
			if seen != total {
				t.Errorf("%d seen or announced of %d", seen, total)
			}
		})
	}
	for n := range total {
		l.Append(0, numbered(n, 500), false)
	}
	readers.Wait()
	cancel()
	wg.Wait()
	l.Close()
	if n := openFiles(t, dir); n > 0 {
		t.Errorf("%d files are open at the end", n)
	}
}
