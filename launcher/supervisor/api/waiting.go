package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// The classes of Waiting.
const (
	WaitingClass = "waiting" // the container has not started yet, or not again
	NeverClass   = "never"   // the container will never start: a kernel that waits for it is dead
	DiedClass    = "died"    // the container has ended
)

// Waiting says why the kernel's container is missing or has ended, as the cluster reports it.
type Waiting struct {
	Class   string `json:"class"`
	Text    string `json:"text"`    // one sentence for the kernel's owner; "" clears the earlier one
	Version uint64 `json:"version"` // grows; an older or equal version is ignored
	Pulled  *Pull  `json:"pulled,omitempty"`
}

// Pull is the pull of an image for the kernel's container.
type Pull struct {
	Image string        `json:"image"`
	At    time.Time     `json:"at"`      // when it was complete
	Took  time.Duration `json:"took_ns"` // 0 if it is not known
}

// UnmarshalJSON accepts a version as a number or as a string of digits.
func (w *Waiting) UnmarshalJSON(b []byte) error {
	var raw struct {
		Class   string          `json:"class"`
		Text    string          `json:"text"`
		Version json.RawMessage `json:"version"`
		Pulled  *Pull           `json:"pulled"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	version, err := strconv.ParseUint(strings.Trim(string(raw.Version), `"`), 10, 64)
	if err != nil {
		return err
	}
	*w = Waiting{Class: raw.Class, Text: raw.Text, Version: version, Pulled: raw.Pulled}
	return nil
}
