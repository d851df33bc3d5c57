package launcher

import "time"

// Limits decides how many kernels there may be at one time. A launcher asks it for every start: for Start, and for whatever
// starts a dead kernel again. It may be asked concurrently, returns at once and asks the launcher nothing.
type Limits interface {
	// Set reports whether there is any limit at this moment. Where there is none, a launcher need not count.
	Set() bool

	// Admit decides about a start, with all other kernels that count: those that run, are being started or are ending. Dead ones
	// do not count. The error is a *LimitError.
	Admit(start Held, held []Held) error
}

// Held is a kernel as limits count it.
type Held struct {
	ID           string
	SpecName     string
	Owner        string
	Groups       []string // of the owner, when the kernel was started
	GPUs         int64    // that it asks for; of GPUs that are shared, 1
	State        State    // as far as it is known
	LastActivity time.Time
	Ending       bool // it is being shut down, and counts until it is gone
}

// LimitError says that a kernel was not started because of a limit.
type LimitError struct {
	Limit  string // name of the limit
	Reason string // one sentence for who has asked, which may name kernels of theirs and of nobody else
}

// Error gives the reason.
func (e *LimitError) Error() string { return e.Reason }

// Counts reports whether starts have to be counted: nil is no limits.
func Counts(l Limits) bool { return l != nil && l.Set() }
