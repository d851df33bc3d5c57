package messagelog

import (
	"errors"
	"math"
	"syscall"
	"time"
)

// dropShare says how much is dropped at once when the disk is too slow: 1/dropShare of what may be in memory.
const dropShare = 8

// room returns how many bytes may be written to a folder's file system until less than keepFree percent of it is free.
// It is negative if less is free already.
func room(dir string, keepFree int) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	size := uint64(st.Bsize)
	free, all := st.Bavail*size, st.Blocks*size
	return int64(free) - int64(all/100*uint64(keepFree)), nil
}

// measureDisk derives from the free space how much the log may hold.
func (l *Log) measureDisk() {
	if l.keepFree == 0 {
		return
	}
	room, err := l.room()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.diskBound = math.MaxInt64 // the next write returns an error that says more
		return
	}
	l.diskBound = max(l.least, l.memory+l.disk+l.unclosed+room)
}

// writeFailed ends a write that has failed. seg is nil if there could be no new segment. If the disk is full, though it
// said that there is room, a quota may be the cause. Then the oldest segment is evicted, and there is more to do.
func (l *Log) writeFailed(seg *segment, err error) (wrote, more bool, _ error) {
	l.mu.Lock()
	l.writing = 0
	if seg != nil {
		l.releaseLocked(seg)
	}
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if !full || !l.canShrinkLocked() {
		l.mu.Unlock()
		return false, false, err
	}
	oldest := l.segments[0]
	oldest.users++
	view := *oldest
	l.mu.Unlock()
	l.retire(oldest, view)
	return false, true, nil
}

// canShrinkLocked reports whether the log may give room on the disk back.
func (l *Log) canShrinkLocked() bool {
	return l.keepFree > 0 && len(l.segments) > 0 && l.bytes+l.keptBytes+l.disk > l.least
}

// lookAgain returns a channel that is ready when the free space is to be measured again. It is nil if the log has no
// part on disk that could be made smaller.
func (l *Log) lookAgain() <-chan time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.canShrinkLocked() {
		return nil
	}
	return time.After(l.retry)
}

// dropLocked evicts the oldest entries in memory that are not being written, when the disk is too slow to take them or
// takes none. What is on disk stays. Essential entries stay too, as far as their share of the memory goes. An entry
// that readers await, or that is being written, counts above the bound: dropping others would not make up for it.
func (l *Log) dropLocked() {
	if l.keepFree == 0 || l.bytes <= l.least {
		return
	}
	bound := l.least + l.awaitedLocked()
	if first := l.entries[0]; l.writing > 0 && (first.At.Seq != l.awaited.seq || l.awaitedLocked() == 0) {
		bound += first.size
	}
	if l.bytes <= bound {
		return
	}
	list := l.entries[l.writing : len(l.entries)-1]
	var essential int64
	for _, e := range list {
		if e.Essential {
			essential += e.size
		}
	}
	stay, i := 0, 0
	for ; i < len(list) && l.bytes > bound-l.least/dropShare; i++ {
		e := list[i]
		if e.Essential && essential <= l.least/keptShare {
			list[stay] = e
			stay++
			continue
		}
		if e.Essential {
			essential -= e.size
		}
		l.bytes -= e.size
		l.evicted++
	}
	rest := append(l.entries[:l.writing+stay], l.entries[l.writing+i:]...)
	clear(l.entries[len(rest):])
	l.entries = rest
}
