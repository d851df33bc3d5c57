package supervisor

import (
	"sort"
	"time"
)

// stamp is what an entry is marked with when it is appended, for those who read the log afterwards.
type stamp struct {
	time  time.Time
	epoch uint64
	cell  string // id of the cell that caused it, "" if that is not known
}

// pageLine is one line of a page: an entry, or a run of entries that are no longer kept.
type pageLine struct {
	e      *entry // nil where entries are lost
	number uint64 // of the entry, or of the newest that is lost
	lost   uint64 // how many are
}

// page returns what follows the entry numbered after, of all sessions, oldest first, until its payload reaches maxBytes
// (or one entry), and the number up to which that goes. Other than read it says where entries are missing, and counts
// all that are: its reader sees everybody's.
func (l *messageLog) page(after uint64, maxBytes int64, into []pageLine) (lines []pageLine, now uint64) {
	lines, now = into[:0], after
	var n int64
	missing := func(upTo uint64) {
		if upTo > now {
			lines = append(lines, pageLine{number: upTo, lost: upTo - now})
			now = upTo
		}
	}
	fits := func(e *entry) bool { return n == 0 || n+e.size <= maxBytes }
	take := func(e *entry) {
		missing(e.at.seq - 1)
		lines = append(lines, pageLine{e: e, number: e.at.seq})
		n += e.size
		now = e.at.seq
	}
	l.mu.Lock()
	for _, e := range behind(l.kept, after) {
		if !fits(e) {
			l.mu.Unlock()
			return lines, now
		}
		take(e)
	}
	missing(l.gone.seq)
	failed := l.walk(now, func(head *entry) action {
		if !fits(head) {
			return stopHere
		}
		return fillIn
	}, take)
	missing(failed.seq)
	return lines, now
}

// behind returns the part of a list ordered by number that is behind it.
func behind(list []*entry, number uint64) []*entry {
	return list[sort.Search(len(list), func(i int) bool { return list[i].at.seq > number }):]
}

// watch has appends wake a reader that is no client's.
func (l *messageLog) watch(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = nil
}

func (l *messageLog) unwatch(r *reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
}
