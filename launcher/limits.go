package launcher

import (
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Limits decides how many kernels may exist at one time. A launcher calls it for every start: for Start, and for each
// restart of a dead kernel. Its methods may be called concurrently, return at once and call no method of the launcher.
type Limits interface {
	// Set reports whether there is any limit at this moment. Without limits, a launcher need not count.
	Set() bool

	// Decide decides about a start. held are all other kernels that count: those that run, are being started or are
	// ending, but no dead ones.
	Decide(start Held, held []Held) Verdict
}

// Verdict is a decision about a start. The zero Verdict admits it.
type Verdict struct {
	Refused *LimitError // nil: the start is admitted
	Against []string    // ids of the kernels that count against the limit of Refused
}

// Held is a kernel as limits count it.
type Held struct {
	ID           string
	SpecName     string
	Owner        string
	Groups       []string   // of the owner, at the start of the kernel
	GPUs         gpu.Amount // that it asks for; without a flavor, shares of GPUs count as 1
	State        api.State  // the last known
	LastActivity time.Time
	Ending       bool // it is being shut down; it counts until it is gone
}

// LimitError says that a kernel was not started because of a limit.
type LimitError struct {
	Limit  string // name of the limit
	Owner  string // of the kernel
	Reason string // one sentence for the owner; it names the owner's other kernels, and none of another user
}

// Error returns the reason.
func (e *LimitError) Error() string { return e.Reason }

// LimitForOthers returns the reason of a LimitError for readers who are not the owner.
func LimitForOthers(limit string) string {
	return fmt.Sprintf("a limit on the kernels of its owner is reached (limit %s)", limit)
}

// HasLimits reports whether starts must be counted. nil means no limits.
func HasLimits(l Limits) bool { return l != nil && l.Set() }
