package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

const (
	drainLimit  = time.Second      // to read what a kernel sent just before it ended
	slowStart   = 10 * time.Second // if connecting takes longer, the model's reason says so
	redialProof = 5 * time.Second  // for a kernel to answer a known identity on new connections
	redialLimit = 5                // after more broken connections in a row a living kernel is killed
)

// outcome is how one life of the kernel's process ended.
type outcome struct {
	op      *operation // the operation that ended it; nil: it ended by itself
	reason  string     // one sentence, if there was no operation
	fatal   bool       // another start would fail too
	died    bool       // it was up, and ended by itself
	culled  string     // the limit of Config.Cull that ended it; "": it was not culled
	retry   bool       // another process took a port: start again at once
	started time.Time
}

// life is one life of the kernel's process. One goroutine follows it.
type life struct {
	// Fixed.
	s       *Supervisor
	started *starter.Started
	proc    starter.Process // of started
	next    chan *bridge    // capacity 1: a bridge that is connected and not started

	broken    <-chan error // the present bridge's first error; nil: not connected
	redials   int          // broken connections in a row
	lastBreak time.Time
	slow      *time.Timer // the kernel should have answered
	proof     *time.Timer // it should have answered on connections that replace broken ones
	nextLook  *time.Timer // when to check next whether the kernel is to be culled
	meter     meter

	// The attempt to connect that is in progress, if any.
	dialing sync.WaitGroup
	abandon context.CancelFunc
}

// runLife starts the kernel's process and returns when it has ended. op is the restart that asked for it, or nil.
func (s *Supervisor) runLife(ctx context.Context, op *operation) (out outcome) {
	l := &life{s: s}
	if !l.begin(ctx, op, &out) {
		return out
	}
	s.logger.Info("kernel started", logkey.Epoch, s.kernel.epoch, logkey.PID, l.proc.PID(), logkey.Adopted,
		l.started.Adopted)
	l.next, l.meter = make(chan *bridge, 1), meter{load: activity.NewLoad(&s.cfg.Cull)}
	l.slow, l.proof, l.nextLook = time.NewTimer(s.slowStart), time.NewTimer(s.slowStart), time.NewTimer(0)
	l.proof.Stop()
	if !activity.Ends(&s.cfg.Cull) {
		l.nextLook.Stop()
	}
	if l.started.Adopted {
		l.proof.Reset(s.redialProof)
	}
	defer l.slow.Stop()
	defer l.proof.Stop()
	defer l.nextLook.Stop()
	defer l.disconnect()
	l.watchGPUs()
	defer l.s.parker.Begin(ctx, l.proc, l.started.Adopted, l.giveUp)()
	l.connect(ctx)
	l.watch(ctx, &out)
	l.takeSamples()
	return out
}

// connect closes the present connections and dials new ones in the background. The bridge comes on l.next.
func (l *life) connect(ctx context.Context) {
	l.disconnect()
	ctx, l.abandon = context.WithCancel(ctx)
	identity := l.s.identity
	l.dialing.Go(func() {
		if err := l.started.Await(ctx); err != nil {
			if !errors.Is(err, context.Canceled) {
				l.giveUp(err.Error())
			}
			return
		}
		b, err := l.s.openBridge(ctx, &l.started.Connection, identity)
		switch {
		case err == nil:
			l.next <- b
		case ctx.Err() == nil:
			l.giveUp(fmt.Sprintf("the kernel's program does not speak Jupyter's protocol: %v", err))
		}
	})
}

// disconnect closes the present bridge and ends the attempt to connect another.
func (l *life) disconnect() {
	if l.abandon != nil {
		l.abandon()
		l.dialing.Wait()
		select {
		case b := <-l.next:
			b.closeSockets()
		default:
		}
	}
	l.broken = nil
	l.setBridge(nil)
}

// giveUp kills a kernel that cannot be used. verdict becomes the reason of its end.
func (l *life) giveUp(verdict string) {
	l.s.mu.Lock()
	l.s.kernel.killReason = verdict
	l.s.mu.Unlock()
	l.proc.Kill()
}

// watch follows a running process until it has ended. It carries out operations and replaces broken connections.
func (l *life) watch(ctx context.Context, out *outcome) {
	for {
		select {
		case <-l.slow.C:
			if !l.explainSilence() {
				l.slow.Reset(l.s.slowStart)
			}
		case <-l.proof.C:
			l.renewIdentity(ctx)
		case <-l.nextLook.C:
			if l.cull(out) {
				return
			}
		case <-l.s.culling.changed:
			if l.cull(out) {
				return
			}
		case <-l.s.gpusSampled:
			l.takeSamples()
		case <-l.s.timeline.memoryDue:
			l.proc.MeasureMemory()
		case b := <-l.next:
			l.setBridge(b)
			b.start()
			l.broken = b.failed
		case err := <-l.broken:
			l.broken = nil
			l.reconnect(ctx, err)
		case out.op = <-l.s.operations.requested:
			l.stopProcess(!out.op.stop)
			l.finish(out)
			return
		case <-ctx.Done():
			out.op = stopBySignal()
			l.stopProcess(false)
			l.finish(out)
			return
		case <-l.proc.Done():
			l.finish(out)
			return
		}
	}
}

// cull ends the kernel if that is due, and reports whether it did. Otherwise it sets the time of the next look.
func (l *life) cull(out *outcome) bool {
	next := l.measure()
	l.s.mu.Lock()
	reason, limit, pause := l.s.culling.check(l.s.assigning.warm)
	l.s.mu.Unlock()
	if reason == "" {
		l.nextLook.Reset(min(pause, next))
		return false
	}
	l.s.logger.Info("kernel is culled", logkey.Reason, reason, logkey.Limit, limit)
	l.s.mu.Lock()
	l.s.kernel.killReason = reason
	l.s.mu.Unlock()
	out.culled = limit
	l.stopProcess(false)
	l.finish(out)
	return true
}

// explainSilence sets the reason of a kernel that has not answered for long. It reports false if the kernel may just
// compute.
func (l *life) explainSilence() bool {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.kernel.connected():
	case s.kernel.mayBeDeaf(s.use.State()):
		return false
	case s.use.State() == api.Starting || s.use.State() == api.Restarting:
		s.kernel.reason = "the kernel's program is running but has not answered yet"
	default:
		s.kernel.reason = "the connection to the kernel broke, and its program does not answer on a new one"
	}
	return true
}

// reconnect replaces the connections to a kernel that still runs. Most connections break because the kernel ends, so it
// waits for that first. A kernel knows the supervisor by its identity. It answers earlier requests to a new connection
// with the same identity.
func (l *life) reconnect(ctx context.Context, err error) {
	if goroutines.Within(l.proc.Done(), process.OutputGrace) {
		return
	}
	if l.proc.Unreachable() { // it ends, or its child returns; operations do not wait for that
		again := make(chan error, 1)
		time.AfterFunc(process.OutputGrace, func() { again <- err })
		l.broken = again
		return
	}
	starter.EndSilentListener(l.proc)
	now := l.s.now()
	if now.Sub(l.lastBreak) > stableLife {
		l.redials = 0
	}
	l.lastBreak = now
	l.redials++
	l.s.logger.Warn("connection to the kernel broke", logkey.Err, err, logkey.Attempt, l.redials)
	if l.redials > redialLimit {
		l.giveUp("its connections broke repeatedly: " + err.Error())
		return
	}
	l.disconnect()
	l.s.mu.Lock()
	l.s.clients.markDoubtful()
	l.s.mu.Unlock()
	l.connect(ctx)
	l.slow.Reset(l.s.slowStart)
	l.proof.Reset(l.s.redialProof)
}

// renewIdentity takes a new identity if the kernel does not answer the old one. A kernel without handover ignores a new
// connection while it takes the old one for open. Requests under the old identity are lost.
func (l *life) renewIdentity(ctx context.Context) {
	l.s.mu.Lock()
	ready := l.s.kernel.connected()
	l.s.mu.Unlock()
	if ready {
		return
	}
	l.s.logger.Warn("kernel does not answer its old identity; taking a new one")
	l.disconnect()
	l.s.mu.Lock()
	l.s.clients.giveUpDoubtful()
	l.s.identity = []byte(jupyter.NewID())
	l.s.mu.Unlock()
	l.connect(ctx)
}

// finish handles the end of a process: its last output, its exit status, and the requests that are left.
func (l *life) finish(out *outcome) {
	s := l.s
	s.mu.Lock()
	b := s.kernel.bridge
	s.mu.Unlock()
	if b != nil {
		b.drain(drainLimit)
	}
	exit := l.proc.Exit()
	if exit.Lost {
		s.held.leave() // the process may live
	}
	s.mu.Lock()
	output := l.proc.LastOutput(4096, exit.LastWordsSince(s.clients.cellBegan))
	wasUp := !s.clients.cellBegan.IsZero()
	s.clients.cellBegan = time.Time{}
	s.mu.Unlock()
	out.reason = exit.Describe(output, starter.PlaceOf(&s.cfg))
	defer func() {
		if b != nil {
			b.close()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	everUp := s.kernel.everUp()
	switch {
	case out.op != nil:
		out.reason = out.op.reason
	case s.kernel.killReason != "":
		out.reason = s.kernel.killReason
	}
	out.retry = out.op == nil && !everUp && connectionfile.PortTaken(&s.cfg, output)
	out.fatal = !everUp
	if out.died = wasUp && out.op == nil && out.culled == ""; out.died {
		s.kernel.death.die(exit.At, out.reason)
	}
	s.endRequestsLocked(out)
}

// endRequestsLocked ends all requests, because the kernel will not answer them.
func (s *Supervisor) endRequestsLocked(out *outcome) {
	s.kernel.end()
	s.clients.lastParent, s.clients.broken = nil, nil // connections of a kernel that ends break before it has ended
	s.notices.Waiting.End("")
	if out.op != nil && !out.op.stop {
		s.clients.abortAll("aborted", "KernelRestarted", "the kernel was restarted")
		return
	}
	if out.culled != "" {
		s.culling.announce(out.reason)
	} else if out.died {
		s.clients.announceDeath(s.kernel.death.Death)
	} else if r := s.clients.requests.OldestCell(); r != nil && r.Session != noSession {
		s.log.Append(r.Session, s.notices.Line(r.Header, "The kernel died: %s", out.reason), true)
	}
	s.clients.abortAll("error", "KernelDied", out.reason)
}

// setBridge makes b the present bridge and closes the previous one.
func (l *life) setBridge(b *bridge) {
	l.s.mu.Lock()
	old := l.s.kernel.setBridge(b)
	l.s.mu.Unlock()
	if old != nil {
		old.close()
	}
}
