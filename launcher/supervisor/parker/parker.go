// Package parker parks the kernel of one supervisor and wakes it: it saves the kernel's GPU memory, gives the GPU back,
// takes it again when something needs it, and restores the memory. Package parking has the rules, gpumemory asks the
// driver, and a Seat lends the GPU. Package supervisor hands a Parker the kernel's messages and calls of CUDA, and
// shows its state. Begin with Parker.Begin. It starts two goroutines for each life of the kernel, and returns the
// function that ends them and waits for them.
package parker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/activity"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/notices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// Options are what a Parker needs of its supervisor. All are set.
type Options struct {
	Mu          sync.Locker // guards the Parker, and what follows up to Abort; its Unlock commits
	Use         *activity.Use
	Shell       *gate.Gate // the gate of the shell channel
	Log         *messagelog.Log
	Notices     *notices.Notices
	Requests    *requests.Table
	Sessions    *session.Table
	Warm        func() bool                                             // the kernel has no owner yet
	Abort       func(r *requests.Request, status, ename, reason string) // ends a request that the kernel does not answer
	Now         func() time.Time
	SameMachine bool // the kernel runs on this machine
	Logger      *slog.Logger
}

// Parker is what has become of the GPU of a kernel that may be parked. Options.Mu guards it. Methods need that lock,
// except for SetSeat, Begin, Answered, Called and Changed.
//
// The gate of shell is shut while the GPU memory is being saved, and while a message waits for the GPU. It is open
// while the kernel is parked: messages pass that need no GPU. Calls of CUDA wait in the driver then, so nothing is lost
// if one is made all the same.
type Parker struct {
	// Fixed.
	Options
	seat     gpumemory.Seat // nil: the kernel keeps its GPU until its end
	settings parking.Settings
	changed  chan struct{} // capacity 1: a message needs the GPU, or the kernel's use has changed
	called   chan struct{} // capacity 1: a call of CUDA waits
	driver   *gpumemory.Driver

	// Guarded by Options.Mu.
	state   api.ParkState // "": seat is nil, or no process runs
	since   time.Time
	reason  string
	cause   api.ParkCause // the class of the reason in the state GPUFailed
	wakes   api.Wakes     // since this supervisor was started
	version uint64        // changes with state and reason
	own     bool          // the GPU is the kernel's, and is not about to be given back
	wish    bool          // a message waits for the GPU, or the kernel computes without it
	woken   time.Time     // when it got the GPU last
	memory  int64         // bytes that were saved last
	failed  uint64        // version of the use at the last attempt that failed
	retry   time.Time     // not before then
	saved   bool          // its GPU memory is saved, or may be; means nothing while own is set
	typed   time.Time     // the last sign that a cell will follow; zero: there was none
	ahead   time.Time     // when it got the GPU ahead of a cell; zero: it did not, or has used it since
	calls   gpumemory.Calls
}

// New returns the Parker of a kernel that keeps its GPU.
func New(o Options) *Parker {
	return &Parker{Options: o, changed: make(chan struct{}, 1), called: make(chan struct{}, 1), driver: gpumemory.New()}
}

// SetSeat lets the kernel give its GPU back while it does nothing. It must be called before the first Begin.
func (p *Parker) SetSeat(seat gpumemory.Seat, o api.Park) {
	p.seat, p.settings = seat, parking.Settings{Idle: o.Idle, After: o.After, IdleMemory: o.IdleMemory, Memory: o.Memory}
}

// Answered takes an answer of ekg-gpu. It does not wait.
func (p *Parker) Answered(a gpu.Answer) { p.driver.Answered(a) }

// Called notes that a call of CUDA waits. It does not wait.
func (p *Parker) Called() { goroutines.Wake(p.called) }

// Changed notes that the kernel's use has changed. It does not wait.
func (p *Parker) Changed() { goroutines.Wake(p.changed) }

// Parks reports whether the kernel may be parked.
func (p *Parker) Parks() bool { return p.seat != nil }

// enter changes the state. The reason of GPUNone is why cells take the GPU though they may not use it.
func (p *Parker) enter(state api.ParkState, reason string) {
	if p.state != state {
		p.since = p.Now()
	}
	if state == api.GPUNone {
		reason = p.calls.Why
	}
	if p.state != state || p.reason != reason {
		p.version++
	}
	p.state, p.reason = state, reason
	p.Use.Park(state == api.GPUParked)
}

// Version changes when what Shown returns has changed, except for the time that it is given.
func (p *Parker) Version() uint64 { return p.version }

// Owns reports whether the kernel has its GPU, as far as its messages are concerned.
func (p *Parker) Owns() bool { return p.seat == nil || p.state == "" || p.own }

// Away reports whether the kernel has given its GPU back.
func (p *Parker) Away() bool { return p.state.GaveBack() && !p.own }

// Shown returns the state for models. The owner keeps the GPU until a time; zero: not.
func (p *Parker) Shown(kept time.Time) api.Parked {
	if p.state == "" {
		return api.Parked{}
	}
	shown := api.Parked{State: p.state, Since: api.Timestamp(p.since), Reason: p.reason,
		KeepGPUUntil: api.OptionalTimestamp(kept)}
	if p.state == api.GPUFailed {
		shown.Cause = p.cause
	}
	return shown
}

// Wakes returns what was counted since this supervisor was started.
func (p *Parker) Wakes() api.Wakes { return p.wakes }

// lazy reports whether the kernel does without the GPU until it makes a call of CUDA: nothing of it is saved.
func (p *Parker) lazy() bool { return p.calls.Held && !p.saved }

// Lacks reports whether a message needs the GPU, and the kernel has to get it first.
func (p *Parker) Lacks(m *jupyter.Message, msgType string) bool {
	return !p.Owns() && !p.lazy() && gpumemory.Needs(m, msgType)
}

// waits reports whether messages wait for the GPU.
func (p *Parker) waits() bool { return p.wish && !p.Owns() }

// Hold makes a message wait that needs the GPU of a kernel without it. Those behind it wait too, since the kernel gets
// all in order.
func (p *Parker) Hold(m *jupyter.Message, msgType string) {
	if !p.Lacks(m, msgType) {
		return
	}
	p.wish = true
	if m.Channel == jupyter.Shell {
		p.Shell.Hold(gate.Parked)
	}
	p.Changed()
}

// needsGPU reports whether something waits for the GPU, or the kernel computes without it.
func (p *Parker) needsGPU() bool { return p.wish || p.calls.Wait(p.Now()) || !p.lazy() && p.computes() }

// computes reports whether the kernel works on a request that may need the GPU.
func (p *Parker) computes() bool { return p.Use.WorksOn(gpumemory.NeedsType) }

// messageNeedsGPU reports whether a message at the gate needs the GPU.
func messageNeedsGPU(m *gate.Message) bool {
	_, msgType := jupyter.IDAndType(m.Msg.Header)
	return gpumemory.Needs(&m.Msg, msgType)
}

// showWait shows in the cells that wait why they wait.
func (p *Parker) showWait(text string) {
	p.enter(api.GPUWaking, text)
	for r := range p.Requests.Open() {
		if r.Executes() && r.Session != 0 {
			p.Notices.GPU.Add(r.Session, r.Header)
		}
	}
	p.Notices.GPU.Show("This cell waits for its GPU: " + text)
}

// answerLooks answers what an editor has asked, since its user does not wait for a GPU. Without it no message may wait,
// and then the kernel stays parked.
func (p *Parker) answerLooks() {
	dropped := p.Shell.Drop(func(m *gate.Message) bool { return m.Req != nil && gpumemory.Looks(m.Req.Type) })
	for _, m := range dropped {
		if m.Req.Session != 0 {
			p.Log.Append(m.Req.Session, p.Notices.Nothing(m.Req.Type, m.Req.Header), true)
		}
		m.Req.Replied = true
		p.Abort(m.Req, "", "", "")
	}
	if !p.Shell.Any(messageNeedsGPU) && !p.computes() {
		p.wish = false
		p.Shell.Release(gate.Parked)
	}
}

// ExpectCell notes a sign that a cell will follow, as when a user types. A parked kernel takes its GPU for it if the
// GPU is free and no other kernel waits for it. It gives the GPU back if no cell follows.
func (p *Parker) ExpectCell() {
	p.typed = p.Now()
	p.Changed()
}

// expects reports whether the kernel is to take a free GPU ahead of a cell, and otherwise how long it is until that may
// be.
func (p *Parker) expects() (now bool, pause time.Duration) {
	if p.state != api.GPUParked {
		return false, parkRetry
	}
	at := p.Now()
	d := p.settings.Next([]parking.Kernel{{State: parking.Parked, GPUs: []string{"its own"}, Asked: p.typed,
		Use: parking.Use{Ahead: true, Woken: p.woken, Memory: p.memory}}}, at)
	switch {
	case len(d.Lend) > 0:
		return true, parkLook
	case d.Again.IsZero():
		return false, parkRetry // until something changes
	}
	return false, min(d.Again.Sub(at), parkRetry)
}

// Interrupt ends the wait for the GPU: what waits is answered as cells that were interrupted. It reports whether that
// was all: the kernel itself does nothing that could be interrupted.
func (p *Parker) Interrupt() bool {
	p.calls.At = time.Time{} // the signal ends the wait of a call
	if !p.waits() {
		return false
	}
	for _, m := range p.Shell.Drop(messageNeedsGPU) {
		if m.Req != nil {
			p.Abort(m.Req, "aborted", "KeyboardInterrupt", "interrupted while it waited for its GPU")
		}
	}
	p.wish = false
	p.Notices.GPU.End("")
	if p.state != api.GPUParking { // else its end releases the gate
		p.Shell.Release(gate.Parked)
	}
	p.Changed()
	return !p.Use.Works()
}

// use returns what the kernel does with its GPU. It notes whether the GPU was used that was taken ahead of a cell.
func (p *Parker) use() (u parking.Use) {
	now, _ := p.Use.Usage()
	u.Woken, u.KeepUntil = p.woken, p.Use.KeepGPUUntil
	for _, d := range p.Use.GPUs.Devices {
		u.Memory += d.MemoryUsed
		if d.BusySince > api.Timestamp(p.ahead) {
			p.ahead = time.Time{}
		}
	}
	if p.Use.Idle().Since.After(p.ahead) { // a cell has ended
		p.ahead = time.Time{}
	}
	u.Ahead, u.Typed = !p.ahead.IsZero(), p.typed
	if !now.Up || now.Busy || p.Warm() || len(p.Use.GPUs.Devices) == 0 {
		return u
	}
	last := p.Use.LastActivity()
	if since := p.Use.Idle().Since; since.After(last) {
		last = since
	}
	u.IdleSince = p.Use.GPUs.IdleSince(last)
	return u
}

// due reports whether the kernel is to be parked now. wanted says whether another kernel waits for its GPU. Otherwise
// it reports whether it would be parked now for another one, and how long it is until the answer may change.
func (p *Parker) due(wanted bool) (now, forOther bool, pause time.Duration) {
	use, at := p.use(), p.Now()
	retry := p.retry
	if p.Use.Version() == p.failed {
		retry = retry.Add(parkAgain)
	}
	if wait := retry.Sub(at); wait > 0 {
		return false, false, min(wait, parkRetry)
	}
	// The first moment at which it could be parked for another kernel; nobody else is asked before.
	due, ok := p.settings.Due(use, true)
	if !ok {
		return false, false, parkRetry // until something changes
	}
	if wait := due.Sub(at); wait > 0 {
		return false, false, min(wait, parkRetry)
	}
	if wanted {
		return true, true, 0
	}
	due, ok = p.settings.Due(use, false)
	return ok && !at.Before(due), true, parkLook
}

// Begin begins the Parker's part of a life of the kernel, whose process has just started or was adopted. giveUp ends a
// kernel that has lost its GPU memory, with a reason. The caller calls end when the process has ended.
func (p *Parker) Begin(ctx context.Context, proc Process, adopted bool, giveUp func(string)) (end func()) {
	if p.seat == nil {
		return func() {}
	}
	p.Shell.Hold(gate.Parked) // until it is known who has the GPU
	ctx, cancel := context.WithCancel(ctx)
	p.calls.Held, p.calls.Why = proc.HoldsGPUCalls()
	l := &life{Parker: p, proc: proc, adopted: adopted, giveUp: giveUp}
	var done sync.WaitGroup
	done.Go(func() { l.park(ctx) })
	done.Go(func() { l.awaitCalls(ctx) })
	return func() {
		cancel()
		done.Wait()
		p.Mu.Lock()
		defer p.Mu.Unlock()
		p.state, p.reason, p.wish = "", "", false
		p.Use.Park(false)
		p.version++
		p.Notices.GPU.End("")
		p.Notices.Parked.End("")
		p.Shell.Release(gate.Parked)
	}
}
