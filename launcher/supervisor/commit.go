package supervisor

import (
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/starter"
)

// activityPause is the least time between two lines of status streams for mere activity.
const activityPause = time.Second

// activitySave bounds the part of the last activity that is not saved if the supervisor is killed. It is not saved at
// once, since each message may change it.
const activitySave = 10 * time.Second

// stateMutex guards the supervisor's state. Unlock commits a change: it compares the state with the last commit and
// wakes those who follow the changed parts. So no change of the state goes unreported.
type stateMutex struct {
	mu     sync.Mutex
	commit func() // fixed; called with mu held
}

// Lock begins a change or a read of the state.
func (m *stateMutex) Lock() { m.mu.Lock() }

// Unlock commits the change and releases the lock.
func (m *stateMutex) Unlock() {
	m.commit()
	m.mu.Unlock()
}

// facts are the parts of the state that others follow. They are cheap to read and to compare, since that is done for
// every message.
type facts struct {
	status   statusFacts
	activity activityFacts
	use      useFacts
	saved    savedFacts
}

// statusFacts wake the status streams when they change.
type statusFacts struct {
	epoch       uint64
	state       api.State
	reason      string
	waiting     string
	node        string
	silent      bool
	connections int
	keeps       activity.Keeps
	process     starter.Process
	logFull     bool // nearly
	gpus        uint64
	warm        bool
	death       death
	parked      uint64 // version
	seat        uint64 // version
}

// activityFacts wake the status streams too, but at most once in activityPause.
type activityFacts struct {
	lastOutput time.Time
	endShown   time.Time
}

// useFacts decide when the kernel is culled. A change makes the kernel's life check that.
type useFacts struct {
	clock       uint64 // version
	state       api.State
	connections int
	left        time.Time
	keeps       activity.Keeps
	computes    bool
}

// savedFacts are saved for a supervisor that adopts the kernel.
type savedFacts struct {
	epoch     uint64
	requests  uint64    // version of the table
	prompts   uint64    // version of the table
	activity  time.Time // the last one, but it changes at most once in activitySave
	started   time.Time
	idle      activity.Idle
	left      time.Time
	connected bool
	keeps     activity.Keeps
	gpus      time.Duration // measured, in steps of gpuSave
	death     death
}

func (s *Supervisor) factsLocked() facts {
	c, idle := &s.use, s.use.Idle()
	var seat uint64
	if s.shared != nil {
		seat = s.shared.Version()
	}
	size, limit := s.log.Sizes()
	return facts{
		status: statusFacts{
			epoch:       s.kernel.epoch,
			state:       c.State(),
			reason:      s.kernel.reason,
			waiting:     s.kernel.waiting.Text,
			node:        s.kernel.node,
			silent:      s.kernel.pulse.missed,
			connections: s.clients.sessions.Counted(),
			keeps:       s.use.Keeps,
			process:     s.kernel.process,
			logFull:     api.LogNearlyFull(size, limit),
			gpus:        s.use.GPUs.Wakes,
			warm:        s.assigning.warm,
			death:       s.kernel.death,
			parked:      s.parker.Version(),
			seat:        seat,
		},
		activity: activityFacts{lastOutput: c.LastOutput(), endShown: s.culling.shown},
		use: useFacts{
			clock:       c.Version(),
			state:       c.State(),
			connections: s.clients.sessions.Active(),
			left:        s.use.Left,
			keeps:       s.use.Keeps,
			computes:    s.use.Computes,
		},
		saved: savedFacts{epoch: s.kernel.epoch, requests: s.clients.requests.Version(), prompts: s.clients.prompts.Version(),
			activity: c.LastActivity(),
			started:  s.use.Started, idle: idle, left: s.use.Left, connected: s.clients.sessions.Active() > 0,
			keeps: s.use.Keeps, gpus: s.use.GPUs.Sum.Measured / gpuSave, death: s.kernel.death},
	}
}

// commitLocked compares the state with the last commit and wakes those who follow the changed parts.
func (s *Supervisor) commitLocked() {
	s.use.GPUs.Park(s.parker.Away(), s.now())
	now, last := s.factsLocked(), &s.committed
	if now.use != last.use && activity.Ends(&s.cfg.Cull) {
		goroutines.Wake(s.culling.changed)
	}
	if now.use != last.use {
		s.parker.Changed()
	}
	if now.saved.activity.Sub(last.saved.activity) < activitySave {
		now.saved.activity = last.saved.activity // a later commit saves it
	}
	if now.saved != last.saved && s.stateFile != nil {
		s.stateFile.Changed()
	}
	due := now.status != last.status
	if due {
		s.timeline.record(s.nowLocked(), &last.status, &now.status)
	}
	if !due && now.activity != last.activity {
		if due = s.nowLocked().Sub(s.lastWake) >= activityPause; !due {
			now.activity = last.activity // a later commit reports it
		}
	}
	*last = now
	if due {
		s.lastWake = s.nowLocked()
		close(s.change)
		s.change = make(chan struct{})
	}
	s.instant = time.Time{}
}
