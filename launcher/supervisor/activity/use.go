package activity

import (
	"errors"
	"fmt"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Use is how one kernel is used: what it does, what its GPUs do, and what its owner has asked for. It decides when the
// kernel is culled. Supervisor.mu guards it.
type Use struct {
	Clock
	Keeps
	GPUs     GPUs
	Started  time.Time // when the kernel was started first, or again after its end
	Left     time.Time // when the last connection ended; zero: none has ended
	Computes bool      // its processes use more than Cull.CPU or Cull.GPU, or may
	Parking  Parking

	now  func() time.Time
	cull *api.Cull
}

// Keeps is until when the owner keeps a kernel and its GPU. A zero time keeps nothing.
type Keeps struct {
	KeepUntil    time.Time // it is not culled
	KeepGPUUntil time.Time // it is not parked
}

// Parking is whether the kernel's GPU memory is saved.
type Parking struct {
	Parked bool
	Woken  time.Time // when it was restored last; zero: never, or by an earlier supervisor
}

// Park notes whether the kernel's GPU memory is saved.
func (u *Use) Park(parked bool) {
	if parked == u.Parking.Parked {
		return
	}
	u.version++
	if u.Parking.Parked = parked; !parked {
		u.Parking.Woken = u.now()
	}
}

// NewUse returns the Use of a kernel that is starting.
func NewUse(now func() time.Time, cull *api.Cull) Use {
	u := Use{Clock: NewClock(now, cull), now: now, cull: cull}
	u.Started = u.Idle().Since
	return u
}

// Again begins the use of a kernel that is started again after its end.
func (u *Use) Again() { u.Started, u.Keeps, u.GPUs.Sum = u.now(), Keeps{}, api.GPUUse{} }

// usage returns the values that decide when the kernel is culled, and what Clock.Usage reports of polls.
func (u *Use) usage(connected bool) (v Usage, polling bool) {
	v, polling = u.Clock.Usage()
	v.Busy = v.Busy || u.Computes
	v.Started, v.Connected, v.Left, v.KeepUntil, v.Parking = u.Started, connected, u.Left, u.KeepUntil, u.Parking
	return v, polling && !u.Computes
}

// Due returns the plan by which the kernel is to be culled now, and whether there is one.
func (u *Use) Due(connected bool) (Plan, bool) {
	v, _ := u.usage(connected)
	p := Next(u.cull, v)
	return p, !p.At.IsZero() && !u.now().Before(p.At)
}

// Plan returns the plan that users are shown. Requests in progress that may be polls do not count in it. A dead kernel
// has none.
func (u *Use) Plan(connected bool) Plan {
	if u.State() == api.Dead {
		return Plan{}
	}
	v, polling := u.usage(connected)
	if polling {
		v.Busy = false
	}
	return Next(u.cull, v)
}

// ErrPast rejects a time that is over.
var ErrPast = errors.New("is in the past")

// Keep keeps the kernel until a time, whether or not it is idle, or only its GPU. The zero time ends that. Errors other
// than ErrPast say which limit forbids the time.
func (u *Use) Keep(gpu bool, until time.Time) error {
	name, to := "keep_until", &u.KeepUntil
	if gpu {
		name, to = "keep_gpu_until", &u.KeepGPUUntil
	}
	now := u.now()
	most, ends := now.Add(u.cull.KeepLimit), u.Started.Add(u.cull.MaxAge)
	switch {
	case until.IsZero():
	case !until.After(now):
		return fmt.Errorf("%s %w", name, ErrPast)
	case u.cull.KeepLimit == 0:
		return errors.New("kernels cannot be kept here")
	case until.After(most):
		return fmt.Errorf("%s can be at most %s from now, which is %s", name, u.cull.KeepLimit,
			most.UTC().Format(time.RFC3339))
	case u.cull.MaxAge > 0 && until.After(ends):
		return fmt.Errorf("no kernel runs for longer than %s here: %s can be at most %s", u.cull.MaxAge, name,
			ends.UTC().Format(time.RFC3339))
	}
	*to = until.UTC()
	return nil
}

// Kept returns the times until which the owner keeps the kernel and its GPU. One that is over is zero, and both are if
// the kernel is dead.
func (u *Use) Kept() Keeps {
	k := u.Keeps
	for _, until := range []*time.Time{&k.KeepUntil, &k.KeepGPUUntil} {
		if u.State() == api.Dead || !u.now().Before(*until) {
			*until = time.Time{}
		}
	}
	return k
}

// Held returns the devices that the kernel holds; nil: none, or unknown.
func (u *Use) Held() []api.GPU {
	if u.State() == api.Dead {
		return nil
	}
	return u.GPUs.Devices
}
