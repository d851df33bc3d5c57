package kernelspecs

import (
	"encoding/json"
	"errors"
	"reflect"
	"time"
)

// CullTimes is metadata.ekg.cull of a kernelspec: when its kernels are culled. A nil field means the operator's setting
// for all kernels, which the operator has none of for CPU. The operator also bounds what a kernelspec can set.
type CullTimes struct {
	IdleTimeout *Duration `json:"idleTimeout,omitempty"` // 0: idle kernels are not culled
	BusyLimit   *Duration `json:"busyLimit,omitempty"`   // of one request; 0: no limit
	MaxAge      *Duration `json:"maxAge,omitempty"`      // 0: no limit
	Warning     *Duration `json:"warning,omitempty"`     // before the end; 0: no warning
	CPU         float64   `json:"cpu,omitempty"`         // more processors in use: not idle; 0: they are not measured
}

// Duration is a length of time; in JSON a string like "2h" or "1h30m".
type Duration time.Duration

var errDuration = errors.New(`is not a duration like "2h", "30m" or "0"`)

// UnmarshalJSON decodes a duration that is not negative.
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

// MarshalJSON encodes a duration for UnmarshalJSON.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// valueError is a type's own text for an invalid value, such as "is not a duration". It is printed after the value.
type valueError struct{ error }

// decodeMember decodes a member of metadata.ekg and reports its problems.
func decodeMember[T any](r *reader, n *node, path string, into *T) {
	d := decoder{places: Places{spec: r.spec, file: r.file, lines: map[string]int{}}}
	d.decode(n, reflect.ValueOf(into).Elem(), path)
	r.problems = append(r.problems, d.problems...)
}
