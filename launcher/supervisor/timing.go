package supervisor

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connection"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// timing holds the clocks and the bounds that tests change. It is fixed, but for instant.
type timing struct {
	now         func() time.Time
	sinceBoot   func() time.Duration
	slowStart   time.Duration // these two are the constants of their names
	redialProof time.Duration
	beat        time.Duration // between heartbeats
	logPatience time.Duration // logstream.Patience

	kernelLimits zeromq.Limits // bridgeLimits
	maxMessage   int64         // bytes of a client's message

	instant time.Time // see nowLocked; zero but while a message is delivered; guarded by Supervisor.mu
}

func realTiming() timing {
	return timing{
		now: time.Now, sinceBoot: proctree.SinceBoot, slowStart: slowStart, redialProof: redialProof,
		beat: heartbeatInterval, logPatience: logstream.Patience,
		kernelLimits: bridgeLimits, maxMessage: connection.MaxMessage,
	}
}

// nowLocked returns the time. While a message is delivered, it is the time at which that began.
func (t *timing) nowLocked() time.Time {
	if !t.instant.IsZero() {
		return t.instant
	}
	return t.now()
}
