// Package supervisor is a Jupyter gateway for exactly one kernel: it starts the kernel's process, owns its ZeroMQ
// sockets, keeps a numbered, bounded log of all it says, and serves REST, websockets and a status stream for it. It
// holds all semantics of one kernel; gateways in front of it only route. It also has the client with which launchers
// watch a supervisor's status, and the child, which runs the kernel's process where that is in another container.
//
// What a client gets is decided by three things. The log has every message the kernel sent, replies addressed to the
// session that asked. A session is a client over all its connections, with the place in the log up to which it is
// known to have everything. A connection is a cursor that moves through the log as fast as its peer reads.
//
// Goroutines: Serve starts the HTTP server; Run is the kernel's life and starts the janitor and, where there is a folder
// for it, the one that keeps the log on disk; a life starts a process and a bridge and waits for both; a websocket has its
// handler, which reads, and a writer that the handler waits for; a reader of the log has its handler, and one that hurries
// it at the end. With a child Serve also takes its connections: each has a goroutine that reads and one that writes, and Run
// starts one that keeps on disk what a supervisor to come has to know. Lock order: Supervisor.mu, then messageLog.mu, gate.mu,
// conn.mu or container.mu; whoever writes to a peer holds none of them.
package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/elastic-kernel-gateway/ekg/gateway/wire"
)

const (
	stableLife   = 10 * time.Second       // a kernel that lived so long does not count as crashing in a row
	startRetries = 3                      // starts over because another process took a port
	firstBackoff = 250 * time.Millisecond // before the second automatic restart in a row; doubles
	restartWait  = 3 * time.Second        // for a restarted kernel to be up before whoever asked is answered
)

// Supervisor runs one kernel. Its methods may be called concurrently.
type Supervisor struct {
	// Fixed.
	cfg         Config
	build       string
	logger      *slog.Logger
	now         func() time.Time
	slowStart   time.Duration // the constant of this name, but for tests; so are the next four
	redialProof time.Duration
	beat        time.Duration // heartbeatInterval
	deaf        time.Duration // logPatience
	maxMessage  int64
	ownSession  string // session id of our own requests
	log         *messageLog
	gates       [wire.IOPub + 1]*gate
	ops         chan *operation
	janitor     chan struct{} // capacity 1: there may be idles to wait for
	container   *container    // nil: the kernel's process is our own
	estate      *estate       // nil: nobody would inherit
	news        chan struct{} // capacity 1: the cluster has said something of the container
	useNews     chan struct{} // capacity 1: the time at which the kernel is culled may have changed
	over        chan struct{} // closed when the kernel is gone for good and clients are to go
	began       time.Time     // when counting began

	// Counted by whoever passes something on.
	toKernel   flows
	fromKernel flows
	lost       atomic.Int64 // messages that a client has missed

	// Owned by Run.
	identity []byte    // by which the kernel's sockets know us
	ending   []byte    // the last Ending that was written, in JSON
	culled   *Ending   // not nil: what is written of a kernel that was culled
	died     time.Time // when the first Ending of the kernel's end was written

	// Guarded by mu.
	mu               sync.Mutex
	sessions         map[string]*session
	requests         map[string][]*request // by msg_id, in order of arrival
	order            []*request            // all of them, in order of arrival; finished ones are dropped now and then
	live             int                   // requests in the table
	orphans          int                   // of these, those whose session is gone
	clock            clock
	epoch            uint64
	floor            position // where the kernel's present life begins, if somebody asked for it
	reason           string
	verdict          string        // why the supervisor itself has ended the kernel
	silent           bool          // the kernel answers no heartbeat
	proc             kernelProcess // nil: there is none
	bridge           *bridge
	kernelSession    string
	kernelInfo       []byte // content of the last kernel_info_reply
	lastParent       []byte
	lastParentHeader wire.Header
	lastOutput       time.Time // when iopub last said something
	lastTouch        time.Time // when watchers last heard of activity
	change           chan struct{}
	cells            *lru.Cache[idHash, string] // ids of cells by msg_id, also of requests that have finished
	lastCell         struct {                   // of the last entry
		parent []byte
		id     string
	}
	logReaders int
	restarting *operation // the restart in progress, which others join
	adopted    bool       // the kernel was started by an earlier supervisor
	waiting    Waiting    // what the cluster last said of the kernel's container
	lines      []*line    // what waiting cells show
	started    time.Time  // when the kernel was, or was again after its end
	left       time.Time  // when the last connection ended; zero: none has
	keepUntil  time.Time  // zero: nobody has said so
	computes   bool       // its processes use more than Config.Cull.CPU, or GPUs more than Config.Cull.GPU
	warnings   []*line    // what cells show of the coming end
	toldEnd    time.Time  // when that will be, as status streams were told it
	connNumber uint64
	farewell   string // close reason once over
	cut        bool   // no connection may go on

	// Websocket handlers that have not returned yet. Added to under mu while over is open.
	handlers sync.WaitGroup
}

// New prepares a supervisor; Run does the work. Build is the program's version.
func New(cfg Config, build string, logger *slog.Logger) *Supervisor {
	s := &Supervisor{cfg: cfg, build: build, logger: logger.With("kernel", cfg.KernelID), now: time.Now,
		slowStart: slowStart, redialProof: redialProof, beat: heartbeatInterval, deaf: logPatience, maxMessage: maxMessage,
		ownSession: wire.NewID(), identity: []byte(wire.NewID()), log: newLog(cfg.LogLimit),
		ops: make(chan *operation), janitor: make(chan struct{}, 1), news: make(chan struct{}, 1), useNews: make(chan struct{}, 1),
		over: make(chan struct{}), sessions: map[string]*session{}, requests: map[string][]*request{},
		change: make(chan struct{}), cells: newCells(), began: time.Now().UTC().Round(0)}
	s.log.stamp = s.stamp
	if cfg.SpillDir != "" {
		s.log.spillTo(cfg.SpillDir)
	}
	if cfg.identity != "" {
		s.identity = []byte(cfg.identity)
	}
	if cfg.ChildSocket != "" {
		s.container = newContainer(&cfg, s.logger)
		s.container.measured = func() { poke(s.useNews) }
		if cfg.SpillDir != "" {
			s.estate = newEstate(cfg.SpillDir)
		}
	}
	s.clock = newClock(func() time.Time { return s.now().UTC() }, &s.cfg.Cull)
	s.started = s.clock.idleSince
	for _, c := range channels {
		s.gates[c] = newGate()
	}
	return s
}

// operation is a wish about the kernel's process.
type operation struct {
	stop   bool // else restart
	reason string
	done   chan struct{}
	err    error // valid once done is closed
}

var errOver = errors.New("the kernel is gone")

// Stop ends the kernel and the supervisor: shutdown_request, SIGTERM and SIGKILL in turn. It returns when the
// kernel's processes are gone.
func (s *Supervisor) Stop(ctx context.Context, reason string) error {
	return s.submit(ctx, &operation{stop: true, reason: reason, done: make(chan struct{})})
}

// Restart replaces the kernel's process. It returns when the new one has been started; the kernel may not have answered
// yet. Concurrent restarts are one.
func (s *Supervisor) Restart(ctx context.Context) error {
	s.mu.Lock()
	op := s.restarting
	if op == nil {
		op = &operation{done: make(chan struct{})}
		s.restarting = op
		s.mu.Unlock()
		return s.submit(ctx, op)
	}
	s.mu.Unlock()
	return op.wait(ctx, s.over)
}

func (s *Supervisor) submit(ctx context.Context, op *operation) error {
	// The life of the kernel must hear of it even if whoever asked does not wait for the end.
	select {
	case s.ops <- op:
	case <-s.over:
		s.settle(op, errOver)
	case <-ctx.Done():
		s.settle(op, ctx.Err())
	}
	return op.wait(ctx, s.over)
}

func (o *operation) wait(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return ctx.Err()
	case <-over:
		select {
		case <-o.done:
			return o.err
		default:
			return errOver
		}
	}
}

// settle ends an operation.
func (s *Supervisor) settle(op *operation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restarting == op {
		s.restarting = nil
	}
	op.err = err
	close(op.done)
}

// Interrupt stops what the kernel computes, by SIGINT to its process group or by interrupt_request on control.
func (s *Supervisor) Interrupt() error {
	s.mu.Lock()
	proc := s.proc
	if proc != nil && interruptMode(&s.cfg, proc) == "message" {
		// Through the gate: a kernel that does not read must not hold up whoever asks.
		defer s.mu.Unlock()
		return s.gates[wire.Control].push(wire.New(wire.Control, "interrupt_request", s.ownSession, nil, struct{}{}), nil)
	}
	s.mu.Unlock()
	if proc == nil {
		return errNotRunning
	}
	switch err := proc.signal(syscall.SIGINT); { // what Ctrl-C does in a terminal
	case errors.Is(err, errNoChild):
		return errNotRunning
	case err != nil && !errors.Is(err, os.ErrProcessDone):
		return err
	}
	return nil
}

// interruptMode is how the kernel is interrupted: as its configuration says, unless the kernelspec was found in its image.
func interruptMode(cfg *Config, proc kernelProcess) string {
	if mode := proc.interruptMode(); mode != "" {
		return mode
	}
	return cfg.InterruptMode
}

var errNotRunning = errors.New("the kernel is not running")

// runKernel runs the kernel until it is gone for good: stopped, or dead for DeadLinger.
func (s *Supervisor) runKernel(ctx context.Context) {
	var op *operation // the restart that the next life settles
	crashes, retries := 0, 0
	for {
		out := s.oneLife(ctx, op)
		op = nil
		switch {
		case out.op != nil && out.op.stop:
			s.finishKernel(out.op)
			return
		case out.op != nil:
			op, crashes, retries = out.op, 0, 0
			continue
		case out.retry && retries < startRetries:
			retries++
			continue
		}
		if s.now().Sub(out.started) >= stableLife {
			crashes = 0
		}
		crashes++
		if !out.fatal && out.culled == "" && crashes <= s.cfg.RestartLimit {
			s.announce(stateRestarting, out.reason)
			next := s.backoff(ctx, crashes)
			if next == nil {
				continue
			}
			if next.stop {
				s.finishKernel(next)
				return
			}
			op, crashes = next, 0
			continue
		}
		if err := s.writeEnding(Ending{Reason: out.reason, Culled: out.culled != "", CulledFor: out.culled}); err != nil {
			s.logger.Error("the kernel's end cannot be recorded", "err", err)
		}
		s.announce(stateDead, out.reason)
		if op = s.lingerDead(ctx, out.reason); op == nil {
			return
		}
		crashes, retries = 0, 0
		s.mu.Lock()
		s.started, s.keepUntil = s.now().UTC(), time.Time{}
		s.mu.Unlock()
	}
}

// backoff waits before an automatic restart, and returns the operation that came instead, or nil.
func (s *Supervisor) backoff(ctx context.Context, crashes int) *operation {
	if crashes <= 1 {
		return nil
	}
	t := time.NewTimer(firstBackoff << (crashes - 2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case op := <-s.ops:
		return op
	case <-ctx.Done():
		return s.terminated()
	}
}

// SignalReason is the reason of an ending that a signal to the supervisor asked for. Whoever knows who sent it can do better.
const SignalReason = "its supervisor was told to end by a signal"

// terminated is the stop that a signal to the supervisor asks for.
func (s *Supervisor) terminated() *operation {
	return &operation{stop: true, reason: SignalReason, done: make(chan struct{})}
}

// lingerDead leaves the dead kernel visible until somebody restarts or stops it or its time is up. It returns the
// restart, or nil when it is over.
func (s *Supervisor) lingerDead(ctx context.Context, reason string) *operation {
	t := time.NewTimer(s.cfg.DeadLinger)
	defer t.Stop()
	select {
	case op := <-s.ops:
		if !op.stop {
			if err := s.removeEnding(); err != nil {
				s.logger.Error("the record of the kernel's end cannot be removed", "err", err)
			}
			return op
		}
		s.finishKernel(op)
	case <-t.C:
		s.endClients(reason)
	case <-ctx.Done():
		s.endClients(reason)
	}
	return nil
}

// finishKernel records the end of a stopped kernel and lets everybody go.
func (s *Supervisor) finishKernel(op *operation) {
	if err := s.writeEnding(Ending{Reason: op.reason, Stopped: true}); err != nil {
		s.logger.Error("the kernel's end cannot be recorded", "err", err)
	}
	s.mu.Lock()
	s.clock.reset(stateDead)
	s.reason = op.reason
	s.changed()
	s.mu.Unlock()
	s.settle(op, nil)
	s.endClients(op.reason)
}

func (s *Supervisor) endClients(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.farewell = reason
	close(s.over)
}

// announce changes the state and tells every client, as Jupyter Server does when it restarts or gives up a kernel.
func (s *Supervisor) announce(state, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logger.Warn("kernel "+state, "reason", reason)
	s.clock.reset(state)
	s.reason = ""
	if state == stateDead {
		s.reason = reason
		s.endRequests(&outcome{reason: reason}) // those that have come since the process ended
	}
	s.showWaiting()
	s.log.append(nil, s.status(state, nil), true)
	s.changed()
}

// changed wakes the status streams. s.mu is held.
func (s *Supervisor) changed() {
	close(s.change)
	s.change = make(chan struct{})
	s.lastTouch = s.now()
}

// touched wakes them for mere activity, at most once a second. s.mu is held.
func (s *Supervisor) touched() {
	if s.now().Sub(s.lastTouch) >= time.Second {
		s.changed()
	}
}

// sentence is an error as the end of a sentence for the kernel's owner.
func sentence(err error) string { return err.Error() }

// Run starts the kernel and returns when it is gone for good and every websocket has ended. The end of ctx stops it.
func (s *Supervisor) Run(ctx context.Context) {
	var wg sync.WaitGroup
	janitorCtx, stopJanitor := context.WithCancel(context.Background())
	wg.Add(1)
	go func() {
		defer wg.Done()
		s.watchLosses(janitorCtx)
	}()
	if s.cfg.SpillDir != "" {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.log.spill(janitorCtx, s.announceDisk)
		}()
	}
	if s.estate != nil {
		if err := s.estate.read(); err != nil {
			s.logger.Error("what the supervisor before has left cannot be read", "err", err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.estate.keep(janitorCtx, s.bequeath)
		}()
	}
	s.runKernel(ctx)
	cut := time.AfterFunc(farewell+closeGrace, s.cutClients)
	s.handlers.Wait()
	cut.Stop()
	stopJanitor()
	wg.Wait()
}

// announceDisk tells the owner that output which does not fit memory cannot be kept, or that it can be again.
func (s *Supervisor) announceDisk(err error) {
	if err == nil {
		s.logger.Info("output is kept on disk again")
		return
	}
	s.logger.Warn("output cannot be kept on disk; it is kept in memory, as far as the log's limit goes", "err", err)
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err // the path is nothing to the owner
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.running(); r != nil {
		s.log.append(nil, s.notice(r.header, "The gateway's disk takes no more (%s). Output is kept in memory for now.",
			sentence(err)), true)
	}
}

// cutClients ends the connections of clients that did not take the end of the kernel in time.
func (s *Supervisor) cutClients() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = true
	for _, sess := range s.sessions {
		for c := range sess.conns {
			if c.flow != nil {
				c.endsHere()
				c.flow.Close() //nolint:errcheck // nothing is left to be done about it
			}
		}
	}
}
