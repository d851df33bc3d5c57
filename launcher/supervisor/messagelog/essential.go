package messagelog

// Without an essential entry a client waits forever. So some of them are kept when others around them are evicted.
const (
	keptShare  = 8       // they may take 1/keptShare of the log's memory
	shortShare = 16      // those above 1/shortShare of that are shortened, so that one does not cost all others
	shortLeast = 4 << 10 // bytes that none is shortened below
)

// shortMost returns how many bytes one essential entry may have when all of them may take share bytes.
func (l *Log) shortMost(share int64) int64 {
	if l.short == nil {
		return share
	}
	return min(share, max(share/shortShare, shortLeast))
}

// shortened returns what is kept of an essential entry when all such entries may take share bytes: the entry, or a
// short one in its place. It returns nil if there is none that is small enough.
func (l *Log) shortened(e *Entry, share int64) *Entry {
	size, most := int64(e.Message.Size()), l.shortMost(share)
	if size+entryOverhead <= most {
		return e
	}
	if l.short == nil {
		return nil
	}
	m := l.short(&e.Message, size)
	size = int64(m.Size()) + entryOverhead
	if size > most {
		return nil
	}
	return &Entry{At: e.At, To: e.To, Message: m, Essential: true, Stamp: e.Stamp, size: size}
}

// keepLocked keeps an entry that is being evicted, if it is essential.
func (l *Log) keepLocked(e *Entry) {
	if !e.Essential {
		return
	}
	if e = l.shortened(e, l.memory/keptShare); e == nil {
		return
	}
	e = e.alone()
	l.kept = append(l.kept, e)
	l.keptBytes += e.size
	l.trimKeptLocked()
}

func (l *Log) trimKeptLocked() {
	for l.keptBytes > l.memory/keptShare && len(l.kept) > 0 {
		l.keptBytes -= l.kept[0].size
		l.kept[0] = nil
		l.kept = l.kept[1:]
	}
}

// retire evicts the oldest segment, except for the newest of its essential entries.
func (l *Log) retire(seg *segment, view segment, why Cause) {
	var kept []*Entry
	var size int64
	l.mu.Lock()
	most := l.memory / keptShare
	l.mu.Unlock()
	keep := func(e *Entry) {
		if e == nil {
			return
		}
		kept = append(kept, e)
		for size += e.size; size > most; kept = kept[1:] {
			size -= kept[0].size
		}
	}
	inMemory := view.essential
	err := view.read(0, func(e *Entry) action {
		if !e.Essential {
			return passOver
		}
		inMemory = behind(inMemory, e.At.Seq-1)
		if len(inMemory) > 0 && inMemory[0].At.Seq == e.At.Seq {
			keep(inMemory[0])
			return passOver
		}
		if e.size > most { // a large one, of which nothing is in memory any more, as it was among the oldest
			return passOver
		}
		return fillIn
	}, func(e *Entry) { keep(l.shortened(e, most)) })
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.releaseLocked(seg)
	if len(l.segments) == 0 || l.segments[0] != seg {
		return // an append has evicted it
	}
	if err == nil {
		l.forgetEssentialLocked(seg)
		seg.essential = kept
		for _, e := range kept {
			l.essentialBytes += e.size
		}
	}
	l.evictSegmentLocked(why)
}

// forgetEssentialLocked removes a segment's essential entries from memory. They stay on disk.
func (l *Log) forgetEssentialLocked(seg *segment) {
	for _, e := range seg.essential {
		l.essentialBytes -= e.size
	}
	seg.essential = nil
}
