package messagelog

// Cause says why entries were gone before a reader had them.
type Cause int

// The causes.
const (
	LogFull    Cause = iota // the log held as much as its limit allows
	NoRoom                  // the log's disk had too little room for more
	DiskSlow                // the log's disk took entries more slowly than they came
	DiskFailed              // the log's disk took no entries, or did not return them
	causes
)

// Loss is how many entries for every session a reader has missed, by their cause. The index is a Cause.
type Loss [causes]uint64

// Total returns how many entries were missed for any cause.
func (l Loss) Total() uint64 {
	var n uint64
	for _, count := range l {
		n += count
	}
	return n
}
