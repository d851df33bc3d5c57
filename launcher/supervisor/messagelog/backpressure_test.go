package messagelog

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

// TestAwaitDisk_Large: without clients, large messages and what is before them are not evicted if the disk can take
// them. Memory stays within its bound, but for one large message.
func TestAwaitDisk_Large(t *testing.T) {
	const least = 256 << 10
	l := New(Options{Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
	l.memory = 64 << 10
	l.room = func() (left, reserve int64, err error) { return 1 << 40, 0, nil }
	ctx, cancel := context.WithCancel(t.Context())
	var spilling sync.WaitGroup
	spilling.Go(func() { l.Spill(ctx, func(err error) { t.Error(err) }) })
	n := 0
	add := func(count, size int) {
		for range count {
			m := numbered(n, size)
			l.AwaitDisk(ctx, m.Size())
			l.Append(0, m, false)
			if got := l.InMemory(); got > max(least, int64(m.Size())+entryOverhead) {
				t.Fatalf("%d bytes are in memory after one of %d", got, size)
			}
			n++
		}
	}
	for range 5 {
		add(200, 1000)
		add(2, 3*least)
		add(3, least*5/8)
	}
	cancel()
	spilling.Wait()
	if seen, lost := countRead(l, 1); seen != n || lost != 0 {
		t.Errorf("%d read and %d lost of %d", seen, lost, n)
	}
	l.Close()
}

// TestAwaitDisk_Clients: while a client is connected, a large message waits for what this client has yet to read.
func TestAwaitDisk_Clients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const least = 256 << 10
		l := New(Options{Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
		defer l.Close()
		wait := func(size int, want time.Duration) {
			t.Helper()
			begun := time.Now()
			l.AwaitDisk(t.Context(), size)
			if took := time.Since(begun); took != want {
				t.Errorf("it waited %v, want %v", took, want)
			}
		}
		r := NewReader()
		l.Subscribe(r, 1, framing.V1)
		l.Append(0, numbered(0, least*9/10), false)
		wait(waitFrom/2, 0)
		r.Pass(l.Tail())
		wait(least, 0)
		l.Append(0, numbered(1, 100), false)
		wait(least, 0) // the entry that would be evicted has been read
		late := NewReader()
		l.Subscribe(late, 2, framing.V1)
		ctx, cancel := context.WithCancel(t.Context())
		var spilling sync.WaitGroup
		time.AfterFunc(clientPatience/2, func() {
			spilling.Go(func() { l.Spill(ctx, func(err error) { t.Error(err) }) })
		})
		wait(least, clientPatience/2)
		cancel()
		spilling.Wait()
		l.Append(0, numbered(2, least*9/10), false)
		wait(least, clientPatience)
		wait(least, 0) // the disk has not caught up
	})
}

// TestAwaitDisk_ClientReadsOn: while the slowest client reads on, each large message waits again, though the disk does
// not catch up. So a client that reads misses nothing. No message waits longer than the disk's patience.
func TestAwaitDisk_ClientReadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const least = 256 << 10
		l := New(Options{Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
		l.memory = 16 << 10
		defer l.Close()
		add := func(count int) {
			for n := range count {
				l.Append(0, numbered(n, 10_000), false)
			}
		}
		add(50)
		spillAll(t, l)
		add(20) // the disk takes none of these
		slow, fast := NewReader(), NewReader()
		l.Subscribe(slow, 1, framing.V1)
		l.Subscribe(fast, 2, framing.V1)
		pass := func(r *Reader, seq uint64) { r.Pass(Position{Seq: seq}) }
		wait := func(want time.Duration) {
			t.Helper()
			begun := time.Now()
			l.AwaitDisk(t.Context(), least)
			if took := time.Since(begun); took != want {
				t.Errorf("it waited %v, want %v", took, want)
			}
		}
		time.AfterFunc(clientPatience/2, func() { pass(fast, 40) })
		wait(clientPatience)
		wait(0) // the slow one has not read
		for n := range uint64(3) {
			pass(slow, 1+n)
			wait(clientPatience)
		}
		pass(slow, 9)
		for n := range time.Duration(8) {
			time.AfterFunc((n+1)*clientPatience/4, func() { pass(slow, 10+uint64(n)) })
		}
		wait(diskPatience)
	})
}

// TestAwaitDisk_ClientCatchesUp: the wait ends as soon as the clients that were behind have read what would be evicted,
// or have left.
func TestAwaitDisk_ClientCatchesUp(t *testing.T) {
	for name, ease := range map[string]func(l *Log, r *Reader){
		"it reads":  func(l *Log, r *Reader) { r.Pass(l.Tail()) },
		"it leaves": func(l *Log, r *Reader) { l.Unsubscribe(r, framing.V1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const least = 256 << 10
				l := New(Options{Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
				defer l.Close()
				first, second, reads := NewReader(), NewReader(), NewReader()
				l.Subscribe(first, 1, framing.V1)
				l.Subscribe(second, 2, framing.V1)
				l.Subscribe(reads, 3, framing.V1)
				l.Append(0, numbered(0, least*9/10), false)
				reads.Pass(l.Tail())
				time.AfterFunc(clientPatience/4, func() { ease(l, first) })
				time.AfterFunc(clientPatience/2, func() { ease(l, second) })
				begun := time.Now()
				l.AwaitDisk(t.Context(), least)
				if took := time.Since(begun); took != clientPatience/2 {
					t.Errorf("it waited %v, want %v", took, clientPatience/2)
				}
				if l.Waits() {
					t.Error("it still waits")
				}
			})
		})
	}
}

// TestAwaitDisk_Bounded: a disk that takes nothing, or fails, costs one wait, and no client waits for a small message.
func TestAwaitDisk_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const least = 64 << 10
		l := New(Options{Limit: 64 << 20, Dir: t.TempDir(), KeepFree: 1, Least: least})
		defer l.Close()
		wait := func(ctx context.Context, want time.Duration) {
			t.Helper()
			begun := time.Now()
			l.AwaitDisk(ctx, least)
			if took := time.Since(begun); took != want {
				t.Errorf("it waited %v, want %v", took, want)
			}
		}
		wait(t.Context(), 0) // the log is empty
		l.Append(0, numbered(0, least/2), false)
		r := NewReader()
		l.Subscribe(r, 1, framing.V1)
		r.Pass(l.Tail())
		wait(t.Context(), 0)
		l.Unsubscribe(r, framing.V1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wait(ctx, time.Second)
		wait(t.Context(), diskPatience-time.Second)
		wait(t.Context(), 0)
		l.wanted = least
		spillAll(t, l)
		wait(t.Context(), 0) // the disk has caught up
		l.Append(0, numbered(1, least*2/3), false)
		time.AfterFunc(time.Second, func() { l.noteSpilled(false, context.DeadlineExceeded) })
		wait(t.Context(), time.Second)
		wait(t.Context(), 0)
	})
}
