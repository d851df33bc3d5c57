// Package parking decides which kernel uses a GPU: which kernel is parked, which one is woken, and when. A parked
// kernel keeps its variables in host memory and holds no GPU. All of it is pure: time is an argument. The package
// starts no goroutine and touches no kernel. Its callers save, restore and lend, and tell it what has happened.
package parking

import "time"

const (
	// RestAfterWake is how long a kernel that was just woken keeps its GPU, even if another one waits for it.
	RestAfterWake = 10 * time.Second
	// AheadOfCell is how long a kernel that was woken ahead of its cell keeps its GPU without a cell, and without a sign
	// that its user still types.
	AheadOfCell = 30 * time.Second
	// DefaultIdleMemory is the default of Settings.IdleMemory.
	DefaultIdleMemory = 8 << 30

	// worth is how many times longer than its save and restore a kernel must have been idle.
	worth = 20
	// longestAhead is how long after the wake a user's typing counts.
	longestAhead = 2 * time.Minute
)

// Settings say when idle kernels are parked. The zero value parks no kernel.
type Settings struct {
	// Idle is how long a kernel must be idle before it gives its GPU to one that waits. Zero or less: it is never
	// parked.
	Idle time.Duration
	// After is how long a kernel must be idle before it is parked though no kernel waits. It counts as Idle if it is
	// shorter. Zero or less: it is parked only for one that waits.
	After time.Duration
	// IdleMemory bounds the GPU memory, in bytes, of a kernel that is parked though no kernel waits. Zero or less:
	// DefaultIdleMemory.
	IdleMemory int64
	// Memory bounds what all parked kernels together take of host memory, in bytes. Zero: it is not bounded.
	Memory int64
}

// Use is what a kernel does with the GPU that it holds.
type Use struct {
	// IdleSince is the end of its last cell and of its GPU's last activity, the later one. Zero: it is busy.
	IdleSince time.Time
	// Woken is when it last got a GPU. Zero: not known.
	Woken time.Time
	// KeepUntil is until when its owner keeps the GPU for it. Zero: the owner does not.
	KeepUntil time.Time
	// Memory is what it uses of the GPU's memory, in bytes.
	Memory int64
	// Listed says that it runs a list of cells, as a job does, and that the list has not ended.
	Listed bool
	// Resident says that it cannot be parked: its memory is of a kind that cannot be saved, say.
	Resident bool
	// Ahead says that it asks for its GPU, or got it, ahead of a cell that has not come yet: its user types.
	Ahead bool
	// Typed is the last sign that its user types. It counts only if Ahead is set. Zero: there was one sign, which is why
	// Ahead is set.
	Typed time.Time
}

// Due returns from when a kernel is to be parked, if its use and the waiting stay as they are. Waited says that another
// kernel waits for its GPU. The result is false if the kernel is not to be parked: ask again when something changes.
func (s Settings) Due(u Use, waited bool) (time.Time, bool) {
	if s.Idle <= 0 || u.IdleSince.IsZero() || u.Listed || u.Resident {
		return time.Time{}, false
	}
	limit := s.IdleMemory
	if limit <= 0 {
		limit = DefaultIdleMemory
	}
	var due time.Time
	switch idle := max(s.Idle, worth*(SaveTime(u.Memory)+RestoreTime(u.Memory))); {
	case u.Ahead && waited: // it is never at the cost of one that waits
		due = u.Woken
	case u.Ahead:
		typed := later(u.Woken, u.Typed)
		if most := u.Woken.Add(longestAhead); typed.After(most) {
			typed = most
		}
		due = typed.Add(AheadOfCell)
	case waited:
		due = later(u.IdleSince.Add(idle), u.Woken.Add(RestAfterWake))
	case s.After <= 0 || u.Memory > limit:
		return time.Time{}, false
	default:
		due = later(u.IdleSince.Add(max(idle, s.After)), u.Woken.Add(RestAfterWake))
	}
	return later(due, u.KeepUntil), true
}

// later returns the later one of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// SaveTime estimates how long NVIDIA's driver takes to save the given bytes of GPU memory to host memory. The figures
// are from an H200: see docs/gpu-measured.md.
func SaveTime(memory int64) time.Duration {
	return perGiB(memory, 310*time.Millisecond, 530*time.Millisecond)
}

// RestoreTime estimates how long the driver takes to restore what SaveTime saves.
func RestoreTime(memory int64) time.Duration {
	return perGiB(memory, 180*time.Millisecond, 232*time.Millisecond)
}

// HostMemory returns what a parked kernel takes of host memory, in bytes. A process on an H200 had its GPU memory and
// 582 MiB.
func HostMemory(memory int64) int64 {
	return max(memory, 0) + 582<<20
}

// perGiB returns a fixed time and what the bytes add to it.
func perGiB(memory int64, fixed, each time.Duration) time.Duration {
	return fixed + time.Duration(float64(max(memory, 0))/(1<<30)*float64(each))
}
