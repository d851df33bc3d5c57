package supervisor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	dialRetry     = 20 * time.Millisecond  // between attempts to connect to a kernel that is not listening yet
	dialRetryMost = 250 * time.Millisecond // likewise, to one that has not been for long
	nudgeInterval = 500 * time.Millisecond // between kernel_info_requests until the kernel is ready, as jupyter_server
	nudgesQuick   = 20                     // so many; a kernel that has not answered these is asked more rarely
	nudgeRarely   = 5 * time.Second        // then
)

// bridgeLimits are the defaults but for the time that a kernel may take nothing of what it is sent: one whose shell is
// busy for hours stops reading when its queue (1,000 messages in most) is full. The gates bound what then waits here,
// and the end of the process ends the wait.
var bridgeLimits = socketLimits{Write: 10 * 365 * 24 * time.Hour}

// channels are the kernel's channels that carry messages, in the order in which they are connected: iopub last, so
// that a subscription means that all is there.
var channels = [...]wire.Channel{wire.Shell, wire.Control, wire.Stdin, wire.IOPub}

// bridge is one set of ZeroMQ connections to one life of the kernel's process. Its goroutines are started by open and
// awaited by close: a reader for each channel, a sender for each but iopub, one that nudges the kernel until it is
// ready, and one for the heartbeat.
type bridge struct {
	// Fixed.
	log     *slog.Logger
	signer  *wire.Signer
	sockets [wire.IOPub + 1]socket
	gates   *[wire.IOPub + 1]*gate
	deliver func(*bridge, wire.Message)
	unsent  func(*request)                // the kernel may not have got it
	beaten  func(*bridge) (missed func()) // the heartbeat was answered; missed is for when the next is not
	beat    time.Duration                 // between heartbeats
	sent    *flows                        // counts what was sent through the gates
	hb      string                        // the heartbeat's endpoint
	first   [wire.IOPub + 1]wire.Message  // the first question on shell and control
	firstID [wire.IOPub + 1]string        // its id
	own     string                        // session id of our own requests
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	failed  chan error    // capacity 1: the first connection that broke
	nudged  chan struct{} // closed when ready
	readers atomic.Int32  // channels that may have more to say
	quiet   chan struct{} // closed when there are none

	// Guarded by Supervisor.mu.
	replied bool // the kernel has answered
	heard   bool // the subscription works
	ready   bool
	beats   uint64 // heartbeats answered
	gaps    gaps

	complaints sync.Map // kind → struct{}: each is logged once
}

// endpoints are the ZeroMQ addresses of a kernel, by channel.
type endpoints [wire.IOPub + 1]string

// heartbeat is the index of the channel that carries no messages.
const heartbeat = wire.Channel(0)

// openBridge dials every channel, again and again until the kernel listens or ctx ends, and starts the goroutines.
func (s *Supervisor) openBridge(ctx context.Context, ep endpoints, identity []byte, signer *wire.Signer) (*bridge, error) {
	b := &bridge{log: s.logger, signer: signer, gates: &s.gates, deliver: s.deliver, unsent: s.unsent,
		beaten: s.heartbeatAnswered, beat: s.beat, sent: &s.toKernel, hb: ep[heartbeat], own: s.ownSession,
		failed: make(chan error, 1), nudged: make(chan struct{}), quiet: make(chan struct{})}
	for _, c := range nudged {
		b.first[c] = b.question(c)
		b.firstID[c] = wire.StringField(b.first[c].Header, "msg_id")
	}
	for _, c := range channels {
		kind := dealer
		if c == wire.IOPub {
			kind = sub
		}
		sock, err := dialUntil(ctx, ep[c], kind, identity)
		if err != nil {
			b.closeSockets()
			return nil, err
		}
		b.sockets[c] = sock
	}
	return b, nil
}

// dialUntil dials until it succeeds, ctx ends, or the peer turns out not to speak ZeroMQ.
func dialUntil(ctx context.Context, endpoint string, kind socketKind, identity []byte) (socket, error) {
	begun := time.Now()
	for {
		sock, err := dialSocket(ctx, endpoint, kind, identity, bridgeLimits)
		if err == nil {
			return sock, nil
		}
		if errors.Is(err, errZMTP) {
			return nil, err
		}
		t := time.NewTimer(min(max(dialRetry, time.Since(begun)/20), dialRetryMost))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, err
		case <-t.C:
		}
	}
}

// start starts the goroutines. The bridge must be known as Supervisor.bridge by then.
func (b *bridge) start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	b.readers.Store(int32(len(channels)))
	for _, c := range channels {
		b.run(func() { b.read(c) })
		if c != wire.IOPub {
			b.run(func() { b.send(ctx, c) })
		}
	}
	b.run(func() { b.nudge(ctx) })
	b.run(func() { b.keepBeating(ctx) })
}

func (b *bridge) run(f func()) {
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		f()
	}()
}

// drain waits until all that the kernel has sent before it ended is delivered, at most for the time given.
func (b *bridge) drain(limit time.Duration) {
	waitFor(b.quiet, limit)
}

func (b *bridge) readerEnded() {
	if b.readers.Add(-1) == 0 {
		close(b.quiet)
	}
}

// close ends the connections and waits for every goroutine.
func (b *bridge) close() {
	b.cancel()
	b.closeSockets()
	b.wg.Wait()
}

func (b *bridge) closeSockets() {
	for _, sock := range b.sockets {
		if sock != nil {
			sock.Close() //nolint:errcheck // never fails
		}
	}
}

func (b *bridge) fail(err error) {
	select {
	case b.failed <- err:
	default:
	}
}

func (b *bridge) read(c wire.Channel) {
	defer b.readerEnded()
	for {
		frames, err := b.sockets[c].Recv()
		if err != nil {
			b.fail(err)
			return
		}
		b.parse(c, frames)
	}
}

func (b *bridge) parse(c wire.Channel, frames [][]byte) {
	m, err := wire.ParseFrames(c, frames, b.signer)
	if err != nil {
		kind := c.String()
		if errors.Is(err, wire.ErrSignature) {
			kind += " signature"
		}
		b.complain(kind, "message of the kernel was ignored", "channel", c.String(), "err", err)
		return
	}
	b.deliver(b, m)
}

// complain logs each kind of complaint once: the kernel's code may cause any number of them.
func (b *bridge) complain(kind, msg string, args ...any) {
	if _, known := b.complaints.LoadOrStore(kind, struct{}{}); !known {
		b.log.Warn(msg, args...)
	}
}

func (b *bridge) send(ctx context.Context, c wire.Channel) {
	for {
		m, err := b.gates[c].take(ctx)
		if err != nil {
			return
		}
		if m.req != nil {
			m.req.sent.Store(true)
		}
		b.sent.add(c, m.msg.Size()) // before: who has the answer finds it counted
		if err := b.sockets[c].Send(m.msg.Frames(b.signer)); err != nil {
			if m.req != nil {
				b.unsent(m.req)
			}
			b.fail(err)
			return
		}
	}
}

// nudged are the channels on which a kernel is asked whether it is there. Old kernels do not answer on control, busy
// ones not on shell.
var nudged = [...]wire.Channel{wire.Control, wire.Shell}

func (b *bridge) question(c wire.Channel) wire.Message {
	return wire.New(c, "kernel_info_request", b.own, nil, struct{}{})
}

// nudge asks until the kernel is ready: a subscription that the kernel has not seen yet misses output, and only its
// answers on iopub tell that it has. Each question has a new id, since kernels ignore repeated signatures.
func (b *bridge) nudge(ctx context.Context) {
	t := time.NewTicker(nudgeInterval)
	defer t.Stop()
	for n := 0; ; n++ {
		for _, c := range nudged {
			m := b.first[c]
			if n > 0 {
				m = b.question(c)
			}
			if err := b.sockets[c].Send(m.Frames(b.signer)); err != nil {
				b.fail(err)
				return
			}
		}
		if n == nudgesQuick {
			t.Reset(nudgeRarely)
		}
		select {
		case <-ctx.Done():
			return
		case <-b.nudged:
			return
		case <-t.C:
		}
	}
}

// request sends a message of our own past the gate.
func (b *bridge) request(c wire.Channel, msgType string, content any) error {
	m := wire.New(c, msgType, b.own, nil, content)
	return b.sockets[c].Send(m.Frames(b.signer))
}

// deliver takes a verified message of the kernel into the log and notes what it says. It is called by the bridge's
// goroutines, and holds s.mu only for table look-ups.
func (s *Supervisor) deliver(b *bridge, m wire.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bridge != b {
		return // of an earlier life
	}
	s.missed(b, wire.RawField(m.Header, "msg_id"))
	parent, err := s.parseParent(&m)
	if err != nil {
		b.complain("parent", "parent_header of a message cannot be read", "channel", m.Channel.String(), "err", err)
	}
	if parent.Session == s.ownSession {
		s.ownAnswer(b, &m, parent)
		return
	}
	s.fromKernel.add(m.Channel, m.Size())
	if m.Channel != wire.IOPub {
		s.deliverAnswer(&m, parent)
		return
	}
	s.deliverOutput(b, &m, parent)
}

// parseParent reads the parent_header. Most messages have the same as the one before, and share its memory then.
func (s *Supervisor) parseParent(m *wire.Message) (wire.Header, error) {
	if bytes.Equal(m.Parent, s.lastParent) {
		m.Parent = s.lastParent
		return s.lastParentHeader, nil
	}
	h, err := wire.ParseHeader(m.Parent)
	if err == nil && m.Channel == wire.IOPub {
		s.lastParent, s.lastParentHeader = m.Parent, h
	}
	return h, err
}

// ownAnswer takes what the kernel says to our own requests; no client sees it, and it is no activity.
func (s *Supervisor) ownAnswer(b *bridge, m *wire.Message, parent wire.Header) {
	if m.Channel == wire.IOPub {
		b.heard = true
	} else {
		b.replied = true
		if wire.StringField(m.Header, "msg_type") == "kernel_info_reply" {
			s.kernelInfo = m.Content
			s.kernelSession = wire.StringField(m.Header, "session")
		}
		if parent.MsgID == b.firstID[m.Channel] {
			s.settleDoubts(m.Channel)
		}
	}
	s.checkReady(b)
}

func (s *Supervisor) checkReady(b *bridge) {
	if b.ready || !b.replied || !b.heard {
		return
	}
	b.ready = true
	if s.proc != nil {
		s.proc.forgetOutput()
	}
	close(b.nudged)
	s.clock.ready()
	s.estate.changed()
	s.lookAgain()
	s.reason = ""
	for _, c := range channels {
		s.gates[c].set(true)
	}
	// Front ends show the last status. That may be "starting", which a kernel says of itself; the idle behind the answer to
	// our question, which would end that, is not shown.
	s.log.append(nil, s.statusMessage(), true)
	s.logger.Info("kernel is ready", "epoch", s.epoch)
	s.changed()
}

// deliverOutput appends an iopub message for everyone.
func (s *Supervisor) deliverOutput(b *bridge, m *wire.Message, parent wire.Header) {
	if !b.heard {
		b.heard = true
		defer s.checkReady(b) // behind what is appended here: it may be the kernel's own "starting"
	}
	msgType := wire.MsgType(m.Header)
	if msgType == "iopub_welcome" {
		return // between the kernel and whoever subscribes (JEP 65)
	}
	s.lastOutput = s.now()
	if msgType == "status" {
		s.lookAgain()
	}
	state, essential := "", false
	if msgType == "status" {
		state = wire.StringField(m.Content, "execution_state")
		if session := wire.StringField(m.Header, "session"); session != "" {
			s.kernelSession = session
		}
	}
	if s.clock.observe(msgType, parent, state) {
		s.changed()
	} else {
		s.touched()
	}
	if state == stateIdle {
		essential = true
		r := s.waitingIdle(parent.MsgID)
		s.settleGaps(b, r, wire.RawField(m.Header, "msg_id"))
		if r != nil {
			r.idled = true
			if r.replied {
				s.finish(r)
			}
		}
	}
	s.log.append(nil, *m, essential)
	if state == stateIdle && s.running() != nil {
		// Front ends show the last status, whatever it is about: JupyterLab asks a reloaded notebook's kernel on control
		// whether it debugs, and showed a kernel that computes as idle from then on.
		s.log.append(nil, s.statusMessage(), true)
	}
}

// deliverAnswer appends a reply or an input request for the session that asked.
func (s *Supervisor) deliverAnswer(m *wire.Message, parent wire.Header) {
	var to *session
	switch r := s.waitingReply(parent.MsgID); {
	case m.Channel == wire.Stdin:
		if r == nil {
			r = s.running() // no known parent: whoever's cell runs
		}
		if r != nil {
			to = r.session
		}
	case r != nil:
		to = r.session
		r.replied = true
		if r.idled {
			s.finish(r)
		} else {
			r.quiet = s.now()
			poke(s.janitor)
		}
	default:
		if r := s.running(); r != nil {
			to = r.session
		}
	}
	if to == nil {
		return // its session has ended, or nobody asked
	}
	s.log.append(to, *m, true)
}

// unsent tells the client whose message the kernel may never have got.
func (s *Supervisor) unsent(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.finished() {
		s.lose(r, "the connection to the kernel broke while this was sent: run it again")
	}
}
