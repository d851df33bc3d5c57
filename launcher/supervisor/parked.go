package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gate"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
)

const (
	parkLook  = time.Second            // between two looks whether another kernel waits for the GPU
	parkRetry = time.Minute            // after an attempt that failed, and until the kernel's use has changed
	waitLook  = 20 * time.Millisecond  // between two attempts to take the GPU
	waitShown = 300 * time.Millisecond // a shorter wait is not shown
)

// park parks the kernel and wakes it, until its process has ended.
func (l *life) park(ctx context.Context) {
	s, p := l.s, &l.s.parker
	if !l.findParked(ctx) {
		return
	}
	for ctx.Err() == nil {
		s.mu.Lock()
		wake, pause := false, time.Duration(0)
		save := false
		if p.owns() {
			save, pause = s.parkDueLocked()
		} else {
			wake = p.wish || s.use.Works() // it computes without its GPU, and CUDA makes it wait
			pause = parkRetry
		}
		if save {
			p.enter(api.GPUParking, "", s.nowLocked())
			s.kernel.gates[jupyter.Shell].Hold(gate.Parked)
		}
		s.mu.Unlock()
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

// parkDueLocked reports whether the kernel is to be parked now, and otherwise how long it is until that may be.
func (s *Supervisor) parkDueLocked() (now bool, pause time.Duration) {
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
	if p.seat.Wanted() {
		return true, 0
	}
	due, ok = p.settings.Due(use, false)
	return ok && !at.Before(due), parkLook
}

// findParked finds out what an earlier supervisor has left. It reports false if the kernel was killed.
func (l *life) findParked(ctx context.Context) bool {
	s, p := l.s, &l.s.parker
	own, err := p.seat.Owns()
	if err != nil {
		s.logger.Warn("it is not known who has the kernel's GPU", logkey.Err, err)
	}
	state := api.GPUNone
	if own {
		state = api.GPUHeld
	}
	if l.started.Adopted {
		switch a := p.driver.Ask(ctx, l.proc, gpu.Look, 0); a.State {
		case gpu.CUDASaved:
			state = api.GPUParked
			if err := p.seat.Return(); err != nil {
				s.logger.Error("a GPU is not given back", logkey.Err, err)
			}
		case gpu.CUDALocked:
			p.driver.Ask(ctx, l.proc, gpu.Restore, 0) // unlocks
		case gpu.CUDAFailed:
			l.giveUp(lostGPU)
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.enter(state, "", s.nowLocked())
	p.failed, p.woken = 0, s.now()
	if p.wish = !p.owns() && s.clients.requests.OldestCell() != nil; !p.wish {
		s.kernel.gates[jupyter.Shell].Release(gate.Parked)
	}
	return true
}

// Reasons of a kernel's end.
const (
	lostGPU   = "NVIDIA's driver could not bring its GPU memory back, and its variables there are lost"
	silentGPU = "NVIDIA's driver does not answer whether its GPU memory is saved"
)

// save saves the GPU memory and gives the GPU back. If that is not possible the kernel keeps its GPU, and the model
// says why.
func (l *life) save(ctx context.Context) {
	s, p := l.s, &l.s.parker
	s.mu.Lock()
	memory := s.gpuUseLocked().Memory
	s.mu.Unlock()
	began := time.Now()
	a := p.driver.Ask(ctx, l.proc, gpu.Look, memory)
	why := ""
	switch {
	case a.Failure != nil:
		why = a.Failure.Error()
	case a.State == gpu.CUDARunning:
		if l.s.cfg.SameMachine {
			why = gpumemory.NoRoom(l.proc.PID(), memory)
		}
		if why == "" {
			a = p.driver.Settle(ctx, l.proc, gpu.Save, memory)
		}
	}
	switch {
	case ctx.Err() != nil:
		return
	case a.State == gpu.CUDASaved || a.State == gpu.CUDANone && a.Failure == nil:
		l.gaveBack(a.State, memory, time.Since(began))
		return
	case a.State == gpu.CUDALocked:
		a = p.driver.Settle(ctx, l.proc, gpu.Restore, memory) // unlocks
	}
	switch {
	case ctx.Err() != nil:
		return
	case a.State == gpu.CUDAFailed:
		l.giveUp(lostGPU)
		return
	case a.State == gpu.CUDAUnanswered && why == "":
		l.giveUp(silentGPU)
		return
	case why == "" && a.Failure != nil && a.Failure.Computes():
		why = "its GPU computes"
	case why == "" && a.Failure != nil:
		why = a.Failure.Error()
	case why == "":
		why = "the attempt to save its GPU memory has failed"
	}
	s.logger.Info("the kernel keeps its GPU", logkey.Reason, why)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.enter(api.GPUFailed, why, s.nowLocked())
	p.failed, p.retry = s.use.Version(), s.now().Add(parkRetry)
	s.gotGPULocked()
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
	p.enter(to, "", s.nowLocked())
	for sess := range s.clients.sessions.All() {
		s.notices.Parked.Add(sess.Number, sess.LastCell)
	}
	s.notices.Parked.Show(saidParked(to, memory, s.nowLocked()))
	if !p.wish {
		s.kernel.gates[jupyter.Shell].Release(gate.Parked)
	}
}

// wake takes the GPU again, lets the kernel have the messages that wait, and restores the GPU memory beside them: calls
// of CUDA wait until it is there.
func (l *life) wake(ctx context.Context) {
	s, p := l.s, &l.s.parker
	s.mu.Lock()
	saved, memory := p.state == api.GPUParked, p.memory
	p.enter(api.GPUWaking, "", s.nowLocked())
	s.mu.Unlock()
	began := time.Now()
	if !l.takeGPU(ctx) {
		s.mu.Lock()
		defer s.mu.Unlock()
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
	p.woken = s.now()
}

// takeGPU waits for the kernel's GPU. It returns false if nothing needs it any more.
func (l *life) takeGPU(ctx context.Context) bool {
	s, p := l.s, &l.s.parker
	began := s.now()
	var turn Turn
	defer func() {
		if turn != nil {
			turn.Leave()
		}
	}()
	for shown := ""; ; {
		if turn == nil {
			var err error
			if turn, err = p.seat.Wait(began); err != nil {
				s.logger.Error("the kernel cannot wait for its GPU; this is tried again", logkey.Err, err)
			}
		}
		taken, before := false, 0
		if turn != nil {
			var err error
			if taken, before, err = turn.Take(); err != nil {
				s.logger.Error("the kernel cannot take its GPU; this is tried again", logkey.Err, err)
				turn.Leave()
				turn = nil
			}
		}
		if taken {
			return true
		}
		text := "another kernel computes on it"
		if before > 0 {
			text = fmt.Sprintf("%d other kernels are before this one", before)
		}
		s.mu.Lock()
		s.answerLooksLocked()
		wanted := p.wish || s.use.Works()
		if wanted && text != shown && s.now().Sub(began) >= waitShown {
			s.showGPUWaitLocked(text)
			shown = text
		}
		s.mu.Unlock()
		if !wanted || goroutines.Sleep(ctx, waitLook) != nil {
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
			l.giveUp(lostGPU)
			return false
		case a.State == gpu.CUDAUnanswered:
			l.giveUp(silentGPU)
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
