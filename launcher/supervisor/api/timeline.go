package api

import "time"

// TimelineKind says what an event of a kernel's life is.
type TimelineKind string

// The kinds of events.
const (
	TimelineCreated     TimelineKind = "created"     // a client asked for the kernel; the gateway adds it
	TimelineWaiting     TimelineKind = "waiting"     // its container is not there yet, and why
	TimelinePulled      TimelineKind = "pulled"      // the image of its container was pulled, and in what time
	TimelineStarted     TimelineKind = "started"     // its process was started
	TimelineRestarted   TimelineKind = "restarted"   // its process was started again
	TimelineAdopted     TimelineKind = "adopted"     // another supervisor has taken it over; earlier events are not known
	TimelineReady       TimelineKind = "ready"       // it has answered for the first time since its start
	TimelineInterrupted TimelineKind = "interrupted" // a client has interrupted it by REST
	TimelineKept        TimelineKind = "kept"        // its owner keeps it, or no longer
	TimelineWarning     TimelineKind = "warning"     // what its users are warned of
	TimelineDied        TimelineKind = "died"        // it ended and is started again
	TimelineDead        TimelineKind = "dead"        // it ended for good
)

// TimelineEvent is one event of a kernel's life.
type TimelineEvent struct {
	At   time.Time    `json:"at"` // UTC
	Kind TimelineKind `json:"kind"`
	Text string       `json:"text,omitempty"` // one line
}

// Timeline is a kernel's life as its supervisor has seen it: the answer of GET /api/kernels/{id}/timeline. Both lists
// are bounded. The first step of Busy begins at Since. The last one ends at Until or later.
type Timeline struct {
	Since   time.Time       `json:"since"`          // UTC
	Until   time.Time       `json:"until"`          // UTC; now
	Events  []TimelineEvent `json:"events"`         // oldest first
	Dropped int             `json:"events_dropped"` // events that are no longer kept
	Step    float64         `json:"step_seconds"`   // length of a step; it doubles as the kernel gets older
	Busy    []float64       `json:"busy_seconds"`   // for each step, how long the kernel was busy

	Memory   int64     `json:"memory,omitempty"`   // as in Model
	MemoryAt time.Time `json:"memory_at,omitzero"` // UTC; when it was measured
}
