package api

import "time"

// FailingFile is the file beside a Config on one machine that holds a Failing. It exists while a supervisor's parent
// starts supervisors that fail.
const FailingFile = "failing.json"

// Failing says why a kernel has no supervisor at present.
type Failing struct {
	Reason string    `json:"reason"` // one sentence
	At     time.Time `json:"at"`     // UTC
}
