package messagelog

import (
	"errors"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

// dropShare says how much is dropped at once when the disk is too slow: 1/dropShare of what may be in memory.
const dropShare = 8

// room returns how many bytes may be written to a folder's file system until less than keepFree percent of it is free.
// It is negative if less is free already. reserve is how many bytes keepFree percent are.
func room(dir string, keepFree int) (left, reserve int64, err error) {
	space, err := files.SpaceOf(dir)
	if err != nil {
		return 0, 0, err
	}
	reserve = space.Size / 100 * int64(keepFree)
	return space.Free - reserve, reserve, nil
}

// Other logs on the same disk see the same lack of room. So a log gives one segment back, and looks later whether there
// is still too little room. Some file systems show what was freed after seconds.
const (
	givePause  = time.Second // the mean time between two segments, with a jitter of half of it
	urgentPart = 4           // if 1/urgentPart of what must stay free is in use, segments are given back at once
)

// measureDisk derives from the free space how much the log may hold.
func (l *Log) measureDisk() {
	if l.keepFree == 0 {
		return
	}
	left, reserve, err := l.room()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.diskBound = math.MaxInt64 // after an error the next write returns one that says more
	if err == nil {
		l.diskBound = max(l.least, l.memory+l.disk+l.unclosed+left)
	}
	l.diskUrgent = left < -reserve/urgentPart
	switch {
	case !l.exceedsLocked(l.diskBound):
		l.nextGiven = time.Time{}
	case l.nextGiven.IsZero():
		l.nextGiven, l.diskMost = time.Now().Add(rand.N(givePause)), l.disk
	}
}

// exceedsLocked reports whether the log exceeds a bound, less what is kept free for appends.
func (l *Log) exceedsLocked(bound int64) bool {
	return l.bytes+l.keptBytes+l.disk > bound-min(bound/spillSlack, slackMost)
}

// mayGiveLocked reports whether a segment may be evicted now because the disk has too little room. What is written
// meanwhile is made up for at once.
func (l *Log) mayGiveLocked() bool {
	return l.diskUrgent || l.disk > l.diskMost || !time.Now().Before(l.nextGiven)
}

// givenLocked notes that a segment is about to be evicted because the disk has too little room.
func (l *Log) givenLocked(seg *segment) {
	if now := time.Now(); !now.Before(l.nextGiven) {
		l.nextGiven = now.Add(givePause/2 + rand.N(givePause))
		l.diskMost = min(l.diskMost, l.disk-seg.size)
	}
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
	l.failedFor = DiskFailed
	if full {
		l.failedFor = NoRoom
	}
	if !full || !l.canShrinkLocked() {
		l.mu.Unlock()
		return false, false, err
	}
	oldest := l.segments[0]
	oldest.users++
	view := *oldest
	l.mu.Unlock()
	l.retire(oldest, view, NoRoom)
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
	if !l.nextGiven.IsZero() {
		return time.After(time.Until(l.nextGiven))
	}
	return time.After(l.retry)
}

// dropLocked evicts the oldest entries in memory that are not being written, when the disk is too slow to take them or
// takes none. What is on disk stays. Essential entries stay too, large ones in short, as far as their share of memory
// goes. An entry that readers await, or that is being written, counts above the bound: dropping others would not make
// up for it.
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
	share := l.least / keptShare
	var essential int64
	for _, e := range list {
		if e.Essential {
			essential += min(e.size, l.shortMost(share))
		}
	}
	stay, i := 0, 0
	for ; i < len(list) && l.bytes > bound-l.least/dropShare; i++ {
		e := list[i]
		l.bytes -= e.size
		if e.Essential {
			short := l.shortened(e, share)
			if short != nil && essential <= share {
				list[stay] = short
				l.bytes += short.size
				stay++
				continue
			}
			essential -= min(e.size, l.shortMost(share))
		}
		l.evicted++
		l.droppedFor = DiskSlow
		if l.failing {
			l.droppedFor = l.failedFor
		}
	}
	rest := append(l.entries[:l.writing+stay], l.entries[l.writing+i:]...)
	clear(l.entries[len(rest):])
	l.entries = rest
}
