package supervisor

import (
	"crypto/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

// framing is one of the forms in which entries are sent to clients.
type framing uint8

const (
	framingLegacy framing = iota // JSON text, binary where there are buffers
	framingRelay                 // for an unmodified jupyter server: JSON text only, at most relayLimit bytes
	framingText                  // for GatewayKernelClient: JSON text only
	framingV1                    // wire.SubprotocolV1
	framings
)

// position is a place in the log: seq entries were appended up to and including it, out of them for everyone.
type position struct{ seq, out uint64 }

// entry is one message of the log. It does not change once it is appended, but for the cache of encoded forms.
type entry struct {
	at        position
	to        uint64 // number of the only session it is for; 0: every session
	msg       wire.Message
	essential bool // without it a client waits for ever: replies, input requests, idle
	stamp     stamp
	size      int64
	encoded   [framings]atomic.Pointer[frame]
}

// frame is an entry as one websocket message.
type frame struct {
	data   []byte
	binary bool
}

// entryOverhead is what an entry costs beside its payload: the struct, slice headers and allocation rounding, in bytes.
const entryOverhead = 432

// keptShare is the part of what the log has in memory that essential entries may take once the rest around them is gone.
const keptShare = 8

// messageLog holds what the kernel (and the supervisor in its place) has said, numbered from 1 and bounded in bytes.
// What does not fit memory lies on disk (see spill.go). When it is full the oldest entries go; of those, essential ones are
// kept for a while longer, so that a client that was away too long misses output but no reply. It may be used
// concurrently.
type messageLog struct {
	id    [8]byte                   // random: positions of another log say nothing of this one
	stamp func(parent []byte) stamp // fixed; nil: entries are not marked

	// Fixed, set by spillTo.
	dir   string        // where files are made; "": all is held in memory
	full  chan struct{} // capacity 1: there is something to be done about memory or disk
	again time.Duration // spillAgain, but for tests

	mu             sync.Mutex
	limit          int64      // of all that follows
	memory         int64      // of entries, once they are on disk
	bytes          int64      // of entries
	entries        []*entry   // the newest, contiguous, oldest first
	segments       []*segment // on disk: the ones before, contiguous, oldest first
	disk           int64      // bytes of segments
	unused         []*os.File // of segments, to be closed
	end            position   // of the newest entry ever appended
	gone           position   // of the newest entry that was evicted
	kept           []*entry   // essential entries of those evicted
	keptBytes      int64
	essentialBytes int64                // of segments' essential entries
	readers        map[*reader]*session // who is woken by an append
	users          [framings]int        // open connections by framing
}

// reader is how an append wakes a connection's writer. Both channels have a capacity of 1.
type reader struct {
	wake   chan struct{} // there is something
	urgent chan struct{} // there is something that the client waits for
}

func newReader() *reader {
	return &reader{wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
}

func newLog(limit int64) *messageLog {
	l := &messageLog{limit: limit, memory: limit, readers: map[*reader]*session{}}
	rand.Read(l.id[:]) //nolint:errcheck // it never fails
	return l
}

// append adds a message for one session, or for all if to is nil, and returns its position.
func (l *messageLog) append(to *session, m wire.Message, essential bool) position {
	e := &entry{msg: m, essential: essential, size: int64(m.Size()) + entryOverhead}
	if l.stamp != nil {
		e.stamp = l.stamp(m.Parent)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end.seq++
	if to == nil {
		l.end.out++
	} else {
		e.to = to.number
	}
	e.at = l.end
	l.entries = append(l.entries, e)
	l.bytes += e.size
	l.evict()
	l.spillIfFull()
	for r, s := range l.readers {
		poke(r.wake)
		if essential && (to == nil || to == s) {
			poke(r.urgent)
		}
	}
	return e.at
}

// evict brings the log under its limit; the newest entry always stays. l.mu is held.
func (l *messageLog) evict() {
	n := 0
	for l.bytes+l.keptBytes+l.disk > l.limit {
		if l.forgetSegment() {
			continue
		}
		if n >= len(l.entries)-1 {
			break
		}
		e := l.entries[n]
		l.entries[n] = nil
		n++
		l.bytes -= e.size
		l.gone = e.at
		l.keep(e)
	}
	l.entries = l.entries[n:]
}

// keep holds on to an essential entry that is forgotten otherwise. l.mu is held.
func (l *messageLog) keep(e *entry) {
	if e.essential {
		l.kept = append(l.kept, e)
		l.keptBytes += e.size
		l.trimKept()
	}
}

func (l *messageLog) trimKept() {
	for l.keptBytes > l.memory/keptShare && len(l.kept) > 0 {
		l.keptBytes -= l.kept[0].size
		l.kept[0] = nil
		l.kept = l.kept[1:]
	}
}

// setLimits derives what follows from the bound. l.mu is held.
func (l *messageLog) setLimits(limit int64) {
	l.limit, l.memory = limit, limit
	if l.dir != "" {
		l.memory = memoryOf(limit)
	}
}

// spillIfFull wakes the goroutine that moves entries to disk, and off it. l.mu is held.
func (l *messageLog) spillIfFull() {
	if l.dir != "" && (l.bytes > l.memory || l.crowded()) {
		poke(l.full)
	}
}

// setLimit changes the bound, in bytes.
func (l *messageLog) setLimit(limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.setLimits(limit)
	l.trimKept()
	l.evict()
	l.spillIfFull()
}

func (l *messageLog) sizes() (bytes, limit int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes + l.keptBytes + l.disk, l.limit
}

// evicted is how many messages are no longer in the log.
func (l *messageLog) evicted() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.gone.seq)
}

// tail returns the position of the newest entry.
func (l *messageLog) tail() position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// read returns entries behind after that are for the session, oldest first, until their payload reaches maxBytes, and
// the position the reader stands at then. There may be more behind it, unless that is where it stood before. If
// entries behind after were evicted, lost counts those that were for everyone, and the entries given include what was
// kept of them.
func (l *messageLog) read(after position, s *session, maxBytes int64, into []*entry) (got []*entry, now position, lost uint64) {
	l.mu.Lock()
	got, now = into[:0], after
	if after.seq < l.gone.seq {
		lost = l.gone.out - after.out
		for _, e := range behind(l.kept, after.seq) {
			if e.to == 0 {
				lost-- // kept, so not lost
			}
			if e.isFor(s) {
				got = append(got, e) // all at once: what was kept is bounded already
			}
		}
		now = l.gone
	}
	var n int64
	failed := l.walk(now.seq, func(head *entry) action {
		switch {
		case !head.isFor(s):
			now = head.at
			return passOver
		case n > 0 && n+head.size > maxBytes:
			return stopHere
		}
		return fillIn
	}, func(e *entry) {
		got = append(got, e)
		n += e.size
		now = e.at
	})
	if failed.seq > 0 {
		lost += failed.out - now.out
		now = failed
	}
	return got, now, lost
}

// walk goes through entries behind the one numbered after, as segment.read does: those of one segment, or those in memory.
// l.mu is held when it is called, and not when it returns. If the disk does not give back what it took, failed is the
// place up to which that is lost.
func (l *messageLog) walk(after uint64, ask func(head *entry) action, take func(*entry)) (failed position) {
	seg, view := l.segmentWith(after + 1)
	if seg == nil {
		defer l.mu.Unlock()
		for _, e := range behind(l.entries, after) {
			switch ask(e) {
			case stopHere:
				return position{}
			case fillIn:
				take(e)
			}
		}
		return position{}
	}
	l.mu.Unlock()
	err := view.read(after, ask, take)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(seg)
	if err != nil {
		return view.last
	}
	return position{}
}

// isFor reports whether a session gets the entry.
func (e *entry) isFor(s *session) bool { return e.to == 0 || e.to == s.number }

// poke sends to a channel of capacity 1 unless there is something in it already.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// subscribe registers a session's reader, and counts the framing's users.
func (l *messageLog) subscribe(r *reader, s *session, f framing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = s
	l.users[f]++
}

func (l *messageLog) unsubscribe(r *reader, f framing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
	l.users[f]--
}

// encode returns the entry in a framing. With more than one connection of that framing the result is kept with the
// entry and counted, so that all share its bytes.
func (l *messageLog) encode(e *entry, f framing) (*frame, error) {
	if fr := e.encoded[f].Load(); fr != nil {
		return fr, nil
	}
	fr, err := encodeFrame(&e.msg, f)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	inMemory := len(l.entries) > 0 && e.at.seq >= l.entries[0].at.seq
	if l.users[f] > 1 && inMemory && e.encoded[f].CompareAndSwap(nil, fr) {
		e.size += int64(len(fr.data))
		l.bytes += int64(len(fr.data))
		l.evict()
		l.spillIfFull()
	}
	return fr, nil
}

func encodeFrame(m *wire.Message, f framing) (*frame, error) {
	switch f {
	case framingV1:
		return &frame{data: wire.EncodeV1(m), binary: true}, nil
	case framingText:
		data, _, err := wire.EncodeLegacy(m, false)
		return &frame{data: data}, err
	case framingRelay:
		data, _, err := wire.EncodeLegacy(m, false)
		if err == nil && len(data) > relayLimit {
			n := tooLargeForRelay(m)
			data, _, err = wire.EncodeLegacy(&n, false)
		}
		return &frame{data: data}, err
	default:
		data, binary, err := wire.EncodeLegacy(m, true)
		return &frame{data: data, binary: binary}, err
	}
}
