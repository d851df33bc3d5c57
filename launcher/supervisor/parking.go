package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
)

// SetSeat lets the kernel give its GPU back while it does nothing. It must be called before Run.
func (s *Supervisor) SetSeat(seat gpumemory.Seat) {
	if p := s.cfg.GPUSamples.Park; p.Idle > 0 && !p.Never && s.cfg.GPUProgram != "" && s.cfg.GPUSamples.Every > 0 {
		s.parker.seat = seat
		s.starter.Called = func() { goroutines.Wake(s.parker.called) }
		s.parker.settings = parking.Settings{Idle: p.Idle, After: p.After, IdleMemory: p.IdleMemory}
	}
}

// parker is what has become of the GPU of a kernel that may be parked. A goroutine of each life parks the kernel and
// wakes it (parked.go).
//
// The gate of shell is shut while the GPU memory is being saved, and while a message waits for the GPU. It is open
// while the kernel is parked: messages pass that need no GPU. Calls of CUDA wait in the driver then, so nothing is lost
// if one is made all the same.
type parker struct {
	// Fixed.
	seat     gpumemory.Seat // nil: the kernel keeps its GPU until its end
	settings parking.Settings
	changed  chan struct{} // capacity 1: a message needs the GPU, or the kernel's use has changed
	called   chan struct{} // capacity 1: a call of CUDA waits
	driver   *gpumemory.Driver

	// Guarded by Supervisor.mu.
	state  api.ParkState // "": seat is nil, or no process runs
	since  time.Time
	reason string
	own    bool      // the GPU is the kernel's, and is not about to be given back
	wish   bool      // a message waits for the GPU, or the kernel computes without it
	woken  time.Time // when it got the GPU last
	memory int64     // bytes that were saved last
	failed uint64    // version of the use at the last attempt that failed
	retry  time.Time // not before then
	saved  bool      // its GPU memory is saved, or may be; means nothing while own is set
	calls  gpumemory.Calls
}

// enter changes the state. The reason of GPUNone is why cells take the GPU though they may not use it.
func (p *parker) enter(state api.ParkState, reason string, now time.Time) {
	if p.state != state {
		p.since = now
	}
	if state == api.GPUNone {
		reason = p.calls.Why
	}
	p.state, p.reason = state, reason
}

// owns reports whether the kernel has its GPU, as far as its messages are concerned.
func (p *parker) owns() bool { return p.seat == nil || p.state == "" || p.own }

// away reports whether the kernel has given its GPU back.
func (p *parker) away() bool { return p.state.GaveBack() && !p.own }

// shown returns the state for models. The owner keeps the GPU until a time; zero: not.
func (p *parker) shown(kept time.Time) api.Parked {
	if p.state == "" {
		return api.Parked{}
	}
	return api.Parked{State: p.state, Since: api.Timestamp(p.since), Reason: p.reason,
		KeepGPUUntil: api.OptionalTimestamp(kept)}
}

// lazy reports whether the kernel does without the GPU until it makes a call of CUDA: nothing of it is saved.
func (p *parker) lazy() bool { return p.calls.Held && !p.saved }

// lacks reports whether a message needs the GPU, and the kernel has to get it first.
func (p *parker) lacks(m *jupyter.Message, t string) bool {
	return !p.owns() && !p.lazy() && gpumemory.Needs(m, t)
}

// waits reports whether messages wait for the GPU.
func (p *parker) waits() bool { return p.wish && !p.owns() }

// holdForGPULocked makes a message wait that needs the GPU of a kernel without it. Those behind it wait too, since the
// kernel gets all in order.
func (s *Supervisor) holdForGPULocked(m *jupyter.Message, h jupyter.Header) {
	p := &s.parker
	if !p.lacks(m, h.MsgType) {
		return
	}
	p.wish = true
	if m.Channel == jupyter.Shell {
		s.kernel.gates[jupyter.Shell].Hold(gate.Parked)
	}
	goroutines.Wake(p.changed)
}

// gotGPULocked lets the kernel have what waited for the GPU.
func (s *Supervisor) gotGPULocked() {
	s.parker.own, s.parker.wish, s.parker.woken = true, false, s.now()
	s.passCallsLocked()
	s.notices.GPU.End("")
	s.notices.Parked.End("")
	s.kernel.gates[jupyter.Shell].Release(gate.Parked)
}

// passCallsLocked lets the calls of CUDA go on that wait. The GPU is the kernel's.
func (s *Supervisor) passCallsLocked() {
	s.parker.calls.At = time.Time{}
	if s.kernel.process != nil {
		s.kernel.process.PassGPUCalls()
	}
}

// awaitCalls hears of calls of CUDA that wait, until the process has ended. What restores GPU memory makes them too.
func (l *life) awaitCalls(ctx context.Context) {
	s, p := l.s, &l.s.parker
	for {
		select {
		case <-p.called:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		if p.calls.At = s.now(); p.own {
			p.woken = p.calls.At // it is about to use the GPU
			s.passCallsLocked()
		}
		s.mu.Unlock()
		goroutines.Wake(p.changed)
	}
}

// needsGPULocked reports whether something waits for the GPU, or the kernel computes without it.
func (s *Supervisor) needsGPULocked() bool {
	p := &s.parker
	return p.wish || p.calls.Wait(s.now()) || !p.lazy() && s.computesLocked()
}

// showGPUWaitLocked shows in the cells that wait why they wait.
func (s *Supervisor) showGPUWaitLocked(text string) {
	s.parker.enter(api.GPUWaking, text, s.nowLocked())
	for r := range s.clients.requests.Open() {
		if r.Executes() && r.Session != noSession {
			s.notices.GPU.Add(r.Session, r.Header)
		}
	}
	s.notices.GPU.Show("This cell waits for its GPU: " + text)
}

// answerLooksLocked answers what an editor has asked, since its user does not wait for a GPU. Without it no message may
// wait, and then the kernel stays parked.
func (s *Supervisor) answerLooksLocked() {
	g := s.kernel.gates[jupyter.Shell]
	dropped := g.Drop(func(m *gate.Message) bool { return m.Req != nil && gpumemory.Looks(m.Req.Type) })
	for _, m := range dropped {
		if m.Req.Session != noSession {
			s.log.Append(m.Req.Session, s.notices.Nothing(m.Req.Type, m.Req.Header), true)
		}
		m.Req.Replied = true
		s.clients.abort(m.Req, "", "", "")
	}
	if !g.Any(needsGPU) && !s.computesLocked() {
		s.parker.wish = false
		g.Release(gate.Parked)
	}
}

// computesLocked reports whether the kernel works on a request that may need the GPU.
func (s *Supervisor) computesLocked() bool { return s.use.WorksOn(gpumemory.NeedsType) }

// needsGPU reports whether a message at the gate needs the GPU.
func needsGPU(m *gate.Message) bool {
	_, msgType := jupyter.IDAndType(m.Msg.Header)
	return gpumemory.Needs(&m.Msg, msgType)
}

// interruptWaitLocked ends the wait for the GPU: what waits is answered as cells that were interrupted. It reports
// whether that was all: the kernel itself does nothing that could be interrupted.
func (s *Supervisor) interruptWaitLocked() bool {
	s.parker.calls.At = time.Time{} // the signal ends the wait of a call
	if !s.parker.waits() {
		return false
	}
	g := s.kernel.gates[jupyter.Shell]
	for _, m := range g.Drop(needsGPU) {
		if m.Req != nil {
			s.clients.abort(m.Req, "aborted", "KeyboardInterrupt", "interrupted while it waited for its GPU")
		}
	}
	s.parker.wish = false
	s.notices.GPU.End("")
	if s.parker.state != api.GPUParking { // else its end releases the gate
		g.Release(gate.Parked)
	}
	goroutines.Wake(s.parker.changed)
	return !s.use.Works()
}

// gpuUseLocked returns what the kernel does with its GPU.
func (s *Supervisor) gpuUseLocked() (u parking.Use) {
	now, _ := s.use.Usage()
	u.Woken, u.KeepUntil = s.parker.woken, s.use.KeepGPUUntil
	for _, d := range s.use.GPUs.Devices {
		u.Memory += d.MemoryUsed
	}
	if !now.Up || now.Busy || s.assigning.warm || len(s.use.GPUs.Devices) == 0 {
		return u
	}
	last := s.use.LastActivity()
	if since := s.use.Idle().Since; since.After(last) {
		last = since
	}
	u.IdleSince = s.use.GPUs.IdleSince(last)
	return u
}

// beginParking begins the parker's part of a life whose process has just started or was adopted.
func (l *life) beginParking(ctx context.Context) (end func()) {
	p := &l.s.parker
	if p.seat == nil {
		return func() {}
	}
	l.s.kernel.gates[jupyter.Shell].Hold(gate.Parked) // until it is known who has the GPU
	ctx, cancel := context.WithCancel(ctx)
	p.calls.Held, p.calls.Why = l.proc.HoldsGPUCalls()
	var done sync.WaitGroup
	done.Go(func() { l.park(ctx) })
	done.Go(func() { l.awaitCalls(ctx) })
	return func() {
		cancel()
		done.Wait()
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		p.state, p.reason, p.wish = "", "", false
		l.s.notices.GPU.End("")
		l.s.notices.Parked.End("")
		l.s.kernel.gates[jupyter.Shell].Release(gate.Parked)
	}
}
