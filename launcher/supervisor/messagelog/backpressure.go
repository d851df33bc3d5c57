package messagelog

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/wake"
)

// diskPatience is how long one message waits for the disk, at most. A disk that does not take it in that time is not
// waited for again until it has caught up.
const diskPatience = 5 * time.Second

// AwaitDisk waits before a message of so many bytes is appended, as long as the append would evict what the disk has
// yet to take. It does not wait while a client is connected, which would get its output late, nor for a disk that fails
// or is too slow. It ends with ctx. One goroutine may wait at a time. No lock that an append needs may be held.
func (l *Log) AwaitDisk(ctx context.Context, bytes int) {
	for {
		l.mu.Lock()
		patience := l.patienceLocked(int64(bytes) + entryOverhead)
		l.mu.Unlock()
		if patience <= 0 {
			return
		}
		timer := time.NewTimer(patience)
		select {
		case <-ctx.Done():
		case <-l.spilled:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// patienceLocked returns how long an append of size bytes may still wait for the disk; 0: it need not or must not wait.
// While it waits, all that stands in its way moves to disk, the newest entry too.
func (l *Log) patienceLocked(size int64) time.Duration {
	l.wanted = 0
	if l.bytes <= l.least/2 {
		l.patienceEnd = time.Time{} // the disk has caught up
	}
	if l.keepFree == 0 || l.failing || l.bytes == 0 || l.bytes+size <= l.least || l.hasClientsLocked() {
		return 0
	}
	if l.patienceEnd.IsZero() {
		l.patienceEnd = time.Now().Add(diskPatience)
	}
	left := time.Until(l.patienceEnd)
	if left > 0 {
		l.wanted = size
		wake.Reader(l.full)
	}
	return left
}

// hasClientsLocked reports whether a session reads the log.
func (l *Log) hasClientsLocked() bool {
	for _, session := range l.readers {
		if session != 0 {
			return true
		}
	}
	return false
}

// inMemoryLocked returns how many bytes of entries stay in memory once the disk has taken the others.
func (l *Log) inMemoryLocked() int64 {
	if l.wanted > 0 {
		return max(0, min(l.memory, l.least-l.wanted))
	}
	return l.memory
}
