package zeromq

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// Heartbeat asks a kernel's heartbeat channel whether its process responds: a REP or ROUTER that echoes messages. All
// fields are required.
type Heartbeat struct {
	Endpoint string
	Interval time.Duration // between an answer and the next question, and between attempts to connect
	Limits   Limits
	// Answered is called for each answer, with the time of the question. The function that it returns is called when the
	// next question has had no answer for two intervals. The answer may come at the same time, so it may be called too
	// late.
	Answered func(asked time.Time) (missed func())
	Failed   func(error) // called when a connection cannot be made
}

// Run asks until ctx ends. It connects again whenever the connection breaks.
func (h *Heartbeat) Run(ctx context.Context) {
	for {
		if s, err := Dial(ctx, h.Endpoint, Dealer, nil, h.Limits); err == nil {
			h.askOn(ctx, s)
		} else if ctx.Err() == nil {
			h.Failed(err)
		}
		if goroutines.Sleep(ctx, h.Interval) != nil {
			return
		}
	}
}

// askOn asks on one connection until it breaks or ctx ends. It asks one question at a time: a kernel that was stopped
// for a week must not find a week's questions.
func (h *Heartbeat) askOn(ctx context.Context, s Socket) {
	defer s.Close()                                      //nolint:errcheck // never fails
	defer context.AfterFunc(ctx, func() { s.Close() })() //nolint:errcheck // never fails
	missed := func() {}                                  // until the first answer the kernel may have no heartbeat at all
	for {
		asked := time.Now()
		// A REP socket needs the empty frame; a ROUTER sends both back.
		if err := s.Send([][]byte{{}, []byte("ping")}); err != nil {
			return
		}
		late := time.AfterFunc(2*h.Interval, missed)
		_, err := s.Recv()
		late.Stop()
		if err != nil {
			return
		}
		missed = h.Answered(asked)
		if goroutines.Sleep(ctx, h.Interval) != nil {
			return
		}
	}
}
