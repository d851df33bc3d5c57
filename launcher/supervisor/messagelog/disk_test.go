package messagelog

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

// TestDisk_Slow: while a disk takes nothing, the newest output is in memory, up to Options.Least. What was written
// before stays, and so do the ends of cells. The loss is announced with its size.
func TestDisk_Slow(t *testing.T) {
	const limit, least = 4 << 20, 256 << 10
	l := New(Options{Limit: limit, Dir: t.TempDir(), KeepFree: 1, Least: least})
	l.memory = 64 << 10
	defer l.Close()
	n := 0
	add := func(count int) {
		for range count {
			l.Append(0, numbered(n, 1000), n%1000 == 10)
			n++
		}
	}
	for range 10 {
		add(100)
		spillAll(t, l)
	}
	onDisk := int(l.segments[len(l.segments)-1].last.Seq)
	add(5000)
	if l.bytes > least {
		t.Errorf("%d bytes are in memory, at most %d are allowed", l.bytes, least)
	}
	seen, lost := 0, 0
	ends := 0
	for at := (Position{}); at.Seq < uint64(n); {
		got, now, missing := l.Read(at, 1, 1<<20, nil)
		for _, e := range got {
			if e.Essential {
				ends++
			}
			if want := number(t, &e.Message); want != int(e.At.Seq)-1 {
				t.Fatalf("entry %d says %d", e.At.Seq, want)
			}
		}
		seen, lost, at = seen+len(got), lost+int(missing.Total()), now
	}
	if seen+lost != n || lost == 0 || seen < onDisk || ends != 6 {
		t.Errorf("%d read, with %d ends of cells, and %d lost of %d; %d were on disk", seen, ends, lost, n, onDisk)
	}
	if got := l.Evicted(); got != int64(lost) {
		t.Errorf("%d count as evicted, and %d are lost", got, lost)
	}
	wantCause(t, l, 1, DiskSlow)
	spillAll(t, l) // the disk is back
	if again, missing := countRead(l, 1); again != seen || missing != lost {
		t.Errorf("on disk %d are read and %d lost", again, missing)
	}
}

// TestDisk_Failed: what is evicted while the disk fails or is full has that cause, and not that the disk was slow.
func TestDisk_Failed(t *testing.T) {
	dir := smallDisk(t, "size=16k")
	for _, c := range []struct {
		dir  string
		err  error
		want Cause
	}{{dir + "/none", os.ErrNotExist, DiskFailed}, {dir, syscall.ENOSPC, NoRoom}} {
		l := New(Options{Limit: 4 << 20, Dir: c.dir, KeepFree: 1, Least: 64 << 10})
		l.memory = 16 << 10
		for n := range 30 {
			l.Append(0, numbered(n, 1000), false)
		}
		wrote, _, err := l.spillOnce()
		if l.noteSpilled(wrote, err); !errors.Is(err, c.err) {
			t.Fatalf("got %v, want %v", err, c.err)
		}
		for n := range 100 {
			l.Append(0, numbered(30+n, 1000), false)
		}
		wantCause(t, l, 1, c.want)
		l.Close()
	}
}

// TestDisk_LargeMessages: a large message evicts nothing while the disk has had no time to take what is before it.
func TestDisk_LargeMessages(t *testing.T) {
	const limit, least = 16 << 20, 256 << 10
	open := func() *Log {
		l := New(Options{Limit: limit, Dir: t.TempDir(), KeepFree: 1, Least: least})
		l.memory = 64 << 10
		t.Cleanup(l.Close)
		return l
	}
	add := func(l *Log, count, size int) {
		for range count {
			l.Append(0, numbered(int(l.Tail().Seq), size), false)
		}
	}
	whole := func(l *Log, what string) {
		t.Helper()
		if got := l.Evicted(); got != 0 {
			t.Errorf("%s: %d entries were evicted", what, got)
		}
		spillAll(t, l)
		if seen, lost := countRead(l, 1); seen != int(l.Tail().Seq) || lost != 0 {
			t.Errorf("%s: %d read and %d lost of %d", what, seen, lost, l.Tail().Seq)
		}
	}

	l := open()
	l.Subscribe(NewReader(), 1, framing.V1)
	add(l, 60, 1000)
	add(l, 1, 3*least)
	add(l, 60, 1000)
	whole(l, "one message above what may wait, which a client has yet to read")

	l = open()
	l.Subscribe(NewReader(), 1, framing.V1)
	add(l, 20, 1000)
	add(l, 2, least*5/8)
	add(l, 20, 1000)
	whole(l, "two messages in a row")

	l = open()
	r := NewReader()
	l.Subscribe(r, 1, framing.V1)
	add(l, 1, 3*least)
	add(l, 20, 1000)
	if batch, _ := l.batchToSpill(); len(batch) == 0 || batch[0].At.Seq != 1 {
		t.Fatalf("%d entries are being written", len(batch))
	}
	r.Pass(l.Tail())
	l.Read(l.Tail(), 1, 1, nil)
	add(l, 100, 1000)
	whole(l, "while a message that clients have read is being written")
}

// TestDisk_WritesWhileDropping: entries that are being written to disk are not dropped meanwhile.
func TestDisk_WritesWhileDropping(t *testing.T) {
	l := New(Options{Limit: 4 << 20, Dir: t.TempDir(), KeepFree: 1, Least: 64 << 10})
	l.memory = 16 << 10
	defer l.Close()
	for n := range 30 {
		l.Append(0, numbered(n, 1000), false)
	}
	batch, _ := l.batchToSpill()
	for n := range 200 {
		l.Append(0, numbered(30+n, 1000), false)
	}
	for i, e := range batch {
		if l.entries[i] != e {
			t.Fatalf("entry %d of %d that are being written was dropped", i, len(batch))
		}
	}
	spillAll(t, l)
	if seen, lost := countRead(l, 1); seen+lost != 230 || lost == 0 {
		t.Errorf("%d read and %d lost of 230", seen, lost)
	}
}

// TestDisk_FollowsFreeSpace: a log gives room back when the disk has too little, but keeps what Options.Least allows.
func TestDisk_FollowsFreeSpace(t *testing.T) {
	const limit, least = 8 << 20, 1 << 20
	dir := t.TempDir()
	l := New(Options{Limit: limit, Dir: dir, KeepFree: 10, Least: least})
	l.memory = 128 << 10
	defer l.Close()
	room := int64(1 << 40) // without what the log takes
	l.room = func() (left, reserve int64, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return room - l.disk - l.unclosed, 0, nil
	}
	n := 0
	add := func(count int) {
		for range count {
			l.Append(0, numbered(n, 1000), false)
			if n++; n%100 == 0 {
				spillAll(t, l)
			}
		}
	}
	size := func() int64 { n, _ := l.Sizes(); return n }
	add(4000)
	full := size()
	if full < 4<<20 || openFiles(t, dir) == 0 {
		t.Fatalf("with room enough the log holds %d bytes", full)
	}
	room = l.disk - 2<<20 // others have filled the disk
	if l.lookAgain() == nil {
		t.Error("the log does not look at the disk again by itself")
	}
	spillAll(t, l)
	if got := size(); got > full-2<<20+128<<10 || got < full-4<<20 {
		t.Errorf("of %d bytes %d are left, though 2 MiB are wanted back", full, got)
	}
	room = -(1 << 40)
	spillAll(t, l)
	add(4000)
	if got := size(); got > least || got < least/2 {
		t.Errorf("with no room the log holds %d bytes, and %d are allowed", got, least)
	}
	if seen, lost := countRead(l, 1); seen+lost != n {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	wantCause(t, l, 1, NoRoom)
	room = 1 << 40
	add(4000)
	if got := size(); got < 4<<20 {
		t.Errorf("with room again the log holds %d bytes", got)
	}
	l.room = func() (left, reserve int64, err error) { return 0, 0, errors.New("no such system call") }
	add(200)
	if got := size(); got < 4<<20 {
		t.Errorf("if the disk says nothing the log holds %d bytes", got)
	}
}

// TestDisk_ManyLogs: logs on one disk that has too little room give back about as much as is missing, although the disk
// shows what was freed later. If the disk is nearly full, they give back at once.
func TestDisk_ManyLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, missing, delay = 8 << 20, 8 << 20, 500 * time.Millisecond
		dir := t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		var logs []*Log
		held := func() (sum int64) {
			for _, l := range logs {
				l.mu.Lock()
				sum += l.disk + l.unclosed
				l.mu.Unlock()
			}
			return sum
		}
		var mu sync.Mutex
		type sample struct {
			at   time.Time
			held int64
		}
		var seen []sample
		short, reserve := int64(0), int64(1<<30)
		measure := func() (int64, int64, error) {
			sum := held()
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, sample{time.Now(), sum})
			for len(seen) > 1 && time.Since(seen[1].at) >= delay {
				seen = seen[1:]
			}
			return -short - seen[0].held, reserve, nil
		}
		var spilling sync.WaitGroup
		for range 10 {
			l := New(Options{Limit: limit, Dir: dir, KeepFree: 5, Least: 1 << 20})
			l.memory = 64 << 10
			logs = append(logs, l)
			for n := range 4000 {
				l.Append(0, numbered(n, 1000), false)
				if n%100 == 0 {
					spillAll(t, l)
				}
			}
		}
		full := held()
		short = missing - full
		for _, l := range logs {
			l.room = measure
			goroutines.Wake(l.full)
			spilling.Go(func() { l.Spill(ctx, func(error) {}) })
		}
		time.Sleep(20 * time.Second)
		freed := full - held()
		if freed < missing || freed > 2*missing {
			t.Errorf("%d bytes were freed, and %d were missing", freed, missing)
		}
		mu.Lock()
		short, reserve, seen = full, 4*missing, nil
		mu.Unlock()
		for _, l := range logs {
			goroutines.Wake(l.full)
		}
		synctest.Wait()
		if left := held(); left > 10<<20 {
			t.Errorf("on a disk that is nearly full %d bytes are left", left)
		}
		cancel()
		spilling.Wait()
		for _, l := range logs {
			l.Close()
		}
	})
}

// TestDisk_Quota: a disk that takes no more, although it seems to have room, costs the oldest output.
func TestDisk_Quota(t *testing.T) {
	for name, mount := range map[string]string{"of bytes": "size=3m", "of files": "size=64m,nr_inodes=6"} {
		t.Run(name, func(t *testing.T) { testQuota(t, mount) })
	}
}

func testQuota(t *testing.T, mount string) {
	dir := smallDisk(t, mount)
	l := New(Options{Limit: 16 << 20, Dir: dir, KeepFree: 1, Least: 1 << 20})
	l.memory = 128 << 10
	l.room = func() (left, reserve int64, err error) { return 1 << 40, 0, nil }
	defer l.Close()
	n := 0
	for range 100 {
		for range 100 {
			l.Append(0, numbered(n, 1000), false)
			n++
		}
		spillAll(t, l)
	}
	seen, lost := countRead(l, 1)
	if seen+lost != n || seen < 1000 || lost == 0 {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	if l.gone.Seq != uint64(lost) {
		t.Errorf("%d are lost, and not the oldest %d", lost, l.gone.Seq)
	}
	wantCause(t, l, 1, NoRoom)
}

// TestDisk_Room: the share that stays free counts as no room.
func TestDisk_Room(t *testing.T) {
	all, reserve, err := room(t.TempDir(), 0)
	if err != nil || all <= 0 || reserve != 0 {
		t.Fatalf("%d, %d, %v", all, reserve, err)
	}
	if none, reserve, err := room(t.TempDir(), 100); err != nil || none > 0 || reserve < all {
		t.Errorf("with all of the disk kept free there is room for %d bytes, %d are reserved, %v", none, reserve, err)
	}
	if _, _, err := room("/no/such/folder", 5); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestSegment_Marks: a segment of a larger log has no more marks, and is read as well from any place.
func TestSegment_Marks(t *testing.T) {
	for limit, most := range map[int64]int{64 << 20: 17, 4 << 30: 5, 64 << 30: 1} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		seg := segment{file: f, every: limit / maxMarks}
		for n := range 1000 {
			view, err := seg.write([]*Entry{{At: Position{uint64(n + 1), uint64(n + 1)}, Message: numbered(n, 700)}})
			if err != nil {
				t.Fatal(err)
			}
			seg.size, seg.last, seg.marks, seg.count = view.size, view.last, view.marks, view.count
		}
		if len(seg.marks) > most || seg.count != 1000 {
			t.Errorf("limit %d: %d marks in %d bytes of %d entries", limit, len(seg.marks), seg.size, seg.count)
		}
		for after := uint64(0); after < 1000; after += 99 {
			var first *Entry
			err := seg.read(after, func(*Entry) action {
				if first != nil {
					return stopHere
				}
				return fillIn
			}, func(e *Entry) { first = e })
			if err != nil || first.At.Seq != after+1 {
				t.Errorf("limit %d: behind %d comes %+v, %v", limit, after, first, err)
			}
		}
	}
	if n := (int64(1) << 40) / segmentSize(1<<40); n > maxParts {
		t.Errorf("a log of 1 TiB has %d files", n)
	}
}
