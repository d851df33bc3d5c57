package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connectionfile"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gaps"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

const (
	dialRetry     = 2 * time.Millisecond   // between the first attempts to connect to a kernel that does not listen yet
	dialRetryMost = 250 * time.Millisecond // the longest time between attempts
)

// bridgeLimits bound what a kernel may send, and the time that it may take to read. A kernel whose shell is busy for
// hours stops reading when its queue is full (1,000 messages in most). The gates bound the messages that then wait. The
// end of the process ends the wait.
var bridgeLimits = zeromq.Limits{Frame: 256 << 20, Message: 512 << 20, Write: 10 * 365 * 24 * time.Hour}

// channels are the kernel's channels that carry messages, in the order of connecting. iopub is last, so that a
// subscription means that all are connected.
var channels = [...]jupyter.Channel{jupyter.Shell, jupyter.Control, jupyter.Stdin, jupyter.IOPub}

// bridge is one set of ZeroMQ connections to one life of the kernel's process. start starts its goroutines and close
// waits for them. Each channel has a reader, and each except iopub has a sender. One goroutine asks until the kernel is
// ready, and one asks for heartbeats.
type bridge struct {
	// Fixed.
	log     *slog.Logger
	signer  *jupyter.Signer
	sockets [jupyter.IOPub + 1]zeromq.Socket
	gates   *[jupyter.IOPub + 1]*gate.Gate
	deliver func(*bridge, jupyter.Message)
	// called before output of so many bytes is delivered; it may wait for the log's disk
	awaitDisk func(ctx context.Context, bytes int)
	endWaits  context.CancelFunc // of iopub's reader for the disk; set by start
	// called for a message that exceeds the limits, with the frames before the excess
	oversized func(*bridge, jupyter.Channel, [][]byte, *zeromq.TooLargeError)
	unsent    func(*requests.Request) // called for a request that may not have reached the kernel
	// called for each answered heartbeat; missed is called if the next is not answered
	answered func(b *bridge, asked time.Time) (missed func())
	beat     time.Duration                      // between heartbeats
	sent     *activity.Flows                    // counts what was sent through the gates
	hb       string                             // the heartbeat's endpoint
	first    [jupyter.IOPub + 1]jupyter.Message // the first request on shell and control
	firstID  [jupyter.IOPub + 1]string          // its id
	own      string                             // session id of the supervisor's requests
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	failed   chan error    // capacity 1: the first connection that broke
	nudged   chan struct{} // closed when ready
	missed   chan struct{} // capacity 1: the kernel has replied, and iopub may have missed its status
	readers  atomic.Int32  // channels that may have more messages
	quiet    chan struct{} // closed when no channel has more messages

	// Guarded by Supervisor.mu.
	replied    bool // the kernel has answered
	subscribed bool // the subscription works
	ready      bool
	beats      uint64 // heartbeats answered
	beatCell   string // id of the cell in which the last was asked and answered; "" if there was none
	gaps       gaps.Tracker

	complaints sync.Map // kind → struct{}: each is logged once
}

// openBridge dials every channel repeatedly until the kernel listens or ctx ends. The caller starts the bridge.
func (s *Supervisor) openBridge(
	ctx context.Context, to *connectionfile.Connection, identity []byte,
) (*bridge, error) {
	b := &bridge{
		log: s.logger, signer: to.Signer, gates: &s.kernel.gates, deliver: s.deliver, oversized: s.deliverOversized,
		awaitDisk: s.log.AwaitDisk,
		unsent:    s.unsent, sent: &s.traffic.ToKernel,
		answered: s.heartbeatAnswered, beat: s.beat, hb: to.Endpoints[connectionfile.Heartbeat], own: s.own.session,
		failed: make(chan error, 1), nudged: make(chan struct{}), missed: make(chan struct{}, 1),
		quiet: make(chan struct{}),
	}
	for _, c := range nudged {
		b.first[c] = b.question(c)
		b.firstID[c] = jupyter.StringField(b.first[c].Header, "msg_id")
	}
	limits := s.kernelLimits
	limits.Large = s.processors.Passes
	for _, c := range channels {
		kind := zeromq.Dealer
		if c == jupyter.IOPub {
			kind = zeromq.Sub
		}
		sock, err := dialUntil(ctx, to.Endpoints[c], kind, identity, limits)
		if err != nil {
			b.closeSockets()
			return nil, err
		}
		b.sockets[c] = sock
	}
	return b, nil
}

// dialUntil dials until it succeeds, ctx ends, or the peer does not speak ZeroMQ.
func dialUntil(ctx context.Context, endpoint string, kind zeromq.Kind, identity []byte, limits zeromq.Limits) (
	zeromq.Socket, error) {
	begun := time.Now()
	for {
		sock, err := zeromq.Dial(ctx, endpoint, kind, identity, limits)
		if err == nil {
			return sock, nil
		}
		if errors.Is(err, zeromq.ErrProtocol) {
			return nil, err
		}
		if goroutines.Sleep(ctx, min(max(dialRetry, time.Since(begun)/20), dialRetryMost)) != nil {
			return nil, err
		}
	}
}

// start starts the goroutines. Its caller has made b the Supervisor.bridge.
func (b *bridge) start() {
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	waits, endWaits := context.WithCancel(ctx)
	b.endWaits = endWaits
	b.readers.Store(int32(len(channels)))
	for _, c := range channels {
		b.wg.Go(func() { b.read(waits, c) })
		if c != jupyter.IOPub {
			b.wg.Go(func() { b.send(ctx, c) })
		}
	}
	b.wg.Go(func() { b.nudge(ctx) })
	b.wg.Go(func() { b.keepBeating(ctx) })
}

// drain waits until everything that the kernel sent before its end is delivered, or the limit has passed. Output waits
// for the disk no longer.
func (b *bridge) drain(limit time.Duration) {
	b.endWaits()
	goroutines.Within(b.quiet, limit)
}

func (b *bridge) readerEnded() {
	if b.readers.Add(-1) == 0 {
		close(b.quiet)
	}
}

// close closes the connections and waits for every goroutine.
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

func (b *bridge) read(ctx context.Context, c jupyter.Channel) {
	defer b.readerEnded()
	for {
		frames, err := b.sockets[c].Recv()
		if err == nil {
			if m, ok := b.parse(c, frames); ok {
				if c == jupyter.IOPub {
					b.awaitDisk(ctx, m.Size())
				}
				b.deliver(b, m)
			}
			continue
		}
		var large *zeromq.TooLargeError // declared here, since it is allocated
		if !errors.As(err, &large) {
			b.fail(err)
			return
		}
		b.oversized(b, c, frames, large)
	}
}

// parse returns a message of the kernel. It returns false if the message cannot be read, or has a wrong signature.
func (b *bridge) parse(c jupyter.Channel, frames [][]byte) (jupyter.Message, bool) {
	m, err := jupyter.ParseFrames(c, frames, b.signer)
	if err != nil {
		kind := c.String()
		if errors.Is(err, jupyter.ErrSignature) {
			kind += " signature"
		}
		b.complain(kind, "message of the kernel was ignored", "channel", c.String(), logkey.Err, err)
	}
	return m, err == nil
}

// complain logs each kind of complaint once, since the kernel's code may cause any number.
func (b *bridge) complain(kind, msg string, args ...any) {
	if _, known := b.complaints.LoadOrStore(kind, struct{}{}); !known {
		b.log.Warn(msg, args...)
	}
}

func (b *bridge) send(ctx context.Context, c jupyter.Channel) {
	for {
		m, err := b.gates[c].Take(ctx)
		if err != nil {
			return
		}
		if m.Req != nil {
			m.Req.Sent.Store(true)
		}
		b.sent.Add(c, m.Msg.Size()) // before sending, so that it is counted when the answer is there
		if err := b.sockets[c].Send(m.Msg.Frames(b.signer)); err != nil {
			if m.Req != nil {
				b.unsent(m.Req)
			}
			b.fail(err)
			return
		}
	}
}

// request sends a message of the supervisor, past the gate.
func (b *bridge) request(c jupyter.Channel, msgType string, content any) error {
	m := jupyter.New(c, msgType, b.own, nil, content)
	return b.sockets[c].Send(m.Frames(b.signer))
}

// deliver appends a verified message of the kernel to the log and updates the state from it. The bridge's goroutines
// call it. It never waits for a peer while it holds s.mu.
func (s *Supervisor) deliver(b *bridge, m jupyter.Message) {
	hasNaN := m.Channel == jupyter.IOPub && jupyter.HasNaN(m.Content) // without s.mu: it may be large
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kernel.bridge != b {
		return // it belongs to an earlier life
	}
	s.instant = s.now() // reading the clock takes as long as scanning a header
	id, msgType := jupyter.IDAndType(m.Header)
	s.clients.findGaps(&b.gaps, &m, id)
	parent, err := s.clients.parseParent(&m)
	if err != nil {
		b.complain("parent", "parent_header of a message cannot be read", "channel", m.Channel.String(), logkey.Err, err)
	}
	if parent.Session == s.own.session {
		s.deliverOwnLocked(b, &m, parent)
		return
	}
	s.memory.Passes(m.Size())
	s.traffic.FromKernel.Add(m.Channel, m.Size())
	if m.Channel != jupyter.IOPub {
		s.deliverReplyLocked(&m, parent)
		return
	}
	s.deliverOutputLocked(b, &m, msgType, parent)
	if hasNaN {
		s.noteNaNLocked(parent)
	}
}

// noteNaNLocked says in a cell, once, that browsers get null in the place of some numbers.
func (s *Supervisor) noteNaNLocked(parent jupyter.Header) {
	r := s.clients.requests.AwaitingIdle(parent)
	if r == nil || !r.Executes() || r.NaN {
		return
	}
	r.NaN = true
	s.log.Append(allSessions, s.notices.Line(r.Header, notice.NaNLine), false)
}

// deliverOversized delivers a notice in place of a message that was discarded for its size. The cell then shows why its
// output is missing, and a request gets an error as its reply. The signature of such a message cannot be checked, so
// nothing of it is shown but its type and its size.
func (s *Supervisor) deliverOversized(b *bridge, c jupyter.Channel, first [][]byte, large *zeromq.TooLargeError) {
	b.complain("size", "message of the kernel was discarded", "channel", c.String(), "err", large)
	why := fmt.Sprintf("the gateway takes at most %d MiB in one part and %d MiB in all",
		s.kernelLimits.Frame>>20, s.kernelLimits.Message>>20)
	m, known := jupyter.ParseHead(c, first)
	s.mu.Lock()
	if s.kernel.bridge == b && known {
		s.clients.findGaps(&b.gaps, &m, jupyter.RawField(m.Header, "msg_id"))
	}
	if r := s.clients.runningCell(); !known && r != nil {
		m = jupyter.Message{Channel: jupyter.IOPub, Header: []byte("{}"), Parent: r.Header}
	}
	s.mu.Unlock()
	if m.Header != nil {
		s.deliver(b, notice.LeftOut(&m, large.Bytes, why))
	}
}

// deliverOwnLocked handles an answer to a request of the supervisor. No client gets it, and it does not count as
// activity.
func (s *Supervisor) deliverOwnLocked(b *bridge, m *jupyter.Message, parent jupyter.Header) {
	if m.Channel == jupyter.IOPub {
		b.subscribed = true
	} else {
		b.replied = true
		if jupyter.StringField(m.Header, "msg_type") == "kernel_info_reply" {
			s.kernel.info = bytes.Clone(m.Content) // it outlives the messages around it
			s.notices.Kernel = jupyter.StringField(m.Header, "session")
		}
		s.own.pass(m, parent)
		if parent.MsgID == b.firstID[m.Channel] {
			s.clients.settleDoubtful(m.Channel)
		}
		if !b.subscribed {
			goroutines.Wake(b.missed)
		}
	}
	s.checkReadyLocked(b)
	s.answerReadersLocked() // the kernel's information may come after it is ready
}

// checkReadyLocked opens the gates once the kernel has answered and its subscription works.
func (s *Supervisor) checkReadyLocked(b *bridge) {
	if b.ready || !b.replied || !b.subscribed {
		return
	}
	s.kernel.answered()
	if s.kernel.process != nil && s.clients.cellBegan.IsZero() { // else these are other connections to a kernel that is up
		s.clients.cellBegan = s.now() // output of the start explains a failed start, but no later end
	}
	close(b.nudged)
	s.use.Ready()
	// Front ends show the last status. That may be the kernel's own "starting", because no client gets the idle behind the
	// answer to the supervisor's request.
	s.log.Append(allSessions, s.clients.presentStatus(), true)
	s.answerReadersLocked()
	s.logger.Info("kernel is ready", logkey.Epoch, s.kernel.epoch)
}

// deliverOutputLocked appends an iopub message for all sessions.
func (s *Supervisor) deliverOutputLocked(b *bridge, m *jupyter.Message, msgType string, parent jupyter.Header) {
	if !b.subscribed {
		b.subscribed = true
		defer s.checkReadyLocked(b) // after the message, which may be the kernel's own "starting"
	}
	if msgType == "iopub_welcome" {
		return // it is for subscribers only (JEP 65)
	}
	s.clients.outputs++
	s.clients.lastOutput = s.nowLocked()
	state, essential := api.State(""), false
	if msgType == "status" {
		state = api.State(jupyter.StringField(m.Content, "execution_state"))
		if session := jupyter.StringField(m.Header, "session"); session != "" {
			s.notices.Kernel = session
		}
	}
	s.use.Observe(msgType, parent, state)
	if state == api.Idle {
		essential = true
		r := s.clients.requests.AwaitingIdle(parent)
		s.clients.settleGaps(&b.gaps, r, jupyter.RawField(m.Header, "msg_id"))
		s.kernel.interruption.noteRest(s.use.Works())
		if s.kernel.interruption.withholdsIdle(r) {
			return
		}
		if r != nil {
			r.Idled = true
			if r.Replied {
				s.clients.finish(r)
			}
			s.clients.noteNextCell(r, m)
		}
	}
	if msgType == "error" {
		s.clients.noteError(parent)
	}
	s.log.Append(allSessions, *m, essential)
	if state == api.Idle && s.clients.runningCell() != nil {
		// Front ends show the last status, whatever its parent. JupyterLab asks the kernel of a reloaded notebook on control
		// whether it debugs. Without this status it would then show a computing kernel as idle.
		s.log.Append(allSessions, s.clients.presentStatus(), true)
	}
}

// deliverReplyLocked appends a reply or an input request for the session that asked.
func (s *Supervisor) deliverReplyLocked(m *jupyter.Message, parent jupyter.Header) {
	var to uint64 // the session
	switch r := s.clients.requests.AwaitingReply(parent, m.Channel); {
	case m.Channel == jupyter.Stdin:
		if r == nil {
			r = s.clients.runningCell() // no known parent: the session whose cell runs
		}
		if r != nil && jupyter.StringField(m.Header, "msg_type") == "input_request" {
			s.clients.ask(r, *m)
			return
		}
		if r != nil {
			to = r.Session
		}
	case r != nil && s.kernel.interruption.withholdsReply(r, m):
		return
	case r != nil:
		to = r.Session
		r.Replied = true
		r.Aborted = jupyter.StringField(m.Content, "status") == "aborted"
		if r.Idled {
			s.clients.finish(r)
		} else {
			r.RepliedAt = s.now()
			goroutines.Wake(s.clients.lossPossible)
		}
	default:
		if r := s.clients.runningCell(); r != nil {
			to = r.Session
		}
	}
	if to == noSession {
		return // its session has ended, or no session asked
	}
	s.log.Append(to, *m, true)
}

// unsent ends a request that the kernel may not have received.
func (s *Supervisor) unsent(r *requests.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.Finished() {
		s.clients.lose(r, "the connection to the kernel broke while this was sent: run it again")
	}
}
