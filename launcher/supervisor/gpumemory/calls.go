package gpumemory

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpucalls"
)

// Calls is what is known of the first calls of CUDA of a kernel's processes; see package gpucalls.
type Calls struct {
	Held bool      // they wait until they are passed
	Why  string    // why they are not held; "": it was not asked for
	At   time.Time // when it was last heard that one waits; zero: none does
}

// Wait reports whether a call waits. That is heard again and again while it does.
func (c *Calls) Wait(now time.Time) bool { return !c.At.IsZero() && now.Sub(c.At) < 3*gpucalls.Repeat }
