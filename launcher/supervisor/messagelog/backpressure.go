package messagelog

import (
	"context"
	"math"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// A message waits for the disk no longer than its patience. A disk that does not take it in that time is not waited for
// again until it has caught up, or until the slowest connected client has read on. A supervisor takes a pause of 2 s in
// a kernel's output for a loss, so both are shorter.
const (
	diskPatience   = 1500 * time.Millisecond
	clientPatience = time.Second // while a client is connected, which gets its output late
)

// waitFrom is the size of the smallest message that waits for the disk while a client is connected. A kernel's sockets
// count messages and not bytes, so large ones can wait there without loss.
const waitFrom = 64 << 10

// AwaitDisk waits before a message of so many bytes is appended, as long as the append would evict what the disk has
// yet to take. While a client is connected, only large messages wait, until all clients have read what would go. No
// message waits for a disk that fails. The wait ends with ctx. One goroutine may wait at a time. No lock that an append
// needs may be held.
func (l *Log) AwaitDisk(ctx context.Context, bytes int) {
	latest := time.Now().Add(diskPatience)
	for {
		l.mu.Lock()
		patience := l.patienceLocked(int64(bytes)+entryOverhead, latest)
		l.mu.Unlock()
		if patience <= 0 {
			return
		}
		timer := time.NewTimer(patience)
		select {
		case <-ctx.Done():
		case <-l.eased:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			l.mu.Lock()
			l.wanted = 0
			l.mu.Unlock()
			return
		}
	}
}

// Waits reports whether a message waits in AwaitDisk.
func (l *Log) Waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted > 0
}

// patienceLocked returns how long an append of size bytes may still wait for the disk; 0: it need not or must not wait.
// It never waits after latest. While it waits, all that stands in its way moves to disk, the newest entry too.
func (l *Log) patienceLocked(size int64, latest time.Time) time.Duration {
	l.wanted = 0
	if l.bytes <= l.least/2 {
		l.patienceEnd = time.Time{} // the disk has caught up
	}
	if l.keepFree == 0 || l.failing || l.bytes == 0 || l.bytes+size <= l.least {
		return 0
	}
	patience := diskPatience
	if connected, behind, slowest := l.clientsLocked(); connected {
		if size < waitFrom || !behind {
			return 0
		}
		patience = clientPatience
		if slowest > l.slowest {
			l.patienceEnd = time.Time{}
		}
		l.slowest = slowest // less than before if a client has come
	}
	if l.patienceEnd.IsZero() {
		l.patienceEnd = time.Now().Add(patience)
	}
	left := min(time.Until(l.patienceEnd), time.Until(latest))
	if left > 0 {
		l.wanted = size
		goroutines.Wake(l.full)
	}
	return left
}

// clientsLocked reports whether a session reads the log, and whether one has yet to read the entry that would be
// evicted first: the oldest that is not being written. slowest is the number up to which all of them have read.
func (l *Log) clientsLocked() (connected, behind bool, slowest uint64) {
	slowest = math.MaxUint64
	for r, session := range l.readers {
		if session == 0 {
			continue
		}
		connected = true
		slowest = min(slowest, r.passed.Load())
	}
	behind = connected && l.writing < len(l.entries) && slowest < l.entries[l.writing].At.Seq
	return connected, behind, slowest
}

// inMemoryLocked returns how many bytes of entries stay in memory once the disk has taken the others.
func (l *Log) inMemoryLocked() int64 {
	if l.wanted > 0 {
		return max(0, min(l.memory, l.least-l.wanted))
	}
	return l.memory
}
