package supervisor

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

const (
	nudgeInterval = 500 * time.Millisecond // between kernel_info_requests until the kernel is ready, as in jupyter_server
	nudgeQuickly  = 10 * time.Second       // after this time nudgeRarely holds
	nudgeRarely   = 5 * time.Second        // between further requests
	nudgeSoon     = 5 * time.Millisecond   // after the first reply whose status iopub has missed; doubles to nudgeInterval
)

// nudged are the channels on which the supervisor asks a kernel whether it is ready. Old kernels do not answer on
// control; busy kernels do not answer on shell.
var nudged = [...]jupyter.Channel{jupyter.Control, jupyter.Shell}

func (b *bridge) question(c jupyter.Channel) jupyter.Message {
	return jupyter.New(c, "kernel_info_request", b.own, nil, struct{}{})
}

// nudge sends kernel_info_requests until the kernel is ready. Output is missed until the kernel has seen the
// subscription, and only an answer on iopub proves that. Each request has a new id, since kernels ignore repeated
// signatures.
//
// A kernel may reply before it has seen the subscription. Such a kernel reads, so it is asked again soon, a few times.
func (b *bridge) nudge(ctx context.Context) {
	tick := time.NewTicker(nudgeInterval)
	defer tick.Stop()
	begun, soon := time.Now(), nudgeSoon
	for questions := b.first; ; {
		select {
		case <-b.missed: // the reply to an earlier request
		default:
		}
		for _, c := range nudged {
			if err := b.sockets[c].Send(questions[c].Frames(b.signer)); err != nil {
				b.fail(err)
				return
			}
			questions[c] = b.question(c)
		}
		if !b.awaitReply(ctx, tick.C, soon) {
			return
		}
		soon = min(2*soon, nudgeInterval)
		if time.Since(begun) > nudgeQuickly {
			tick.Reset(nudgeRarely)
		}
	}
}

// awaitReply waits until the kernel is to be asked again: at the next tick, or soon after a reply whose status iopub
// has missed. It returns false if the kernel is ready or ctx has ended.
func (b *bridge) awaitReply(ctx context.Context, tick <-chan time.Time, soon time.Duration) bool {
	missed := b.missed
	if soon >= nudgeInterval {
		missed = nil
	}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-b.nudged:
			return false
		case <-tick:
			return true
		case <-missed:
			missed, again = nil, time.After(soon)
		case <-again:
			return true
		}
	}
}
