package messagelog

import (
	"context"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// A log keeps its newest part in memory. The rest moves to disk, oldest first, in segments. A segment is a file that no
// other program can open, since it is unlinked at once. It vanishes with the process, however that ends. A segment is
// the unit of eviction. One goroutine (Spill) creates, writes and closes segments. It does not hold the log's lock
// meanwhile, since a disk that hangs must not delay a kernel. Readers read concurrently.
const (
	// MemoryMost is how many bytes of a log stay in memory, if its limit allows more than that and it has a folder.
	MemoryMost = 16 << 20

	memoryLeast = 1 << 20          // a log with a limit below that is all in memory
	memoryShare = 4                // otherwise 1/memoryShare of the limit is memory
	spillParts  = 16               // segments of a full log, if that is small
	segmentMost = 4 << 20          // bytes of a segment, unless there were more than maxParts then
	maxParts    = 256              // segments of a full log, each of which is an open file
	maxMarks    = 16 << 10         // marks of a full log, so that memory does not grow with the limit
	spillSlack  = 8                // 1/spillSlack of the bound is kept free for appends while a segment is evicted
	slackMost   = 64 << 20         // but not more bytes than that
	spillBatch  = 1 << 20          // bytes that are written at a time, or one entry
	spillRetry  = 30 * time.Second // after which a full disk is tried again
)

// memoryOf returns how many bytes of a log with this limit stay in memory.
func memoryOf(limit int64) int64 {
	return min(limit, max(memoryLeast, min(limit/memoryShare, MemoryMost)))
}

// Spill keeps memory and disk within their bounds until ctx ends. It calls announce with the error when the disk fails,
// and with nil when something was written again. In between the log is in memory, up to its limit or Options.Least. A
// log without a folder needs no Spill.
func (l *Log) Spill(ctx context.Context, announce func(error)) {
	failed := false
	var retry <-chan time.Time // set while a failed disk is not used
	for {
		full, look := l.full, l.lookAgain()
		if retry != nil {
			full, look = nil, nil
		}
		select {
		case <-ctx.Done():
			return
		case <-full:
		case <-look:
		case <-retry:
			retry = nil
		}
		for more := true; more && retry == nil && ctx.Err() == nil; {
			var wrote bool
			var err error
			wrote, more, err = l.spillOnce()
			l.noteSpilled(wrote, err)
			switch {
			case err != nil:
				retry = time.After(l.retry)
				if !failed {
					failed = true
					announce(err)
				}
			case wrote && failed:
				failed = false
				announce(nil)
			}
		}
	}
}

// noteSpilled wakes the message that waits for the disk.
func (l *Log) noteSpilled(wrote bool, err error) {
	l.mu.Lock()
	if wrote || err != nil {
		l.failing = err != nil
	}
	l.mu.Unlock()
	goroutines.Wake(l.eased)
}

// segmentSize returns how large a segment of a log with this limit becomes.
func segmentSize(limit int64) int64 {
	return max(min(limit/spillParts, segmentMost), limit/maxParts)
}

// spillOnce does one piece of work: it evicts a segment, or writes a batch. It reports whether it wrote, and whether
// there is more to do.
func (l *Log) spillOnce() (wrote, more bool, err error) {
	l.closeFiles()
	l.measureDisk()
	if seg, view, why := l.segmentToEvict(); seg != nil {
		l.retire(seg, view, why)
		return false, true, nil
	}
	batch, seg := l.batchToSpill()
	if len(batch) == 0 {
		return false, false, nil
	}
	fresh := seg == nil
	if fresh {
		if seg, err = newSegment(l.dir); err != nil {
			return l.writeFailed(nil, err)
		}
		_, limit := l.Sizes()
		seg.every = limit / maxMarks
	}
	written, err := seg.write(batch)
	if err != nil {
		return l.writeFailed(seg, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = 0
	l.takeLocked(batch, seg, fresh, written)
	return true, l.bytes > l.inMemoryLocked() || l.crowdedLocked(), nil
}

// newSegment creates a file that no one else can open.
func newSegment(dir string) (*segment, error) {
	f, err := os.CreateTemp(dir, ".log-*") // of mode 0600
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close() //nolint:errcheck // the first error is the one that matters
		return nil, err
	}
	return &segment{file: f, users: 1}, nil
}

// crowdedLocked reports whether the oldest segment should be evicted before an append has to evict it. Its essential
// entries are read from the disk first, which takes too long for an append.
func (l *Log) crowdedLocked() bool {
	return len(l.segments) > 0 &&
		(l.exceedsLocked(l.boundLocked()) || l.exceedsLocked(l.diskBound) && l.mayGiveLocked())
}

// segmentToEvict returns the oldest segment, its present content and why it is evicted, or nil if it may stay. The
// caller releases it.
func (l *Log) segmentToEvict() (seg *segment, view segment, why Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.crowdedLocked() {
		return nil, segment{}, 0
	}
	seg = l.segments[0]
	seg.users++
	if !l.exceedsLocked(l.boundLocked()) {
		l.givenLocked(seg)
		why = NoRoom
	}
	return seg, *seg, why
}

// batchToSpill returns the oldest entries in memory if there are too many, and the newest segment if it has room; nil
// asks for a new one. The caller releases it.
func (l *Log) batchToSpill() (batch []*Entry, seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	list, stays := l.entries, l.inMemoryLocked()
	if l.wanted == 0 {
		list = list[:max(0, len(list)-1)]
	}
	for _, e := range list {
		if l.bytes-n <= stays || len(batch) > 0 && n+e.size > spillBatch {
			break
		}
		batch = append(batch, e)
		n += e.size
	}
	l.writing = len(batch)
	if i := len(l.segments) - 1; len(batch) > 0 && i >= 0 && l.segments[i].size < segmentSize(l.limit) {
		seg = l.segments[i]
		seg.users++
	}
	return batch, seg
}

// takeLocked removes a written batch from memory, unless it was evicted meanwhile.
func (l *Log) takeLocked(batch []*Entry, seg *segment, fresh bool, written segment) {
	defer l.releaseLocked(seg)
	if l.entries[0] != batch[0] || !fresh && !slices.Contains(l.segments, seg) {
		return
	}
	l.disk += written.size - seg.size
	seg.size, seg.last, seg.marks, seg.count = written.size, written.last, written.marks, written.count
	if fresh {
		seg.users++
		l.segments = append(l.segments, seg)
	}
	for i, e := range batch {
		l.entries[i] = nil
		l.bytes -= e.size
		if e.Essential {
			if e = l.shortened(e, l.memory/keptShare); e == nil {
				continue
			}
			e = e.alone()
			seg.essential = append(seg.essential, e)
			l.essentialBytes += e.size
		}
	}
	l.entries = l.entries[len(batch):]
	for _, s := range l.segments {
		if l.essentialBytes <= l.memory/keptShare {
			break
		}
		l.forgetEssentialLocked(s)
	}
	l.evictLocked()
}

// evictSegmentLocked evicts the oldest segment, except for the essential entries that are in memory too. It reports
// false if there is no segment.
func (l *Log) evictSegmentLocked(why Cause) bool {
	if len(l.segments) == 0 {
		return false
	}
	seg := l.segments[0]
	l.segments[0] = nil
	l.segments = l.segments[1:]
	l.disk -= seg.size
	l.unclosed += seg.size
	l.gone, l.goneFor = seg.last, why
	l.evicted += seg.count
	essential := seg.essential
	l.forgetEssentialLocked(seg)
	for _, e := range essential {
		l.keepLocked(e)
	}
	l.releaseLocked(seg)
	return true
}

// Close closes the log's files. The log must not be read afterwards, and Spill must have returned.
func (l *Log) Close() {
	l.mu.Lock()
	for l.evictSegmentLocked(LogFull) {
	}
	l.mu.Unlock()
	l.closeFiles()
}

// releaseLocked ends one use of a segment. The goroutine that writes closes its file, since that may take long.
func (l *Log) releaseLocked(seg *segment) {
	if seg.users--; seg.users == 0 {
		l.unused = append(l.unused, seg)
		goroutines.Wake(l.full)
	}
}

func (l *Log) closeFiles() {
	l.mu.Lock()
	unused := l.unused
	l.unused = nil
	l.mu.Unlock()
	for _, seg := range unused {
		seg.file.Close() //nolint:errcheck // the file is unlinked and its content no longer needed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seg := range unused {
		l.unclosed -= seg.size
	}
}

// segmentWithLocked returns the segment that has the entry numbered seq, and its present content, or nil if no segment
// has the entry. The caller releases it.
func (l *Log) segmentWithLocked(seq uint64) (seg *segment, now segment) {
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].last.Seq >= seq })
	if i == len(l.segments) {
		return nil, segment{}
	}
	seg = l.segments[i]
	seg.users++
	return seg, *seg
}
