// Package messagelog holds the messages of a kernel. They are numbered, and their bytes are bounded. The newest part is
// in memory; the rest is in unlinked files on disk. The package knows sessions only by number, and neither their
// clients nor the kernel.
//
// The owner of a Log with a folder runs Spill in a goroutine of its own. It calls Close when the log is not read any
// more. The package starts no goroutine.
package messagelog

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
)

// Position is a place in a log.
type Position struct {
	Seq uint64 // entries that were appended up to and including this place
	Out uint64 // how many of these are for every session
}

// Stamp is the mark that an entry gets when it is appended. It is for those who read the log later.
type Stamp struct {
	Time  time.Time
	Epoch uint64 // the kernel's start that it belongs to
	Cell  string // id of the cell that caused it; "" if that is not known
}

// Entry is one message of the log. It does not change once it is appended, except for the cache of encoded forms.
type Entry struct {
	At        Position
	To        uint64 // number of the only session that gets it; 0: every session
	Message   jupyter.Message
	Essential bool // without it a client waits forever: replies, input requests, idle
	Stamp     Stamp

	size    int64 // bytes that it counts
	encoded [framing.Count]atomic.Pointer[framing.Frame]
}

// entryOverhead is the memory of an entry besides its payload, in bytes: the struct, slice headers and allocation
// rounding.
const entryOverhead = 432

// largeShare says which entries are large: those above 1/largeShare of the log's limit, or of Options.Least.
const largeShare = 4

// Options describe a Log.
type Options struct {
	Limit int64                     // bytes of all entries, in memory and on disk
	Dir   string                    // folder for what does not fit memory; "": all is held in memory
	Stamp func(parent []byte) Stamp // marks an entry by its parent_header; nil: entries are not marked

	// KeepFree is the percentage of Dir's file system that the log leaves free. For that it holds less than its limit, but
	// never less than Least bytes if the limit allows them. While the disk is slower than the kernel, or fails, at most
	// Least bytes are in memory, besides a large entry that clients have yet to read and one that is being written. 0: the
	// log fills its limit, on disk or in memory.
	KeepFree int
	Least    int64

	// Shorten returns a short message that takes the place of an essential one, whose size is given in bytes. It is called
	// when such a large message would be evicted, with or without the log's lock. nil: large ones are evicted.
	Shorten func(m *jupyter.Message, bytes int64) jupyter.Message
}

// Log is a message log. The numbers of its entries begin at 1. When it is full, the oldest entries are evicted. The
// essential ones among them are kept for a while longer. So a client that was away too long misses output but no reply.
// A Log may be used concurrently. Lock order: the caller's own, then the log's. Options.Stamp is called without the
// log's lock.
type Log struct {
	// Fixed.
	id    [8]byte // random: a position of another log means nothing in this one
	stamp func(parent []byte) Stamp
	short func(m *jupyter.Message, bytes int64) jupyter.Message // Options.Shorten
	dir   string
	full  chan struct{} // capacity 1: memory or disk is over its bound, or a file is to be closed
	eased chan struct{} // capacity 1: the disk has taken entries or has failed, or a reader has passed some or is gone
	retry time.Duration // spillRetry, but for tests

	keepFree int                                     // percent of the file system; 0: the log does not follow the disk
	least    int64                                   // bytes that the log may hold on any disk; used with keepFree
	room     func() (left, reserve int64, err error) // the function room, but for tests

	mu             sync.Mutex
	limit          int64      // bytes of all that follows
	memory         int64      // bytes of entries, once they are on disk
	bytes          int64      // bytes of entries
	diskBound      int64      // bytes of all, above which segments are evicted since the disk has too little room
	wanted         int64      // bytes of a message that waits for the disk; 0: none does
	patienceEnd    time.Time  // when it waits no more; zero: it has not waited
	slowest        uint64     // up to which all connected clients had read when a message last waited
	failing        bool       // the disk has failed, and has taken nothing since
	failedFor      Cause      // why it has failed
	diskUrgent     bool       // by far too little
	nextGiven      time.Time  // when the next segment is evicted for diskBound, unless that is urgent; zero: none is
	diskMost       int64      // bytes of segments, above which one is evicted before that
	entries        []*Entry   // the newest, oldest first; some may be missing in between
	writing        int        // how many of entries are being written to disk
	segments       []*segment // on disk: the ones before, oldest first
	disk           int64      // bytes of segments
	unused         []*segment // whose files are to be closed
	unclosed       int64      // bytes of evicted segments whose files are open
	end            Position   // of the newest entry ever appended
	gone           Position   // up to this all entries were evicted
	goneFor        Cause      // why the newest of these was evicted
	droppedFor     Cause      // why the newest was evicted of those behind gone
	evicted        uint64     // how many were evicted
	kept           []*Entry   // essential entries of those evicted
	keptBytes      int64
	essentialBytes int64                // bytes of the segments' essential entries
	awaited        awaited              // the newest large entry, while readers have yet to read it
	readers        map[*Reader]uint64   // readers that an append wakes, with their sessions' numbers; 0: of Page
	users          [framing.Count]int64 // open connections by framing
}

// Reader has the channels by which an append wakes a reader of the log.
type Reader struct {
	Wake   chan struct{} // capacity 1: there may be new entries
	Urgent chan struct{} // capacity 1: the client may wait for one of them
	passed atomic.Uint64 // Seq of the entry up to which it needs none any more
	eased  chan struct{} // Log.eased; nil before Subscribe
}

// Pass notes that the reader needs no entry up to p any more. Only its own goroutine calls it.
func (r *Reader) Pass(p Position) {
	r.passed.Store(p.Seq)
	goroutines.Wake(r.eased)
}

// awaited is a large entry that subscribed readers have yet to read. Until then its size counts above the limit.
// Otherwise an entry above the limit would be evicted, with all before it, before any reader had looked.
type awaited struct {
	seq     uint64
	size    int64
	readers map[*Reader]struct{} // that have not passed it; empty: there is no such entry
}

// NewReader returns a Reader; Subscribe or Watch makes a log wake it.
func NewReader() *Reader {
	return &Reader{Wake: make(chan struct{}, 1), Urgent: make(chan struct{}, 1)}
}

// New returns an empty log.
func New(o Options) *Log {
	l := &Log{stamp: o.Stamp, short: o.Shorten, dir: o.Dir, full: make(chan struct{}, 1), eased: make(chan struct{}, 1),
		retry: spillRetry, readers: map[*Reader]uint64{}, keepFree: o.KeepFree, least: o.Least, diskBound: math.MaxInt64}
	if l.dir == "" {
		l.keepFree = 0
	}
	l.room = func() (left, reserve int64, err error) { return room(l.dir, l.keepFree) }
	l.setLimits(o.Limit)
	rand.Read(l.id[:]) // never fails
	return l
}

// Name identifies the log: 16 hexadecimal digits. A supervisor that replaces another has another log.
func (l *Log) Name() string { return hex.EncodeToString(l.id[:]) }

// Append adds a message for the session with the number to, or for all if that is 0, and returns its position.
func (l *Log) Append(to uint64, m jupyter.Message, essential bool) Position {
	e := &Entry{To: to, Message: m, Essential: essential, size: int64(m.Size()) + entryOverhead}
	if l.stamp != nil {
		e.Stamp = l.stamp(m.Parent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end.Seq++
	if to == 0 {
		l.end.Out++
	}
	e.At = l.end
	l.entries = append(l.entries, e)
	l.bytes += e.size
	l.awaitLocked(e)
	l.evictLocked()
	l.dropLocked()
	l.spillIfFullLocked()
	for r, session := range l.readers {
		goroutines.Wake(r.Wake)
		if essential && e.isFor(session) {
			goroutines.Wake(r.Urgent)
		}
	}
	return e.At
}

// evictLocked brings the log under its limit. The newest entry always stays.
func (l *Log) evictLocked() {
	n := 0
	for bound := l.boundLocked(); l.bytes+l.keptBytes+l.disk > bound; {
		if l.evictSegmentLocked(LogFull) {
			continue
		}
		if n >= len(l.entries)-1 {
			break
		}
		e := l.entries[n]
		l.entries[n] = nil
		n++
		l.bytes -= e.size
		l.gone, l.goneFor = e.At, LogFull
		l.evicted++
		l.keepLocked(e)
	}
	l.entries = l.entries[n:]
	l.writing = max(0, l.writing-n)
}

// awaitLocked makes a large entry the awaited one if readers are subscribed. It replaces the one before, so that the
// log exceeds its limit by one message at most.
func (l *Log) awaitLocked(e *Entry) {
	bound := l.limit
	if l.keepFree > 0 {
		bound = min(bound, l.least)
	}
	if e.size <= bound/largeShare {
		return
	}
	readers := map[*Reader]struct{}{}
	for r, session := range l.readers {
		if session != 0 && e.isFor(session) {
			readers[r] = struct{}{}
		}
	}
	l.awaited = awaited{seq: e.At.Seq, size: e.size, readers: readers}
}

// boundLocked returns how many bytes the log may hold at present.
func (l *Log) boundLocked() int64 { return l.limit + l.awaitedLocked() }

// awaitedLocked returns the size of the awaited entry; 0: there is none.
func (l *Log) awaitedLocked() int64 {
	if len(l.awaited.readers) == 0 {
		return 0
	}
	return l.awaited.size
}

// settleAwaitedLocked ends the wait for readers that have passed the awaited entry or are gone.
func (l *Log) settleAwaitedLocked() {
	if len(l.awaited.readers) == 0 {
		return
	}
	for r := range l.awaited.readers {
		if _, subscribed := l.readers[r]; !subscribed || r.passed.Load() >= l.awaited.seq {
			delete(l.awaited.readers, r)
		}
	}
	l.evictLocked()
	l.spillIfFullLocked()
}

// sharedMost is the size in bytes of a message up to which most of the memory that it shares may belong to others.
const sharedMost = 64 << 10

// alone returns a copy of an entry that outlives those around it: without the encoded forms, and in memory of its own.
// A message of a kernel shares memory with those that came with it (zeromq.Socket).
func (e *Entry) alone() *Entry {
	m := e.Message
	if m.Size() <= sharedMost {
		m = m.Clone()
	}
	return &Entry{At: e.At, To: e.To, Message: m, Essential: e.Essential, Stamp: e.Stamp,
		size: int64(m.Size()) + entryOverhead}
}

// setLimits derives all bounds from the limit. After New it is called with l.mu held.
func (l *Log) setLimits(limit int64) {
	l.limit, l.memory = limit, limit
	if l.dir != "" {
		l.memory = memoryOf(limit)
	}
}

// spillIfFullLocked wakes the goroutine that moves entries to disk, and evicts them from there.
func (l *Log) spillIfFullLocked() {
	if l.dir != "" && (l.bytes > l.memory || l.crowdedLocked()) {
		goroutines.Wake(l.full)
	}
}

// SetLimit changes the bound, in bytes.
func (l *Log) SetLimit(limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLimits(limit)
	l.trimKeptLocked()
	l.evictLocked()
	l.spillIfFullLocked()
}

// Sizes returns how many bytes the log holds, in memory and on disk, and its limit. It holds more while a connected
// client has yet to read a large entry.
func (l *Log) Sizes() (bytes, limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes + l.keptBytes + l.disk, l.limit
}

// InMemory returns how many bytes of entries are in memory. Entries that were kept when others were evicted do not
// count.
func (l *Log) InMemory() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// Evicted returns how many messages are no longer in the log.
func (l *Log) Evicted() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.evicted)
}

// Tail returns the position of the newest entry.
func (l *Log) Tail() Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Read returns entries behind after for the session with the given number, oldest first, until their payload reaches
// maxBytes. now is the reader's new position. There may be more entries behind it, unless it did not change. If entries
// behind after were evicted, Read also returns the kept ones among them. lost then counts the others that were for
// everyone. The result reuses the memory of into.
func (l *Log) Read(
	after Position,
	session uint64,
	maxBytes int64,
	into []*Entry,
) (got []*Entry, now Position, lost Loss) {
	got, now = into[:0], after
	var droppedFor Cause
	begin := func() (from uint64, ok bool) {
		l.settleAwaitedLocked()
		droppedFor = l.droppedFor
		if after.Seq >= l.gone.Seq {
			return now.Seq, true
		}
		lost[l.goneFor] = l.gone.Out - after.Out
		for _, e := range behind(l.kept, after.Seq) {
			if e.To == 0 {
				lost[l.goneFor]-- // kept, so not lost
			}
			if e.isFor(session) {
				got = append(got, e) // all at once, since the kept entries are bounded already
			}
		}
		now = l.gone
		return now.Seq, true
	}
	var n int64
	pass := func(e *Entry) {
		lost[droppedFor] += e.outBefore() - now.Out
		now = e.At
	}
	failed := l.walk(begin, func(head *Entry) action {
		switch {
		case !head.isFor(session):
			pass(head)
			return passOver
		case n > 0 && n+head.size > maxBytes:
			return stopHere
		}
		return fillIn
	}, func(e *Entry) {
		got = append(got, e)
		n += e.size
		pass(e)
	})
	if failed.Seq > 0 {
		lost[DiskFailed] += failed.Out - now.Out
		now = failed
	}
	return got, now, lost
}

// walk goes through entries, as segment.read does. They are those of one segment, or those in memory. It calls begin
// with l.mu held, and goes on behind the number that begin returns, if that says ok. It does not hold l.mu while it
// reads a segment. If the disk does not return what was written, entries up to the position failed are lost.
func (l *Log) walk(begin func() (after uint64, ok bool), ask func(head *Entry) action, take func(*Entry),
) (failed Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	after, ok := begin()
	if !ok {
		return Position{}
	}
	seg, view := l.segmentWithLocked(after + 1)
	if seg == nil {
		for _, e := range behind(l.entries, after) {
			switch ask(e) {
			case stopHere:
				return Position{}
			case fillIn:
				take(e)
			}
		}
		return Position{}
	}
	l.mu.Unlock()
	err := view.read(after, ask, take)
	l.mu.Lock()
	l.releaseLocked(seg)
	if err != nil {
		return view.last
	}
	return Position{}
}

// isFor reports whether the session with the given number gets the entry.
func (e *Entry) isFor(session uint64) bool { return e.To == 0 || e.To == session }

// outBefore returns how many entries before this one were for every session.
func (e *Entry) outBefore() uint64 {
	if e.To == 0 {
		return e.At.Out - 1
	}
	return e.At.Out
}

// Subscribe makes appends wake the reader of a session's connection, and counts the framing's users.
func (l *Log) Subscribe(r *Reader, session uint64, f framing.Framing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = session
	r.eased = l.eased
	l.users[f]++
}

// Unsubscribe undoes Subscribe.
func (l *Log) Unsubscribe(r *Reader, f framing.Framing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
	l.users[f]--
	l.settleAwaitedLocked()
	goroutines.Wake(l.eased)
}

// Shares reports whether several connections send the entries in a framing, so that Encode keeps the results.
func (l *Log) Shares(f framing.Framing) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users[f] > 1
}

// Encode returns the entry in a framing. If the framing has more than one connection, the result is kept with the entry
// and counted. So all connections share its bytes.
func (l *Log) Encode(e *Entry, f framing.Framing) *framing.Frame {
	if fr := e.encoded[f].Load(); fr != nil {
		return fr
	}
	fr := framing.Encode(&e.Message, f)
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := behind(l.entries, e.At.Seq-1)
	if l.users[f] > 1 && len(rest) > 0 && rest[0] == e && e.encoded[f].CompareAndSwap(nil, fr) {
		e.size += int64(fr.Own())
		l.bytes += int64(fr.Own())
		l.evictLocked()
		l.spillIfFullLocked()
	}
	return fr
}

// Cursor returns a position in the form that jupyter.SubprotocolRelay sends: the log's own id, then the position's two
// numbers in big endian.
func (l *Log) Cursor(p Position) [jupyter.RelayCursor]byte {
	var b [jupyter.RelayCursor]byte
	copy(b[:8], l.id[:])
	binary.BigEndian.PutUint64(b[8:], p.Seq)
	binary.BigEndian.PutUint64(b[16:], p.Out)
	return b
}

// ParseCursor reads a cursor in hexadecimal. It reports false for another log's cursor. A kernel that was started again
// under the same id has another log.
func (l *Log) ParseCursor(text string) (Position, bool) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != jupyter.RelayCursor || [8]byte(b[:8]) != l.id {
		return Position{}, false
	}
	p := Position{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
	tail := l.Tail()
	return p, p.Seq <= tail.Seq && p.Out <= tail.Out && p.Out <= p.Seq
}
