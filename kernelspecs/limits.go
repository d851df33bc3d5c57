package kernelspecs

import (
	"encoding/json"
	"errors"
)

// Limits is metadata.ekg.limits of a kernelspec: how many kernels of it there may be at one time. What is nil is as the operator
// has it for all kernelspecs, who also sets how far a kernelspec can go.
type Limits struct {
	MaxKernels *Count `json:"maxKernels,omitempty"`
}

// Count is a number of things, from 1 on.
type Count int

var errCount = errors.New("is not a number from 1 to 1000000")

// UnmarshalJSON reads a number from 1 on.
func (c *Count) UnmarshalJSON(b []byte) error {
	var n int
	if json.Unmarshal(b, &n) != nil || n < 1 || n > 1e6 {
		return valueError{errCount}
	}
	*c = Count(n)
	return nil
}
