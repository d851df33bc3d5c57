package kernelspecs

import (
	"encoding/json"
	"errors"
)

// Limits is metadata.ekg.limits of a kernelspec: how many of its kernels may exist at a time. A nil field means the
// operator's setting for all kernelspecs. The operator also bounds what a kernelspec can set.
type Limits struct {
	MaxKernels *Count `json:"maxKernels,omitempty"`
}

// Count is a number from 1 to 1,000,000.
type Count int

var errCount = errors.New("is not a number from 1 to 1000000")

// UnmarshalJSON decodes a number from 1 to 1,000,000.
func (c *Count) UnmarshalJSON(b []byte) error {
	var n int
	if json.Unmarshal(b, &n) != nil || n < 1 || n > 1e6 {
		return valueError{errCount}
	}
	*c = Count(n)
	return nil
}
