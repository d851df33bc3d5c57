package parker

import (
	"cmp"
	"context"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/parking"
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

	fullRetry = 10 * time.Second       // after an attempt that failed because of other parked kernels
	parkRetry = time.Minute            // after another one that failed, if the kernel's use has changed
	parkAgain = 9 * time.Minute        // longer after it, if the kernel's use has not changed
	waitLook  = 20 * time.Millisecond  // between two attempts to take the GPU
	waitLater = 250 * time.Millisecond // after the first second
	waitShown = 300 * time.Millisecond // a shorter wait is not shown
)

// Process is the kernel's process, as package starter has it.
type Process interface {
	gpumemory.Process
	PID() int
	HoldsGPUCalls() (holds bool, why string)
	PassGPUCalls()
}

// life is one life of the kernel's process. Its methods take the lock, except for those whose names end in Locked.
type life struct {
	*Parker
	proc    Process
	adopted bool
	giveUp  func(reason string)
}

// park parks the kernel and wakes it, until its process has ended.
func (l *life) park(ctx context.Context) {
	if !l.findParked(ctx) {
		return
	}
	var kept gpumemory.Kept
	for ctx.Err() == nil {
		l.Mu.Lock()
		until := l.Use.KeepGPUUntil
		save, forOther, wake, ahead, pause := false, false, false, false, parkRetry
		if l.Owns() {
			save, forOther, pause = l.due(false)
		} else {
			wake = l.needsGPU() // CUDA makes it wait
			ahead, pause = l.expects()
		}
		owns := l.Owns()
		l.Mu.Unlock()
		if err := kept.Say(l.seat, owns, until); err != nil {
			l.Logger.Error("kernels that wait do not see how long a GPU is kept", logkey.Err, err)
		}
		if forOther && !save {
			save = l.seat.Wanted()
		}
		switch {
		case save:
			l.save(ctx)
		case wake:
			l.wake(ctx)
		case ahead && l.takeFree():
			l.regain(ctx, time.Now(), l.Now())
		default:
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-l.changed:
			case <-ctx.Done():
			}
			t.Stop()
		}
	}
}

// awaitCalls hears of calls of CUDA that wait, until the process has ended. What restores GPU memory makes them too.
func (l *life) awaitCalls(ctx context.Context) {
	for {
		select {
		case <-l.called:
		case <-ctx.Done():
			return
		}
		l.Mu.Lock()
		if l.calls.At = l.Now(); l.own {
			l.woken = l.calls.At // it is about to use the GPU
			l.passCallsLocked()
		}
		l.Mu.Unlock()
		l.Changed()
	}
}

// gotGPULocked lets the kernel have what waited for the GPU.
func (l *life) gotGPULocked() {
	l.own, l.wish, l.woken = true, false, l.Now()
	l.passCallsLocked()
	l.Notices.GPU.End("")
	l.Notices.Parked.End("")
	l.Shell.Release(gate.Parked)
}

// passCallsLocked lets the calls of CUDA go on that wait. The GPU is the kernel's.
func (l *life) passCallsLocked() {
	l.calls.At = time.Time{}
	l.proc.PassGPUCalls()
}

// findParked finds out what the start or an earlier supervisor has left. Most kernels start without their GPU. It
// reports false if the kernel was killed, or has ended.
func (l *life) findParked(ctx context.Context) bool {
	own, err := l.seat.Owns()
	if err != nil { // whatever needs the GPU takes it, also if it is the kernel's
		l.Logger.Warn("it is not known who has the kernel's GPU", logkey.Err, err)
	}
	state := api.GPUNone
	if own {
		state = api.GPUHeld
	}
	if l.adopted {
		// A command of the earlier supervisor may still run.
		a := l.driver.Settle(ctx, l.proc, gpu.Look, unknownMemory)
		for limit := l.Now().Add(adoptLimit); a.State == gpu.CUDAUnknown && l.Now().Before(limit); {
			if goroutines.Sleep(ctx, gpumemory.Pause) != nil {
				return false
			}
			a = l.driver.Settle(ctx, l.proc, gpu.Look, unknownMemory)
		}
		switch a.State {
		case gpu.CUDASaved:
			state = api.GPUParked
			if err := l.seat.Return(); err != nil {
				l.Logger.Error("a GPU is not given back", logkey.Err, err)
			}
		case gpu.CUDALocked, gpu.CUDAUnknown, gpu.CUDAUnanswered:
			state = api.GPUParked // it may be. The next cell restores what is saved. The GPU is not given back for it
		case gpu.CUDAFailed:
			l.giveUp(gpumemory.Lost)
			return false
		}
	}
	if state != api.GPUParked {
		l.forgetSaved()
	}
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.saved = state == api.GPUParked
	l.enter(state, "")
	l.own, l.memory, l.failed = state == api.GPUHeld, unknownMemory, 0
	if l.woken, l.ahead = (time.Time{}), (time.Time{}); l.own {
		l.woken = l.Now()
	}
	if l.wish = !l.own && !l.lazy() && l.Shell.Any(messageNeedsGPU); !l.wish {
		l.Shell.Release(gate.Parked)
	}
	return true
}

// save saves the GPU memory and gives the GPU back. If that is not possible the kernel keeps its GPU, and the model
// says why. The driver is asked first, so no message waits if it cannot be done. One kernel of the machine does this at
// a time, and the kernel that waits has taken the GPU before the next one looks.
func (l *life) save(ctx context.Context) {
	end, err := l.seat.Exclusive(ctx)
	if err != nil {
		if goroutines.Sleep(ctx, parkLook) == nil {
			l.Logger.Error("the kernel keeps its GPU", logkey.Err, err)
		}
		return
	}
	defer end()
	l.Mu.Lock()
	memory := l.use().Memory
	l.Mu.Unlock()
	a, why, cause := l.driver.Ask(ctx, l.proc, gpu.Look, memory), "", api.CauseMemory
	switch {
	case ctx.Err() != nil:
		return
	case a.Failure != nil:
		why, cause = a.Failure.Error(), gpumemory.CauseOf(a.Failure)
	case a.State == gpu.CUDARunning && l.SameMachine:
		why = process.NoRoom(l.proc.PID(), memory)
	}
	if why == "" && a.State != gpu.CUDANone {
		why, cause = l.reserve(cmp.Or(a.PID, l.proc.PID()), memory), api.CauseBound
	}
	wanted := l.seat.Wanted()
	l.Mu.Lock()
	if why != "" {
		l.keepGPULocked(why, cause)
		l.Mu.Unlock()
		return
	}
	if due, _, _ := l.due(wanted); !due {
		l.Mu.Unlock()
		l.forgetSaved()
		return // a message came, or the other kernel waits no more
	}
	l.own, l.saved = false, a.State != gpu.CUDANone
	l.enter(api.GPUParking, "")
	l.Shell.Hold(gate.Parked)
	l.Mu.Unlock()
	began := time.Now()
	if a.State != gpu.CUDANone {
		a = l.driver.Settle(ctx, l.proc, gpu.Save, memory)
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
	l.Mu.Lock()
	l.gotGPULocked()
	l.Mu.Unlock()
	if a.State != gpu.CUDARunning && !l.restore(ctx, memory) {
		return
	}
	l.forgetSaved()
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.gotGPULocked()
	l.keepGPULocked(why, gpumemory.CauseOf(a.Failure))
}

// awaitTaken waits until the kernel that waits has taken the GPU, so that no other kernel gives its GPU back for it. It
// does not wait if this kernel needs its GPU again.
func (l *life) awaitTaken(ctx context.Context) {
	for limit := time.Now().Add(takeLimit); l.seat.Wanted() && time.Now().Before(limit); {
		l.Mu.Lock()
		wish := l.needsGPU()
		l.Mu.Unlock()
		if wish || goroutines.Sleep(ctx, waitLook) != nil {
			return
		}
	}
}

// keepGPULocked notes that the kernel was not parked. That is tried again soon after the kernel has done something, and
// later in any case: a process of the kernel may have ended. It is tried again at once if only ekg-gpu was not there,
// and soon if other parked kernels take too much memory.
func (l *life) keepGPULocked(why string, cause api.ParkCause) {
	if l.reason != why {
		l.Logger.Info("the kernel keeps its GPU", logkey.Reason, why)
	}
	l.enter(api.GPUFailed, why)
	l.cause = cause
	l.failed, l.retry = l.Use.Version(), l.Now().Add(parkRetry)
	switch {
	case why == process.NoGPUProgram:
		l.failed, l.retry = 0, l.Now().Add(parkLook)
	case cause == api.CauseBound:
		l.failed, l.retry = 0, l.Now().Add(fullRetry)
	}
}

// reserve notes what a process of the kernel takes of the machine's memory while the kernel is parked. It says why that
// is too much; "": it is not.
func (l *life) reserve(pid int, memory int64) (why string) {
	takes, bound := parking.HostMemory(memory), l.settings.Memory
	others, err := l.seat.Saved()
	if err == nil && bound > 0 && others+takes > bound {
		return gpumemory.OverBound(takes, others, bound)
	}
	if err == nil {
		err = l.seat.NoteSaved(pid, takes)
	}
	if err != nil {
		return "it is not known what parked kernels take of the machine's memory: " + err.Error()
	}
	return ""
}

// forgetSaved notes that the kernel takes no memory of the machine instead of its GPU's.
func (l *life) forgetSaved() {
	if err := l.seat.ForgetSaved(); err != nil {
		l.Logger.Error("memory of the machine still counts as a parked kernel's", logkey.Err, err)
	}
}

// gaveBack gives the GPU back, whose memory is saved, or which the kernel does not use.
func (l *life) gaveBack(state gpu.CUDAState, memory int64, took time.Duration) {
	if err := l.seat.Return(); err != nil {
		l.Logger.Error("a GPU is not given back", logkey.Err, err)
	}
	l.Logger.Info("the kernel has given its GPU back", logkey.GPU, string(state), logkey.Memory, memory, logkey.Took, took)
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.typed = time.Time{} // what came before was for another cell
	to := api.GPUNone
	if state == gpu.CUDASaved {
		to, l.memory = api.GPUParked, memory
	}
	l.saved = to == api.GPUParked
	l.enter(to, "")
	for sess := range l.Sessions.All() {
		l.Notices.Parked.Add(sess.Number, sess.LastCell)
	}
	l.Notices.Parked.Show(gpumemory.Said(to, memory, l.Now()))
	if !l.wish {
		l.Shell.Release(gate.Parked)
	}
}

// wake takes the GPU again.
func (l *life) wake(ctx context.Context) {
	l.Mu.Lock()
	saved := l.saved
	l.enter(api.GPUWaking, "")
	l.Mu.Unlock()
	began := time.Now()
	if !l.takeGPU(ctx) {
		l.Mu.Lock()
		defer l.Mu.Unlock()
		l.Notices.GPU.End("")
		l.enter(api.GPUNone, "")
		if saved {
			l.enter(api.GPUParked, "")
		}
		return
	}
	l.regain(ctx, began, time.Time{})
}

// takeFree takes the GPU if it is free and no other kernel waits for it.
func (l *life) takeFree() bool {
	if l.seat.Wanted() {
		return false
	}
	own, err := l.seat.TakeFree()
	if err != nil {
		l.Logger.Error("the kernel cannot take its GPU ahead of a cell", logkey.Err, err)
	}
	return own
}

// regain lets the kernel have the messages that wait for the GPU, which is its own again, and restores the GPU memory
// beside them: calls of CUDA wait until it is there. began is when the kernel began to wait. ahead is when it took the
// GPU ahead of a cell; zero: for one.
func (l *life) regain(ctx context.Context, began, ahead time.Time) {
	waited := time.Since(began)
	l.Mu.Lock()
	saved, memory := l.saved, l.memory
	l.ahead = ahead
	if ahead.IsZero() {
		l.wakes.Waits.Add(waited)
	}
	l.enter(api.GPUWaking, "")
	l.gotGPULocked()
	l.Mu.Unlock()
	if saved {
		if !l.restore(ctx, memory) {
			return
		}
		l.forgetSaved()
	}
	took := time.Since(began)
	l.Logger.Info("the kernel has its GPU again", logkey.Waited, waited, logkey.Took, took)
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if saved {
		l.wakes.Restores.Add(took - waited)
	}
	l.enter(api.GPUHeld, "")
	l.gotGPULocked()
}

// takeGPU waits for the kernel's GPU. It returns false if nothing needs it any more.
func (l *life) takeGPU(ctx context.Context) bool {
	began := l.Now()
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
				l.Logger.Error("the kernel cannot take its GPU; this is tried again", logkey.Err, err)
			}
		}
		if turn == nil {
			var err error
			if turn, err = l.seat.Wait(began); err != nil {
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
		text := gpumemory.Waits(l.seat, before)
		l.Mu.Lock()
		l.answerLooks()
		wanted := l.needsGPU()
		if wanted && text != shown && l.Now().Sub(began) >= waitShown {
			l.showWait(text)
			shown = text
		}
		l.Mu.Unlock()
		pause := waitLook
		if l.Now().Sub(began) > time.Second {
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
		a := l.driver.Settle(ctx, l.proc, gpu.Restore, memory)
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
			l.Logger.Warn("GPU memory is not restored yet; this is tried again", logkey.Err, told)
			l.Mu.Lock()
			l.enter(api.GPUWaking, told)
			l.Mu.Unlock()
		}
		if goroutines.Sleep(ctx, gpumemory.Pause) != nil {
			return false
		}
	}
}
