// Package supervisor is a Jupyter gateway for exactly one kernel. It starts the kernel's process, connects to it, and
// keeps a numbered, bounded log of its messages. It serves REST routes, websockets and a status stream for the kernel.
// All semantics of one kernel are here; gateways in front of it only route. cmd/ekg-supervisor calls New, Serve and
// Run. Begin with Run and runKernel in this file, then with runLife in life.go, which follows one life of the kernel.
// start.go begins a life: it waits for the kernel's container, and package starter starts the process.
// client.go joins connections to sessions, accept.go handles the messages of clients, and bridge.go those of the
// kernel. kernel.go has what all of them know of the kernel's present life.
//
// Three things decide which messages a client gets. The log has every message of the kernel; a reply is addressed to
// the session that sent the request. A session is a client over all its connections: it keeps the position in the log
// up to which the client has everything. A connection is a cursor that moves through the log as fast as its peer reads.
//
// Its parts are packages. messagelog keeps messages, requests the unfinished requests, prompts the input_requests
// that wait, and cells the cells' ids. gate holds the clients' messages, and gaps finds lost messages of the kernel.
// session keeps the clients' sessions, and connection serves their websockets. activity decides when the kernel is
// culled, and parker when its GPU is given back. notices makes the messages that are sent instead of the kernel's.
// starter starts the kernel's process, which process and child run, as a child of this program or of another.
// connectionfile chooses the kernel's addresses, and zeromq connects to them. flow paces websockets. logstream serves
// the log. savedstate saves the state for a supervisor that adopts the kernel, and ending records the kernel's end.
// routes is the HTTP side of all this. api is shared with other programs.
//
// Goroutines: Serve starts the HTTP server. Run is the kernel's life. It starts the search for lost messages and, if
// the Config has a folder for it, the goroutine that keeps the log on disk. A life starts a process, dials it in the
// background, starts a bridge, and waits for all of them. A websocket has its handler, which reads, and a writer that
// the handler waits for. With a child, Serve accepts the child's connections, and Run also starts a saver of the state.
//
// State: stateMutex guards it. Unlock commits a change: it wakes those who follow the changed parts (commit.go).
// Methods whose names end in Locked need the lock. operations and ownRequests have locks of their own, under which no
// other is taken. Lock order: Supervisor.mu first, then the log's, a gate's, a connection's, or that of the process or
// container. No goroutine waits for a peer while it holds Supervisor.mu.
package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/child"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/connection"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/ending"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/memory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/notices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/parker"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/podseat"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/processors"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/routes"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/savedstate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

const (
	stableLife   = 10 * time.Second       // crashes, and broken connections, further apart are not counted together
	startRetries = 3                      // further starts if another process took a port
	firstBackoff = 250 * time.Millisecond // before the second automatic restart in a row; doubles
)

// Supervisor runs one kernel. Its methods may be called concurrently.
type Supervisor struct {
	// Fixed: settings.
	cfg    api.Config
	build  string // the program's version
	logger *slog.Logger
	timing

	// Fixed: parts and signals.
	log               *messagelog.Log
	input             connection.Input // unfinished messages of all connections
	operations        operations       // stops and restarts for Run
	own               ownRequests
	memory            *memory.Returner   // of large messages
	processors        *processors.Second // while large messages pass
	container         *child.Container   // nil: the kernel's process is a child of this one
	starter           starter.Starter
	held              gpuLocks
	shared            *podseat.Seat    // nil: the kernel takes no turns with those of other pods
	stateFile         *savedstate.File // nil: no other supervisor would read it
	containerReported chan struct{}    // capacity 1: the cluster has reported on the container
	gpusSampled       chan struct{}    // capacity 1: there are new samples of GPUs
	over              chan struct{}    // closed when the kernel has ended for good
	traffic           activity.Traffic

	// Owned by Run: the kernel's identity, its end, and its earlier state.
	identity  []byte // by which the kernel's sockets know the supervisor; written with mu held
	ending    ending.Record
	inherited savedstate.State // what the previous supervisor has saved

	// mu guards all fields that follow, except for handlers. The first group is the last commit (commit.go).
	mu        stateMutex
	committed facts
	lastWake  time.Time // when status streams were last woken

	clients *clients
	notices *notices.Notices // messages instead of the kernel's
	use     activity.Use     // which decides when the kernel is culled

	kernel    kernel
	parker    *parker.Parker
	culling   culling
	timeline  timeline
	assigning assigning     // of a kernel that was started without an owner
	change    chan struct{} // closed when status streams are woken, and replaced

	// Why the kernel has ended. It is set before over is closed.
	endReason string

	// Websocket handlers that have not returned. Added to with mu held, while over is open.
	handlers sync.WaitGroup
}

// New prepares a supervisor; Run does the work. Build is the program's version.
func New(cfg api.Config, build string, logger *slog.Logger) *Supervisor {
	over := make(chan struct{})
	s := &Supervisor{
		cfg: cfg, build: build, logger: logger.With(logkey.Kernel, cfg.KernelID), timing: realTiming(),
		own:      ownRequests{session: jupyter.NewID(), over: over, replies: map[string]chan []byte{}},
		identity: []byte(jupyter.NewID()),
		memory:   memory.New(), processors: processors.New(),
		containerReported: make(chan struct{}, 1), gpusSampled: make(chan struct{}, 1),
		over: over, operations: operations{requested: make(chan *operation), over: over}, change: make(chan struct{}),
		kernel:  newKernel(),
		traffic: activity.Traffic{Began: time.Now().UTC().Round(0)},
	}
	s.log = messagelog.New(messagelog.Options{Limit: cfg.LogLimit, Dir: cfg.SpillDir, Stamp: s.stampLocked,
		KeepFree: cfg.LogKeepFree, Least: api.LeastLogLimit, Shorten: shortened})
	s.notices = notices.New(s.log, s.own.session)
	s.use = activity.NewUse(s.nowLocked, &s.cfg.Cull)
	s.clients = newClients(clients{log: s.log, notices: s.notices, use: &s.use, now: s.nowLocked, owns: s.OwnedBy,
		opened: s.kernel.gates[jupyter.Shell].Wake, logger: s.logger})
	s.parker = parker.New(parker.Options{Mu: &s.mu, Use: &s.use, Shell: s.kernel.gates[jupyter.Shell], Log: s.log,
		Notices: s.notices, Requests: &s.clients.requests, Sessions: &s.clients.sessions, Abort: s.clients.abort,
		Warm: func() bool { return s.assigning.warm }, Now: func() time.Time { return s.now() },
		SameMachine: cfg.SameMachine, Logger: s.logger})
	if cfg.Secret.Identity != "" {
		s.identity = []byte(cfg.Secret.Identity)
	}
	if cfg.ChildSocket != "" {
		s.container = child.NewContainer(child.ContainerOptions{
			Socket: cfg.ChildSocket, Grace: cfg.TerminationGrace, Place: starter.PlaceOf(&s.cfg),
			Measured: func() { goroutines.Wake(s.culling.changed) },
			Sampled:  func() { goroutines.Wake(s.gpusSampled) }, Answered: s.parker.Answered,
			Called: s.parker.Called, Log: s.logger})
		if cfg.SpillDir != "" {
			s.stateFile = savedstate.NewFile(cfg.SpillDir)
		}
	}
	s.starter = starter.Starter{Config: &s.cfg, Container: s.container, Logger: s.logger,
		Measured: func() { goroutines.Wake(s.culling.changed) },
		Sampled:  func() { goroutines.Wake(s.gpusSampled) }, Answered: s.parker.Answered}
	s.ending = ending.New(&s.cfg)
	s.assigning = newAssigning(&s.cfg, &s.mu, s.logger)
	s.timeline = newTimeline(s.use.Started)
	s.culling = culling{cull: &s.cfg.Cull, clients: s.clients, timeline: &s.timeline, changed: make(chan struct{}, 1)}
	s.mu.commit = s.commitLocked
	s.committed = s.factsLocked()
	return s
}

// SetReaper makes the kernel's process one that r spares. It must be called before Run.
func (s *Supervisor) SetReaper(r *proctree.Reaper) { s.starter.Reaper = r }

// SetSeat lets the kernel give its GPU back while it does nothing. It must be called before Run.
func (s *Supervisor) SetSeat(seat gpumemory.Seat) {
	if p := s.cfg.GPUSamples.Park; p.Idle > 0 && !p.Never && s.cfg.GPUProgram != "" && s.cfg.GPUSamples.Every > 0 {
		s.starter.Called = s.parker.Called
		s.parker.SetSeat(seat, p)
	}
}

// ShareGPU makes the kernel of a pod take turns at its GPU with those of other pods, if the configuration says so. It
// must be called before Run.
func (s *Supervisor) ShareGPU() (err error) {
	park := s.cfg.GPUSamples.Park
	if !park.Shared {
		return nil
	}
	changed := func() {
		s.mu.Lock() // to commit
		s.parker.Changed()
		s.mu.Unlock()
	}
	now := func() time.Time { return s.now() }
	s.shared, err = podseat.Open(filepath.Join(s.cfg.SpillDir, "seat.json"), park.Last, changed, now)
	if park.Never {
		park = api.Park{} // it takes its turn, and keeps the GPU until its end
	}
	s.starter.Called = s.parker.Called
	s.parker.SetSeat(s.shared, park)
	return err
}

// SetSeatNews implements routes.Kernel.
func (s *Supervisor) SetSeatNews(n api.SeatNews) error {
	if s.shared == nil {
		return routes.Error{Status: http.StatusConflict, Text: "the kernel takes no turns at a GPU"}
	}
	return s.shared.Told(n)
}

// SetHeld names locks of GPUs that the kernel has inherited. They are released when the kernel has ended for good. It
// must be called before Run.
func (s *Supervisor) SetHeld(files []*os.File) { s.held = files }

// gpuLocks are the locks of GPUs that the kernel has inherited.
type gpuLocks []*os.File

// leave leaves the locks to a kernel that may still run, and to its parent. They go with both.
func (l *gpuLocks) leave() { *l = nil }

// recordEnding records the kernel's end. Then it releases the locks of the kernel's GPUs for all processes that have
// inherited them. Without the record they stay: if this supervisor is killed, the parent starts another one, and that
// starts the kernel again.
func (s *Supervisor) recordEnding(e api.Ending) {
	s.mu.Lock()
	e.At, e.Started, e.GPUUse = s.now().UTC(), s.use.Started.UTC(), s.use.GPUs.Sum
	s.mu.Unlock()
	if err := s.ending.Write(e); err != nil {
		s.logger.Error("the kernel's end cannot be recorded", logkey.Err, err)
		return
	}
	if s.shared != nil {
		if err := s.shared.Return(); err != nil {
			s.logger.Error("a GPU is not given back", logkey.Err, err)
		}
	}
	for _, f := range s.held {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
			s.logger.Error("a lock of a GPU is not released", logkey.Err, err)
		}
	}
}

// runKernel runs the kernel until it is gone for good: stopped, or dead for DeadLinger.
func (s *Supervisor) runKernel(ctx context.Context) {
	if op := s.assigning.await(ctx, &s.operations); op != nil {
		s.endKernel(op)
		return
	}
	var op *operation // the restart that the next life settles
	crashes, retries := 0, 0
	for {
		out := s.runLife(ctx, op)
		op = nil
		switch {
		case out.op != nil && out.op.stop:
			s.endKernel(out.op)
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
		warm := s.Warm() // no user waits for it: another one replaces it
		if !warm && !out.fatal && out.culled == "" && crashes <= s.cfg.RestartLimit {
			s.announce(api.Restarting, out.reason)
			next := s.backoff(ctx, crashes)
			if next == nil {
				continue
			}
			if next.stop {
				s.endKernel(next)
				return
			}
			op, crashes = next, 0
			continue
		}
		s.recordEnding(api.Ending{Reason: out.reason, Culled: out.culled != "", CulledFor: out.culled})
		s.announce(api.Dead, out.reason)
		if warm {
			s.endClients(out.reason)
			return
		}
		if op = s.lingerDead(ctx, out.reason); op == nil {
			return
		}
		crashes, retries = 0, 0
		s.mu.Lock()
		s.use.Again()
		s.mu.Unlock()
	}
}

// backoff waits before an automatic restart. It returns the operation that came meanwhile, or nil.
func (s *Supervisor) backoff(ctx context.Context, crashes int) *operation {
	if crashes <= 1 {
		return nil
	}
	t := time.NewTimer(firstBackoff << (crashes - 2))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case op := <-s.operations.requested:
		return op
	case <-ctx.Done():
		return stopBySignal()
	}
}

// errGPUsReturned rejects a restart by a supervisor whose kernel has ended.
var errGPUsReturned = errors.New("its GPUs were given back at its end; start it again in a moment")

// lingerDead leaves the dead kernel visible until it is restarted or stopped, or its time is up. It returns the
// restart, or nil when the kernel has ended for good.
func (s *Supervisor) lingerDead(ctx context.Context, reason string) *operation {
	t := time.NewTimer(s.cfg.DeadLinger)
	defer t.Stop()
	select {
	case op := <-s.operations.requested:
		if !op.stop && len(s.held) > 0 {
			// Another kernel may hold its GPUs. Its launcher starts it again with others, or makes it wait.
			s.operations.settle(op, errGPUsReturned)
			s.endClients(reason)
			return nil
		}
		if !op.stop {
			if err := s.ending.Remove(); err != nil {
				s.logger.Error("the record of the kernel's end cannot be removed", logkey.Err, err)
			}
			return op
		}
		s.endKernel(op)
	case <-t.C:
		s.endClients(reason)
	case <-ctx.Done():
		s.endClients(reason)
	}
	return nil
}

// endKernel records the end of a stopped kernel and ends its clients' connections.
func (s *Supervisor) endKernel(op *operation) {
	s.recordEnding(api.Ending{Reason: op.reason, Stopped: true})
	s.mu.Lock()
	s.use.Reset(api.Dead)
	s.kernel.reason = op.reason
	s.mu.Unlock()
	s.operations.settle(op, nil)
	s.endClients(op.reason)
}

func (s *Supervisor) endClients(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endReason = reason
	close(s.over)
}

// announce changes the state and sends it to every client, as Jupyter Server does when a kernel restarts or dies.
func (s *Supervisor) announce(state api.State, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logger.Warn("kernel "+string(state), logkey.Reason, reason)
	s.use.Reset(state)
	s.kernel.reason = ""
	if state == api.Restarting {
		s.timeline.Add(s.nowLocked(), api.TimelineDied, reason)
	}
	if state == api.Dead {
		s.kernel.reason = reason
		s.endRequestsLocked(&outcome{reason: reason}) // requests that came after the process had ended
		s.answerReadersLocked()
	}
	s.showWaitingLocked()
	s.log.Append(allSessions, s.notices.State(state, nil), true)
}

// Run starts the kernel and returns when it has ended for good and every websocket has ended. The end of ctx stops the
// kernel.
func (s *Supervisor) Run(ctx context.Context) {
	if len(s.cfg.Ignored) > 0 {
		s.logger.Warn("settings of a newer gateway are ignored", logkey.Names, s.cfg.Ignored)
	}
	var wg sync.WaitGroup
	janitorCtx, stopJanitor := context.WithCancel(context.Background())
	wg.Go(func() { s.watchLosses(janitorCtx) })
	wg.Go(func() { s.memory.Run(janitorCtx) })
	wg.Go(func() { memory.LimitGrowth(janitorCtx) })
	wg.Go(func() { s.processors.Run(janitorCtx) })
	if s.cfg.SpillDir != "" {
		wg.Go(func() { s.log.Spill(janitorCtx, s.announceDisk) })
	}
	if s.stateFile != nil {
		var err error
		if s.inherited, err = s.stateFile.Read(); err != nil {
			s.logger.Error("the state that the previous supervisor has saved cannot be read", logkey.Err, err)
		}
		wg.Go(func() {
			if s.inherited.Epoch == 0 && goroutines.Sleep(janitorCtx, savedstate.Pause) != nil {
				return // one write for a start, not two: until now no client has sent anything
			}
			s.stateFile.Keep(janitorCtx, s.savedState)
		})
	}
	s.runKernel(ctx)
	cut := time.AfterFunc(connection.EndTimeout, s.cutClients)
	s.handlers.Wait()
	cut.Stop()
	stopJanitor()
	wg.Wait()
}

// announceDisk shows the owner that output which does not fit memory cannot be kept. A nil error means that it can be
// kept again.
func (s *Supervisor) announceDisk(err error) {
	if err == nil {
		s.logger.Info("output is kept on disk again")
		return
	}
	s.logger.Warn("output cannot be kept on disk; it is kept in memory, as far as the log's limit goes", logkey.Err, err)
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err // the path means nothing to the owner
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.clients.runningCell(); r != nil {
		m := s.notices.Line(r.Header, "The gateway's disk takes no more (%v). Output is kept in memory for now.", err)
		s.log.Append(allSessions, m, true)
	}
}

// cutClients closes the connections of clients that did not take the end of the kernel in time.
func (s *Supervisor) cutClients() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients.connected {
		c.conn.Close()
	}
}
