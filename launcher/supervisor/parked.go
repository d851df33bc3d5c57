package supervisor

import (
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/process"
)

const (
	parkLook   = time.Second      // between two looks whether another kernel waits for the GPU
	takeLimit  = 2 * time.Second  // for the kernel that waits to take a GPU that was given back
	adoptLimit = 30 * time.Second // for ekg-gpu to tell what an earlier supervisor has left

	// unknownMemory stands for the GPU memory of a kernel that an earlier supervisor has parked, in bytes: ekg-gpu gets
	// time for the largest GPUs.
	unknownMemory = 192 << 30

	parkRetry = time.Minute            // after an attempt that failed, and until the kernel's use has changed
	waitLook  = 20 * time.Millisecond  // between two attempts to take the GPU
	waitLater = 250 * time.Millisecond // after the first second
	waitShown = 300 * time.Millisecond // a shorter wait is not shown
)

// park parks the kernel and wakes it, until its process has ended.
func (l *life) park(ctx context.Context) {
	s, p := l.s, &l.s.parker
	if !l.findParked(ctx) {
		return
	}
	var kept gpumemory.Kept
	for ctx.Err() == nil {
		s.mu.Lock()
		until := s.use.KeepGPUUntil
		save, wake, pause := false, false, parkRetry
		if p.owns() {
			save, pause = s.parkDueLocked(false)
		} else {
			wake = s.needsGPULocked() // CUDA makes it wait
		}
		owns := p.owns()
		s.mu.Unlock()
		if err := kept.Say(p.seat, owns, until); err != nil {
			s.logger.Error("kernels that wait do not see how long a GPU is kept", logkey.Err, err)
		}
		if owns && !save && pause == parkLook {
			save = p.seat.Wanted() // it may be parked for another kernel
		}
		switch {
		case save:
			l.save(ctx)
		case wake:
			l.wake(ctx)
		default:
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-p.changed:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
}

// parkDueLocked reports whether the kernel is to be parked now, and otherwise how long it is until that may be. wanted
// says whether another kernel waits for its GPU.
func (s *Supervisor) parkDueLocked(wanted bool) (now bool, pause time.Duration) {
	p, use, at := &s.parker, s.gpuUseLocked(), s.nowLocked()
	if s.use.Version() == p.failed {
		return false, parkRetry // until something changes
	}
	if wait := p.retry.Sub(at); wait > 0 {
		return false, wait
	}
	// The first moment at which it could be parked for another kernel; nobody else is asked before.
	due, ok := p.settings.Due(use, true)
	if !ok {
		return false, parkRetry // until something changes
	}
	if wait := due.Sub(at); wait > 0 {
		return false, min(wait, parkRetry)
	}
	if wanted {
		return true, 0
	}
	due, ok = p.settings.Due(use, false)
	return ok && !at.Before(due), parkLook
}

// findParked finds out what an earlier supervisor has left. It reports false if the kernel was killed, or has ended.
func (l *life) findParked(ctx context.Context) bool {
	s, p := l.s, &l.s.parker
	own, err := p.seat.Owns()
	if err != nil {
		s.logger.Warn("it is not known who has the kernel's GPU", logkey.Err, err)
		own = !l.started.Adopted // its parent has taken it for this start, or holds it no more
	}
	state := api.GPUNone
	if own {
		state = api.GPUHeld
	}
	if l.started.Adopted {
		// A command of the earlier supervisor may still run.
		a := p.driver.Settle(ctx, l.proc, gpu.Look, unknownMemory)
		for limit := s.now().Add(adoptLimit); a.State == gpu.CUDAUnknown && s.now().Before(limit); {
			if goroutines.Sleep(ctx, gpumemory.Pause) != nil {
				return false
			}
			a = p.driver.Settle(ctx, l.proc, gpu.Look, unknownMemory)
		}
		switch a.State {
		case gpu.CUDASaved:
			state = api.GPUParked
			if err := p.seat.Return(); err != nil {
				s.logger.Error("a GPU is not given back", logkey.Err, err)
			}
		case gpu.CUDALocked, gpu.CUDAUnknown, gpu.CUDAUnanswered:
			state = api.GPUParked // it may be. The next cell restores what is saved. The GPU is not given back for it
		case gpu.CUDAFailed:
			l.giveUp(gpumemory.Lost)
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.saved = state == api.GPUParked
	p.enter(state, "", s.nowLocked())
	p.own, p.memory, p.failed, p.woken = state == api.GPUHeld, unknownMemory, 0, s.now()
	g := s.kernel.gates[jupyter.Shell]
	if p.wish = !p.own && !p.lazy() && g.Any(needsGPU); !p.wish {
		g.Release(gate.Parked)
	}
	return true
}

// save saves the GPU memory and gives the GPU back. If that is not possible the kernel keeps its GPU, and the model
// says why. The driver is asked first, so no message waits if it cannot be done. One kernel of the machine does this at
// a time, and the kernel that waits has taken the GPU before the next one looks.
func (l *life) save(ctx context.Context) {
	s, p := l.s, &l.s.parker
	end, err := p.seat.Exclusive(ctx)
	if err != nil {
		if goroutines.Sleep(ctx, parkLook) == nil {
			s.logger.Error("the kernel keeps its GPU", logkey.Err, err)
		}
		return
	}
	defer end()
	s.mu.Lock()
	memory := s.gpuUseLocked().Memory
	s.mu.Unlock()
	a, why := p.driver.Ask(ctx, l.proc, gpu.Look, memory), ""
	switch {
	case ctx.Err() != nil:
		return
	case a.Failure != nil:
		why = a.Failure.Error()
	case a.State == gpu.CUDARunning && s.cfg.SameMachine:
		why = gpumemory.NoRoom(l.proc.PID(), memory)
	}
	wanted := p.seat.Wanted()
	s.mu.Lock()
	if why != "" {
		l.keepGPULocked(why)
		s.mu.Unlock()
		return
	}
	if due, _ := s.parkDueLocked(wanted); !due {
		s.mu.Unlock()
		return // a message came, or the other kernel waits no more
	}
	p.own, p.saved = false, a.State != gpu.CUDANone
	p.enter(api.GPUParking, "", s.nowLocked())
	s.kernel.gates[jupyter.Shell].Hold(gate.Parked)
	s.mu.Unlock()
	began := time.Now()
	if a.State != gpu.CUDANone {
		a = p.driver.Settle(ctx, l.proc, gpu.Save, memory)
	}
	if ctx.Err() == nil && (a.State == gpu.CUDASaved || a.State == gpu.CUDANone) {
		l.gaveBack(a.State, memory, time.Since(began))
		l.awaitTaken(ctx)
		return
	}
	why = "the attempt to save its GPU memory has failed"
	switch {
	case a.Failure == nil:
	case a.Failure.Computes():
		why = "its GPU computes"
	default:
		why = a.Failure.Error()
	}
	// Whatever has become of it: it keeps its GPU, and its memory there comes back.
	s.mu.Lock()
	s.gotGPULocked()
	s.mu.Unlock()
	if a.State != gpu.CUDARunning && !l.restore(ctx, memory) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gotGPULocked()
	l.keepGPULocked(why)
}

// awaitTaken waits until the kernel that waits has taken the GPU, so that no other kernel gives its GPU back for it. It
// does not wait if this kernel needs its GPU again.
func (l *life) awaitTaken(ctx context.Context) {
	s, p := l.s, &l.s.parker
	for limit := time.Now().Add(takeLimit); p.seat.Wanted() && time.Now().Before(limit); {
		s.mu.Lock()
		wish := s.needsGPULocked()
		s.mu.Unlock()
		if wish || goroutines.Sleep(ctx, waitLook) != nil {
			return
		}
	}
}

// keepGPULocked notes that the kernel was not parked. That is tried again when the kernel has done something. If only
// ekg-gpu was not there, it is tried again in any case.
func (l *life) keepGPULocked(why string) {
	s, p := l.s, &l.s.parker
	if p.reason != why {
		s.logger.Info("the kernel keeps its GPU", logkey.Reason, why)
	}
	p.enter(api.GPUFailed, why, s.nowLocked())
	p.failed, p.retry = s.use.Version(), s.now().Add(parkRetry)
	if why == process.NoGPUProgram {
		p.failed, p.retry = 0, s.now().Add(parkLook)
	}
}

// gaveBack gives the GPU back, whose memory is saved, or which the kernel does not use.
func (l *life) gaveBack(state gpu.CUDAState, memory int64, took time.Duration) {
	s, p := l.s, &l.s.parker
	if err := p.seat.Return(); err != nil {
		s.logger.Error("a GPU is not given back", logkey.Err, err)
	}
	s.logger.Info("the kernel has given its GPU back", logkey.GPU, string(state), logkey.Memory, memory, logkey.Took, took)
	s.mu.Lock()
	defer s.mu.Unlock()
	to := api.GPUNone
	if state == gpu.CUDASaved {
		to, p.memory = api.GPUParked, memory
	}
	p.saved = to == api.GPUParked
	p.enter(to, "", s.nowLocked())
	for sess := range s.clients.sessions.All() {
		s.notices.Parked.Add(sess.Number, sess.LastCell)
	}
	s.notices.Parked.Show(gpumemory.Said(to, memory, s.nowLocked()))
	if !p.wish {
		s.kernel.gates[jupyter.Shell].Release(gate.Parked)
	}
}

// wake takes the GPU again, lets the kernel have the messages that wait, and restores the GPU memory beside them: calls
// of CUDA wait until it is there.
func (l *life) wake(ctx context.Context) {
	s, p := l.s, &l.s.parker
	s.mu.Lock()
	saved, memory := p.saved, p.memory
	p.enter(api.GPUWaking, "", s.nowLocked())
	s.mu.Unlock()
	began := time.Now()
	if !l.takeGPU(ctx) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notices.GPU.End("")
		p.enter(api.GPUNone, "", s.nowLocked())
		if saved {
			p.enter(api.GPUParked, "", s.nowLocked())
		}
		return
	}
	waited := time.Since(began)
	s.mu.Lock()
	s.gotGPULocked()
	s.mu.Unlock()
	if saved && !l.restore(ctx, memory) {
		return
	}
	s.logger.Info("the kernel has its GPU again", logkey.Waited, waited, logkey.Took, time.Since(began))
	s.mu.Lock()
	defer s.mu.Unlock()
	p.enter(api.GPUHeld, "", s.nowLocked())
	s.gotGPULocked()
}

// takeGPU waits for the kernel's GPU. It returns false if nothing needs it any more.
func (l *life) takeGPU(ctx context.Context) bool {
	s, p := l.s, &l.s.parker
	began := s.now()
	var turn gpumemory.Turn
	defer func() {
		if turn != nil {
			turn.Leave()
		}
	}()
	for shown, told := "", ""; ; {
		fails := func(err error) {
			if text := err.Error(); text != told {
				told = text
				s.logger.Error("the kernel cannot take its GPU; this is tried again", logkey.Err, err)
			}
		}
		if turn == nil {
			var err error
			if turn, err = p.seat.Wait(began); err != nil {
				fails(err)
			}
		}
		taken, before := false, 0
		if turn != nil {
			var err error
			if taken, before, err = turn.Take(); err != nil {
				fails(err)
				turn.Leave()
				turn = nil
			}
		}
		if taken {
			return true
		}
		text := gpumemory.Waits(p.seat, before)
		s.mu.Lock()
		s.answerLooksLocked()
		wanted := s.needsGPULocked()
		if wanted && text != shown && s.now().Sub(began) >= waitShown {
			s.showGPUWaitLocked(text)
			shown = text
		}
		s.mu.Unlock()
		pause := waitLook
		if s.now().Sub(began) > time.Second {
			pause = waitLater
		}
		if !wanted || goroutines.Sleep(ctx, pause) != nil {
			return false
		}
	}
}

// restore brings the GPU memory back. It returns false if the kernel has ended, or was ended since that is not
// possible.
func (l *life) restore(ctx context.Context, memory int64) bool {
	for told := ""; ; {
		a := l.s.parker.driver.Settle(ctx, l.proc, gpu.Restore, memory)
		switch {
		case ctx.Err() != nil:
			return false
		case a.State == gpu.CUDARunning, a.State == gpu.CUDANone:
			return true
		case a.State == gpu.CUDAFailed:
			l.giveUp(gpumemory.Lost)
			return false
		case a.State == gpu.CUDAUnanswered:
			l.giveUp(gpumemory.Silent)
			return false
		}
		// It is still saved, as when the memory of the last holder is not free yet.
		if a.Failure != nil && a.Failure.Error() != told {
			told = a.Failure.Error()
			l.s.logger.Warn("GPU memory is not restored yet; this is tried again", logkey.Err, told)
			l.s.mu.Lock()
			l.s.parker.enter(api.GPUWaking, told, l.s.nowLocked())
			l.s.mu.Unlock()
		}
		if goroutines.Sleep(ctx, gpumemory.Pause) != nil {
			return false
		}
	}
}
