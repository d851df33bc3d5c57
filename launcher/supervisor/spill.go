package supervisor

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// A log keeps its newest part in memory. What does not fit there moves to disk, oldest first, in segments: files that
// nobody else can open, since they are unlinked at once, and that vanish with the supervisor, however it ends. A segment
// is the unit in which the log forgets. One goroutine (spill) makes, writes and closes them and never holds the log's lock
// meanwhile: a disk that hangs must not hold up a kernel. Readers read beside it.
//
// A record, in little endian:
//
//	0      u32  bytes of the lengths and of the cell id that follow the fixed part
//	4      u64  bytes of the rest: the message's parts
//	12     u64  seq, 20 u64 out: the position
//	28     u64  number of the session that it is for, 0 for everyone
//	36     i64  time, in Unix nanoseconds, 44 u64 epoch
//	52     u8   channel, 53 u8 1 if it is essential
//	54     u16  bytes of the cell id, which comes next
//	56     cell id; u64 lengths of header, parent_header, metadata, content and of each buffer; then these
const (
	recordFixed = 56
	memoryMost  = 16 << 20         // bytes of a log that stay in memory, if its limit allows more than that
	memoryLeast = 1 << 20          // a log with a limit below that is all in memory
	memoryShare = 4                // in between it is this part of the limit
	spillParts  = 16               // segments in which a full log lies on disk
	spillSlack  = 8                // part of the limit that is kept free, for what comes while a segment is forgotten
	spillBatch  = 1 << 20          // bytes that are written at a time, or one entry
	spillBuffer = 64 << 10         // bytes of one write
	markEvery   = 64 << 10         // bytes of a segment between two places at which reading can begin
	spillAgain  = 30 * time.Second // after which a disk that was full is tried again
)

// memoryOf is how much of a log of a limit is held in memory, in bytes.
func memoryOf(limit int64) int64 {
	return min(limit, max(memoryLeast, min(limit/memoryShare, memoryMost)))
}

// segment is a part of the log on disk. Its records do not change; more may be written behind them.
type segment struct {
	file  *os.File
	last  position // of its newest
	size  int64    // bytes
	marks []mark
	users int // the log, who writes, and readers; the file is closed when there are none

	// Its essential entries, in memory too: an append that has to make room cannot wait for the disk to give them back. All
	// segments together have at most the keptShare of memory; the oldest are left to the disk first.
	essential []*entry
}

// mark is where a record begins.
type mark struct {
	seq    uint64
	offset int64
}

// spillTo has a log keep what does not fit memory in files in a folder. It is called before anything is appended.
func (l *messageLog) spillTo(dir string) {
	l.dir, l.full, l.again = dir, make(chan struct{}, 1), spillAgain
	l.setLimits(l.limit)
}

// spill keeps memory and disk within their bounds until ctx ends. What happens to the disk is announced: the error when it
// begins to take nothing, and nil when something was written again. Meanwhile the log is in memory, as far as its limit
// goes, and nothing is forgotten sooner.
func (l *messageLog) spill(ctx context.Context, announce func(error)) {
	failed := false
	var again <-chan time.Time // set while the disk is left alone
	for {
		full := l.full
		if again != nil {
			full = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-full:
		case <-again:
			again = nil
		}
		for more := true; more && again == nil && ctx.Err() == nil; {
			var wrote bool
			var err error
			wrote, more, err = l.spillOnce()
			switch {
			case err != nil:
				again = time.After(l.again)
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

// spillOnce does one piece of work: it forgets a segment in good time, or writes a batch. It reports whether it wrote,
// and whether there is more to do.
func (l *messageLog) spillOnce() (wrote, more bool, err error) {
	l.closeFiles()
	if seg, view := l.segmentToForget(); seg != nil {
		l.retire(seg, view)
		return false, true, nil
	}
	batch, seg := l.batchToSpill()
	if len(batch) == 0 {
		return false, false, nil
	}
	fresh := seg == nil
	if fresh {
		if seg, err = newSegment(l.dir); err != nil {
			return false, false, err
		}
	}
	written, err := seg.write(batch)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.release(seg)
		return false, false, err
	}
	l.take(batch, seg, fresh, written)
	return true, l.bytes > l.memory || l.crowded(), nil
}

// newSegment makes a file that nobody else can open.
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

// crowded reports whether so much is kept that the oldest segment should go before an append has to forget it: what ends
// cells is read out of it first, for which an append has no time. l.mu is held.
func (l *messageLog) crowded() bool {
	return len(l.segments) > 0 && l.bytes+l.keptBytes+l.disk > l.limit-l.limit/spillSlack
}

// segmentToForget returns the oldest segment, and what it has, if it should go. The caller releases it.
func (l *messageLog) segmentToForget() (seg *segment, view segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.crowded() {
		return nil, segment{}
	}
	seg = l.segments[0]
	seg.users++
	return seg, *seg
}

// retire forgets the oldest segment, but for the newest of its essential entries.
func (l *messageLog) retire(seg *segment, view segment) {
	var kept []*entry
	var size int64
	l.mu.Lock()
	most := l.memory / keptShare
	l.mu.Unlock()
	err := view.read(0, func(e *entry) action {
		if e.essential && e.size <= most {
			return fillIn
		}
		return passOver
	}, func(e *entry) {
		kept = append(kept, e)
		for size += e.size; size > most; kept = kept[1:] {
			size -= kept[0].size
		}
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.release(seg)
	if len(l.segments) == 0 || l.segments[0] != seg {
		return // an append was faster
	}
	if err == nil {
		l.forgetEssential(seg)
		seg.essential = kept
		for _, e := range kept {
			l.essentialBytes += e.size
		}
	}
	l.forgetSegment()
}

// batchToSpill returns the oldest entries in memory, if there are too many, and the newest segment, if it has room: nil
// asks for a new one. The caller releases it.
func (l *messageLog) batchToSpill() (batch []*entry, seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, e := range l.entries[:max(0, len(l.entries)-1)] {
		if l.bytes-n <= l.memory || len(batch) > 0 && n+e.size > spillBatch {
			break
		}
		batch = append(batch, e)
		n += e.size
	}
	if i := len(l.segments) - 1; len(batch) > 0 && i >= 0 && l.segments[i].size < l.limit/spillParts {
		seg = l.segments[i]
		seg.users++
	}
	return batch, seg
}

// take takes a batch that is written out of memory, unless it was forgotten meanwhile. l.mu is held.
func (l *messageLog) take(batch []*entry, seg *segment, fresh bool, written segment) {
	defer l.release(seg)
	if l.entries[0] != batch[0] || !fresh && !slices.Contains(l.segments, seg) {
		return
	}
	l.disk += written.size - seg.size
	seg.size, seg.last, seg.marks = written.size, written.last, written.marks
	if fresh {
		seg.users++
		l.segments = append(l.segments, seg)
	}
	for i, e := range batch {
		l.entries[i] = nil
		l.bytes -= e.size
		if e.essential {
			// Without its encoded forms.
			e = &entry{at: e.at, to: e.to, msg: e.msg, essential: true, stamp: e.stamp, size: int64(e.msg.Size()) + entryOverhead}
			seg.essential = append(seg.essential, e)
			l.essentialBytes += e.size
		}
	}
	l.entries = l.entries[len(batch):]
	for _, s := range l.segments {
		if l.essentialBytes <= l.memory/keptShare {
			break
		}
		l.forgetEssential(s)
	}
	l.evict()
}

// forgetEssential leaves a segment's essential entries to the disk. l.mu is held.
func (l *messageLog) forgetEssential(seg *segment) {
	for _, e := range seg.essential {
		l.essentialBytes -= e.size
	}
	seg.essential = nil
}

// forgetSegment forgets the oldest segment, if there is one, but for the essential entries that are in memory too, and
// reports whether there was. l.mu is held.
func (l *messageLog) forgetSegment() bool {
	if len(l.segments) == 0 {
		return false
	}
	seg := l.segments[0]
	l.segments[0] = nil
	l.segments = l.segments[1:]
	l.disk -= seg.size
	l.gone = seg.last
	essential := seg.essential
	l.forgetEssential(seg)
	for _, e := range essential {
		l.keep(e)
	}
	l.release(seg)
	return true
}

// close ends the use of the disk. Nothing is read any more.
func (l *messageLog) close() {
	l.mu.Lock()
	for l.forgetSegment() {
	}
	l.mu.Unlock()
	l.closeFiles()
}

// release ends one use of a segment. Its file is closed by the goroutine that writes, since that may take long. l.mu is
// held.
func (l *messageLog) release(seg *segment) {
	if seg.users--; seg.users == 0 {
		l.unused = append(l.unused, seg.file)
		poke(l.full)
	}
}

func (l *messageLog) closeFiles() {
	l.mu.Lock()
	files := l.unused
	l.unused = nil
	l.mu.Unlock()
	for _, f := range files {
		f.Close() //nolint:errcheck // it is unlinked, and nothing of it is needed
	}
}

// segmentWith returns the segment that has the entry numbered seq, and what it has at present, or nil if none has the
// entry. The caller releases it. l.mu is held.
func (l *messageLog) segmentWith(seq uint64) (seg *segment, now segment) {
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].last.seq >= seq })
	if i == len(l.segments) {
		return nil, segment{}
	}
	seg = l.segments[i]
	seg.users++
	return seg, *seg
}

// write writes entries behind what the segment has, and returns what it will be when that counts. Only one goroutine
// writes.
func (g *segment) write(batch []*entry) (segment, error) {
	out := segment{size: g.size, marks: g.marks}
	w := bufio.NewWriterSize(io.NewOffsetWriter(g.file, g.size), spillBuffer)
	var buf []byte
	for _, e := range batch {
		if n := len(out.marks); n == 0 || out.size-out.marks[n-1].offset >= markEvery {
			out.marks = append(out.marks, mark{e.at.seq, out.size})
		}
		buf = appendRecordHead(buf[:0], e)
		n := int64(len(buf))
		if _, err := w.Write(buf); err != nil {
			return out, err
		}
		for part := range messageParts(&e.msg) {
			if _, err := w.Write(part); err != nil {
				return out, err
			}
			n += int64(len(part))
		}
		out.size += n
		out.last = e.at
	}
	return out, w.Flush()
}

// messageParts yields the parts of a message in the order of a record.
func messageParts(m *wire.Message) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, part := range [...][]byte{m.Header, m.Parent, m.Metadata, m.Content} {
			if !yield(part) {
				return
			}
		}
		for _, part := range m.Buffers {
			if !yield(part) {
				return
			}
		}
	}
}

func appendRecordHead(b []byte, e *entry) []byte {
	flags := byte(0)
	if e.essential {
		flags = 1
	}
	lengths := 8 * (4 + len(e.msg.Buffers))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(e.stamp.cell)+lengths))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.msg.Size()))
	b = binary.LittleEndian.AppendUint64(b, e.at.seq)
	b = binary.LittleEndian.AppendUint64(b, e.at.out)
	b = binary.LittleEndian.AppendUint64(b, e.to)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.stamp.time.UnixNano()))
	b = binary.LittleEndian.AppendUint64(b, e.stamp.epoch)
	b = append(b, byte(e.msg.Channel), flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(e.stamp.cell)))
	b = append(b, e.stamp.cell...)
	for part := range messageParts(&e.msg) {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(part)))
	}
	return b
}

// action is what becomes of an entry of which the head is known: all but its message and stamp.
type action int

const (
	passOver action = iota // read on behind it, without reading it
	fillIn                 // read it
	stopHere               // end, as if it had not been there
)

// read goes through the segment's entries behind the one numbered after. It asks about each, and hands over those that
// are to be read.
func (g *segment) read(after uint64, ask func(head *entry) action, take func(*entry)) error {
	i := max(0, sort.Search(len(g.marks), func(i int) bool { return g.marks[i].seq > after+1 })-1)
	r := segmentReader{file: g.file, next: g.marks[i].offset}
	r.buf = bufio.NewReaderSize(io.NewSectionReader(g.file, r.next, g.size-r.next), spillBuffer)
	var fixed [recordFixed]byte
	for {
		if err := r.full(fixed[:]); err != nil {
			return err
		}
		more, parts := int(binary.LittleEndian.Uint32(fixed[:])), int64(binary.LittleEndian.Uint64(fixed[4:]))
		e := &entry{at: position{binary.LittleEndian.Uint64(fixed[12:]), binary.LittleEndian.Uint64(fixed[20:])},
			to: binary.LittleEndian.Uint64(fixed[28:]), size: parts + entryOverhead, essential: fixed[53] == 1}
		what := passOver
		if e.at.seq > after {
			what = ask(e)
		}
		switch what {
		case stopHere:
			return nil
		case fillIn:
			if err := e.fill(&r, fixed[:], more, parts); err != nil {
				return err
			}
			take(e)
		default:
			r.skip(int64(more)+parts, g.size)
		}
		if e.at.seq >= g.last.seq {
			return nil
		}
	}
}

// fill reads the rest of a record.
func (e *entry) fill(r *segmentReader, fixed []byte, more int, parts int64) error {
	cell := int(binary.LittleEndian.Uint16(fixed[54:]))
	b := make([]byte, int64(more)+parts)
	if err := r.full(b); err != nil {
		return err
	}
	e.stamp = stamp{time: time.Unix(0, int64(binary.LittleEndian.Uint64(fixed[36:]))).UTC(),
		epoch: binary.LittleEndian.Uint64(fixed[44:]), cell: string(b[:cell])}
	n := (more - cell) / 8
	lengths, b := b[cell:more], b[more:]
	split := make([][]byte, n)
	for i := range split {
		size := binary.LittleEndian.Uint64(lengths[8*i:])
		if size > uint64(len(b)) {
			return fmt.Errorf("a record claims %d bytes where %d are left", size, len(b))
		}
		split[i], b = b[:size:size], b[size:]
	}
	e.msg = wire.Message{Channel: wire.Channel(fixed[52]), Header: split[0], Parent: split[1], Metadata: split[2], Content: split[3]}
	if n > 4 {
		e.msg.Buffers = split[4:]
	}
	return nil
}

// segmentReader reads a file from a place on, and passes over large parts without reading them.
type segmentReader struct {
	file *os.File
	buf  *bufio.Reader
	next int64 // offset of what is read next
}

func (r *segmentReader) full(p []byte) error {
	n, err := io.ReadFull(r.buf, p)
	r.next += int64(n)
	return err
}

func (r *segmentReader) skip(n, size int64) {
	r.next += n
	if n > int64(r.buf.Buffered()) {
		r.buf.Reset(io.NewSectionReader(r.file, r.next, size-r.next))
		return
	}
	r.buf.Discard(int(n)) //nolint:errcheck // so much is there
}
