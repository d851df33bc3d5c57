package local

import (
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/follow"
	"github.com/elastic-kernel-gateway/ekg/launcher/local/logs"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// followed adapts a kernel to follow.Kernel.
type followed struct {
	l *Launcher
	k *kernel
}

// ensureFollowed starts to follow the supervisor of a kernel that is not gone.
func (l *Launcher) ensureFollowed(k *kernel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.gone == nil {
		l.follower.FollowLocked(&k.supervisor, followed{l, k})
	}
}

// ID returns the kernel's id.
func (f followed) ID() string { return f.k.id }

// Client returns a client of the kernel's supervisor.
func (f followed) Client() (*api.Client, error) { return f.k.client(), nil }

// Rest reconciles the kernel. If the kernel has a supervisor, Rest waits for the pause.
func (f followed) Rest(pause time.Duration) (again bool) {
	if v := f.l.reconcile(f.k); v == dead || v == gone || v == inLine {
		return false
	}
	return goroutines.Sleep(f.l.ctx, pause) == nil
}

// enter records a status. It unlocks also if that panics: a follower's goroutine survives that.
func (f followed) enter(
	st api.Status, end *api.Ending, enterLocked func() (follow.Supervisor, bool),
) (before follow.Supervisor, ok bool) {
	l, k := f.l, f.k
	l.mu.Lock()
	defer l.mu.Unlock()
	if st.State == api.Dead {
		l.tally.gpusLocked(k) // up to its end
	}
	if before, ok = enterLocked(); !ok {
		return before, false
	}
	if !before.HasStatus || before.Status.PID != st.PID {
		k.pushedLimit = st.LogLimit
	}
	l.tally.cullLocked(k, end)
	l.tally.startLocked(k)
	return before, true
}

// Receive records a status and reacts to it.
func (f followed) Receive(st api.Status, enterLocked func() (follow.Supervisor, bool)) {
	l, k := f.l, f.k
	var end *api.Ending // of a kernel whose supervisor lingers
	if st.State == api.Dead {
		l.lender.Wake() // it has given its GPUs back
		var err error
		if end, err = l.layout.readEnding(k.id); err != nil {
			l.log.Warn("record of a kernel's end cannot be read", logkey.Kernel, k.id, logkey.Err, err)
		}
	}
	before, ok := f.enter(st, end, enterLocked)
	if !ok {
		return
	}
	newSupervisor := !before.HasStatus || before.Status.PID != st.PID
	switch {
	case !newSupervisor && logs.IsUrgent(&before.Status, &st):
		l.logs.recount()
	case newSupervisor || logs.HasChanged(&before.Status, &st):
		l.logs.recountSoon()
	}
	// Until the kernel has a process, the lock says which process to end.
	starts := st.KernelPID == 0 && before.Status.KernelPID == 0 && st.ParentPID != 0
	if !starts && (newSupervisor || before.Status.KernelPID != st.KernelPID) {
		l.processes.writeProcesses(k, processIDs{Parent: st.ParentPID, Supervisor: st.PID, Kernel: st.KernelPID})
	}
}
