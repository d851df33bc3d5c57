package api

import (
	"encoding/json"
	"time"
)

// Death is the last end of a kernel that nobody has asked for. Its variables were lost.
type Death struct {
	At     time.Time `json:"at"`     // UTC; when it was found, if the kernel's supervisor was away
	Reason string    `json:"reason"` // one sentence
}

// NewDeath returns a Death whose time is the same in JSON.
func NewDeath(at time.Time, reason string) Death {
	return Death{At: at.UTC().Round(0).Truncate(time.Microsecond), Reason: reason}
}

// MarshalJSON writes the time in TimeFormat.
func (d Death) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"at": Timestamp(d.At), "reason": d.Reason})
}

// Text returns what a kernel's owner reads about it until the next cell.
func (d Death) Text() string {
	return "it died at " + ShownTime(d.At) + ", and its variables are gone: " + d.Reason
}

// ShownTime returns a time as users read it in sentences.
func ShownTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
