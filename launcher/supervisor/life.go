package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	drainLimit  = time.Second      // for what a kernel sent just before it ended
	slowStart   = 10 * time.Second // a connection that takes longer is given a reason
	redialProof = 5 * time.Second  // for a kernel to answer the identity that it knows, on new connections
	redialLimit = 5                // broken connections to a living kernel in a row before it is given up
)

// outcome is how one life of the kernel's process ended.
type outcome struct {
	op      *operation // somebody wanted it
	reason  string     // otherwise: one sentence
	fatal   bool       // there is no point in trying again
	culled  string     // the limit of Config.Cull that wanted it, "" if none did
	retry   bool       // a port was lost: try again at once
	started time.Time
}

// life is one life of the kernel's process, seen by the one goroutine that follows it.
type life struct {
	// Fixed.
	s      *Supervisor
	proc   kernelProcess
	ep     endpoints
	signer *wire.Signer
	next   chan *bridge // capacity 1: connected and not started

	broken    <-chan error // of the present bridge
	redials   int          // in a row
	lastBreak time.Time
	slow      *time.Timer // the kernel should have answered by now
	proof     *time.Timer // likewise, on connections that replace broken ones
	look      *time.Timer // it is time to see whether the kernel is to be culled
	asked     time.Time   // when use was measured last
	used      processUse  // what of it was judged last
	processor sign        // of work: the processors' time
	gpu       sign        // likewise, the GPUs'
	doubted   bool        // the last look at GPUs does not confirm gpu
	awaiting  bool        // what a look at GPUs has seen was not told yet

	// The attempt to connect that is in progress, if any.
	dialing sync.WaitGroup
	abandon context.CancelFunc
}

// oneLife starts the kernel's process and returns when it has ended. op, if any, is the restart that asked for it.
func (s *Supervisor) oneLife(ctx context.Context, op *operation) outcome {
	out := outcome{started: s.now()}
	c, proc, adopted, err := s.launch(ctx)
	if errors.Is(err, errNoChild) {
		s.begin(nil, op) // whoever asked need not wait for the container
		if op != nil {
			s.settle(op, nil)
			op = nil
		}
		for errors.Is(err, errNoChild) {
			if !s.awaitContainer(ctx, &out) {
				return out
			}
			out.started = s.now()
			c, proc, adopted, err = s.launch(ctx)
		}
		s.setProcess(proc)
	} else {
		s.begin(proc, op)
	}
	if op != nil {
		s.settle(op, err)
	}
	if err != nil {
		out.reason, out.fatal = sentence(err), true
		if s.container != nil {
			s.closeLife(&out)
		}
		return out
	}
	s.logger.Info("kernel started", "epoch", s.epoch, "pid", proc.pid(), "adopted", adopted)
	l := &life{s: s, proc: proc, ep: c.ep, signer: c.signer, next: make(chan *bridge, 1), slow: time.NewTimer(s.slowStart),
		proof: time.NewTimer(s.slowStart), look: time.NewTimer(0), processor: s.cfg.Cull.expected(s.cfg.Cull.CPU), gpu: s.cfg.Cull.expected(s.cfg.Cull.GPU)}
	l.proof.Stop()
	if !s.cfg.Cull.ends() {
		l.look.Stop()
	}
	if adopted {
		l.proof.Reset(s.redialProof)
	}
	defer l.slow.Stop()
	defer l.proof.Stop()
	defer l.look.Stop()
	defer l.disconnect()
	l.connect(ctx)
	l.watch(ctx, &out)
	return out
}

// launch starts the kernel's process, or takes over the one that an earlier supervisor has started.
func (s *Supervisor) launch(ctx context.Context) (c connection, p kernelProcess, adopted bool, err error) {
	if s.container != nil {
		return s.launchRemote(ctx)
	}
	if c, err = newConnection(&s.cfg); err != nil {
		return c, nil, false, err
	}
	if err := writeFile(s.cfg.ConnectionFile, c.content); err != nil {
		return c, nil, false, fmt.Errorf("connection file: %w", err)
	}
	own, err := startProcess(s.cfg, command(&s.cfg), s.logger)
	if err != nil {
		return c, nil, false, err
	}
	own.seen = func() { poke(s.useNews) }
	return c, own, false, nil
}

// connect dials in the background; the bridge comes on l.next. What was connected before is closed first.
func (l *life) connect(ctx context.Context) {
	l.disconnect()
	ctx, l.abandon = context.WithCancel(ctx)
	identity := l.s.identity
	l.dialing.Add(1)
	go func() {
		defer l.dialing.Done()
		b, err := l.s.openBridge(ctx, l.ep, identity, l.signer)
		switch {
		case err == nil:
			l.next <- b
		case ctx.Err() == nil:
			l.giveUp(fmt.Sprintf("the kernel's program does not speak Jupyter's protocol: %v", err))
		}
	}()
}

// disconnect closes the present bridge and ends the attempt to connect another, if there are any.
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
	l.s.setBridge(nil)
}

// giveUp ends a kernel that is of no use, and says why.
func (l *life) giveUp(verdict string) {
	l.s.mu.Lock()
	l.s.verdict = verdict
	l.s.mu.Unlock()
	l.proc.kill()
}

// watch follows a running process until it has ended: it takes operations, and mends broken connections.
func (l *life) watch(ctx context.Context, out *outcome) {
	for {
		select {
		case <-l.slow.C:
			l.s.explainSilence()
		case <-l.proof.C:
			l.renew(ctx)
		case <-l.look.C:
			if l.cull(out) {
				return
			}
		case <-l.s.useNews:
			if l.cull(out) {
				return
			}
		case b := <-l.next:
			l.s.setBridge(b)
			b.start()
			l.broken = b.failed
		case err := <-l.broken:
			l.broken = nil
			l.mend(ctx, err)
		case out.op = <-l.s.ops:
			l.s.stopProcess(l.proc, !out.op.stop)
			l.ended(out)
			return
		case <-ctx.Done():
			out.op = l.s.terminated()
			l.s.stopProcess(l.proc, false)
			l.ended(out)
			return
		case <-l.proc.done():
			l.ended(out)
			return
		}
	}
}

// cull ends the kernel if that is due, and reports whether it has. Else it sets the time of the next look.
func (l *life) cull(out *outcome) bool {
	next := l.measure()
	reason, limit, pause := l.s.considerCull()
	if reason == "" {
		l.look.Reset(min(pause, next))
		return false
	}
	l.s.logger.Info("kernel is culled", "reason", reason, "limit", limit)
	l.s.mu.Lock()
	l.s.verdict = reason
	l.s.mu.Unlock()
	out.culled = limit
	l.s.stopProcess(l.proc, false)
	l.ended(out)
	return true
}

// explainSilence says why a kernel that has not answered for long is not ready.
func (s *Supervisor) explainSilence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.bridge != nil && s.bridge.ready:
		return
	case s.clock.state == stateStarting || s.clock.state == stateRestarting:
		s.reason = "the kernel's program is running but has not answered yet"
	default:
		s.reason = "the connection to the kernel broke, and its program does not answer on a new one"
	}
	s.changed()
}

// mend replaces the connections to a kernel that still runs. Most often they break because it ends, which is waited
// for. The kernel knows us by our identity: with the same one it goes on to answer what it was asked.
func (l *life) mend(ctx context.Context, err error) {
	if waitFor(l.proc.done(), outputGrace) || l.proc.ending() && waitFor(l.proc.done(), childReturns+outputGrace) {
		return
	}
	now := l.s.now()
	if now.Sub(l.lastBreak) > stableLife {
		l.redials = 0
	}
	l.lastBreak = now
	l.redials++
	l.s.logger.Warn("connection to the kernel broke", "err", err, "attempt", l.redials)
	if l.redials > redialLimit || errors.Is(err, errZMTP) {
		l.giveUp("its connections broke again and again: " + sentence(err))
		return
	}
	l.disconnect()
	l.s.doubtOutstanding()
	l.connect(ctx)
	l.slow.Reset(l.s.slowStart)
	l.proof.Reset(l.s.redialProof)
}

// renew takes a new identity where the kernel does not answer the one it knows: kernels without handover ignore a new
// connection as long as they think that the old one stands. What was asked under the old identity is lost with it.
func (l *life) renew(ctx context.Context) {
	l.s.mu.Lock()
	ready := l.s.bridge != nil && l.s.bridge.ready
	l.s.mu.Unlock()
	if ready {
		return
	}
	l.s.logger.Warn("kernel does not answer its old identity; taking a new one")
	l.disconnect()
	l.s.giveUpOutstanding()
	l.s.identity = []byte(wire.NewID())
	l.connect(ctx)
}

// ended settles what a process has left: its last output, its exit, the rest of its group.
func (l *life) ended(out *outcome) {
	s := l.s
	s.mu.Lock()
	b := s.bridge
	s.mu.Unlock()
	if b != nil {
		b.drain(drainLimit)
	}
	words := l.proc.lastWords(4096)
	out.reason = describeExit(l.proc.exit(), words)
	defer func() {
		if b != nil {
			b.close()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bridge = nil                                // nothing that it still says is of interest
	everReady := s.kernelInfo != nil || s.adopted // in any of its lives
	switch {
	case out.op != nil:
		out.reason = out.op.reason
	case s.verdict != "":
		out.reason = s.verdict
	}
	out.retry = out.op == nil && !everReady && lostPort(&s.cfg, words)
	out.fatal = !everReady
	s.proc = nil
	s.endRequests(out)
}

// closeLife ends what clients have asked of a kernel that could not be started.
func (s *Supervisor) closeLife(out *outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.op != nil {
		out.reason = out.op.reason
	}
	s.endRequests(out)
}

// endRequests ends what clients have asked: a kernel will not answer any more. s.mu is held.
func (s *Supervisor) endRequests(out *outcome) {
	s.lastParent = nil
	for _, c := range channels {
		s.gates[c].clear()
	}
	s.clearWaiting()
	if out.op != nil && !out.op.stop {
		s.abortOutstanding("aborted", "KernelRestarted", "the kernel was restarted")
		return
	}
	if out.culled != "" {
		s.sayCulled(out.reason)
	} else if r := s.oldestCell(); r != nil && r.session != nil {
		s.log.append(r.session, s.notice(r.header, "The kernel died: %s", out.reason), true)
	}
	s.abortOutstanding("error", "KernelDied", out.reason)
}

// begin notes a new life of the kernel: an epoch of its own. s.settle follows for the operation that asked.
func (s *Supervisor) begin(proc kernelProcess, op *operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	s.runs(proc)
	s.reason, s.verdict, s.computes = "", "", s.cfg.Cull.measures()
	switch {
	case op != nil:
		s.clock.reset(stateStarting)
		// Whoever comes back after a restart that somebody asked for begins with the new life.
		s.floor = s.log.tail()
		for _, sess := range s.sessions {
			sess.floor, sess.resume = s.floor, s.floor
		}
	case s.clock.state == stateRestarting:
		s.clock.reset(stateRestarting)
	}
	s.showWaiting()
	s.changed()
}

// setProcess notes that the life that begin has noted has a process now.
func (s *Supervisor) setProcess(proc kernelProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs(proc)
	s.showWaiting()
	s.changed()
}

// runs notes the kernel's present process, or that there is none. s.mu is held.
func (s *Supervisor) runs(proc kernelProcess) {
	s.proc = proc
	if proc != nil {
		s.waiting.Text = "" // whatever it was, it is over
	}
}

// setBridge makes b the present bridge and closes the one before.
func (s *Supervisor) setBridge(b *bridge) {
	s.mu.Lock()
	old := s.bridge
	s.bridge = b
	if s.silent {
		s.silent = false
		s.changed()
	}
	if b == nil {
		for _, c := range channels {
			s.gates[c].set(false)
		}
	}
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
}

// stopProcess ends a kernel the friendly way first, and returns when its process has ended.
func (s *Supervisor) stopProcess(proc kernelProcess, restart bool) {
	s.mu.Lock()
	b := s.bridge
	s.mu.Unlock()
	if b != nil {
		// The kernel may not read: the request must not hold up what follows.
		b.run(func() {
			if err := b.request(wire.Control, "shutdown_request", map[string]bool{"restart": restart}); err != nil {
				b.fail(err)
			}
		})
		if waitFor(proc.done(), s.cfg.StopGrace) {
			return
		}
	}
	if err := proc.signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, errNoChild) {
		s.logger.Warn("SIGTERM was not delivered", "err", err)
	}
	if waitFor(proc.done(), s.cfg.StopGrace) {
		return
	}
	proc.kill()
	<-proc.done()
}

func waitFor(done <-chan struct{}, limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
