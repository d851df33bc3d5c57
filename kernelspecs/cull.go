package kernelspecs

import (
	"encoding/json"
	"errors"
	"reflect"
	"time"
)

// Cull is metadata.ekg.cull of a kernelspec: when its kernels are ended for not being used. What is nil is as the operator has
// it for all kernels, who also sets how far a kernelspec can go.
type Cull struct {
	IdleTimeout *Duration `json:"idleTimeout,omitempty"` // 0: never for being idle
	BusyLimit   *Duration `json:"busyLimit,omitempty"`   // of one request; 0: none
	MaxAge      *Duration `json:"maxAge,omitempty"`      // 0: none
	Warning     *Duration `json:"warning,omitempty"`     // before the end; 0: none
}

// Duration is a span of time; in JSON a text like "2h" or "1h30m".
type Duration time.Duration

var errDuration = errors.New(`is not a duration like "2h", "30m" or "0"`)

// UnmarshalJSON reads a duration that is not negative.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		return valueError{errDuration}
	}
	v, err := time.ParseDuration(text)
	if err != nil || v < 0 {
		return valueError{errDuration}
	}
	*d = Duration(v)
	return nil
}

// MarshalJSON writes what UnmarshalJSON reads.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// valueError is what a type says of a value that it cannot read, as the end of a sentence.
type valueError struct{ error }

// decodeMember reads a member of metadata.ekg, and reports what is wrong with it.
func decodeMember[T any](r *reader, n *node, path string, into *T) {
	d := decoder{places: Places{spec: r.spec, file: r.file, lines: map[string]int{}}}
	d.decode(n, reflect.ValueOf(into).Elem(), path)
	r.problems = append(r.problems, d.problems...)
}
