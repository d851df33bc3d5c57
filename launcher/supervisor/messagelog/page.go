package messagelog

import "sort"

// Line is one line of a page: an entry, or a run of entries that are no longer kept.
type Line struct {
	Entry  *Entry // nil where entries are lost
	Number uint64 // of the entry, or of the newest that is lost
	Lost   uint64 // how many are lost
}

// Page returns entries of all sessions behind the one numbered after, oldest first. Their payload is at most maxBytes,
// or one larger entry. now is the number up to which the page goes. Unlike Read, Page says where entries are missing.
// It counts all of them, since its reader sees the entries of every session. The result reuses the memory of into.
func (l *Log) Page(after uint64, maxBytes int64, into []Line) (lines []Line, now uint64) {
	lines, now = into[:0], after
	var n int64
	missing := func(upTo uint64) {
		if upTo > now {
			lines = append(lines, Line{Number: upTo, Lost: upTo - now})
			now = upTo
		}
	}
	fits := func(e *Entry) bool { return n == 0 || n+e.size <= maxBytes }
	take := func(e *Entry) {
		missing(e.At.Seq - 1)
		lines = append(lines, Line{Entry: e, Number: e.At.Seq})
		n += e.size
		now = e.At.Seq
	}
	begin := func() (from uint64, ok bool) {
		for _, e := range behind(l.kept, after) {
			if !fits(e) {
				return 0, false
			}
			take(e)
		}
		missing(l.gone.Seq)
		return now, true
	}
	failed := l.walk(begin, func(head *Entry) action {
		if !fits(head) {
			return stopHere
		}
		return fillIn
	}, take)
	missing(failed.Seq)
	return lines, now
}

// behind returns the entries of a list, ordered by number, that are behind the given number.
func behind(list []*Entry, number uint64) []*Entry {
	return list[sort.Search(len(list), func(i int) bool { return list[i].At.Seq > number }):]
}

// Watch makes appends wake a reader of Page.
func (l *Log) Watch(r *Reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = 0
}

// Unwatch undoes Watch.
func (l *Log) Unwatch(r *Reader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.readers, r)
}
