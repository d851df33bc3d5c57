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
	l.mu.Lock()
	defer l.mu.Unlock()
	lines, now = into[:0], after
	var n int64
	take := func(list []*entry) bool {
		for _, e := range list {
			if n > 0 && n+e.size > maxBytes {
				return false
			}
			if missing := e.at.seq - now - 1; missing > 0 {
				lines = append(lines, pageLine{number: e.at.seq - 1, lost: missing})
			}
			lines = append(lines, pageLine{e: e, number: e.at.seq})
			n += e.size
			now = e.at.seq
		}
		return true
	}
	if take(behind(l.kept, after)) {
		take(behind(l.entries, after))
	}
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
