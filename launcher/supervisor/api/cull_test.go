package api

import (
	"fmt"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

func TestCull_For(t *testing.T) {
	d := func(v time.Duration) *kernelspecs.Duration { return (*kernelspecs.Duration)(&v) }
	all := Cull{IdleTimeout: 1, BusyLimit: 10, Warning: 1, KeepLimit: 7}
	for _, tt := range []struct {
		name string
		user kernelspecs.CullTimes
		want Cull
	}{
		{"nothing", kernelspecs.CullTimes{}, all},
		{"everything", kernelspecs.CullTimes{IdleTimeout: d(3), BusyLimit: d(20), MaxAge: d(30), Warning: d(0)},
			Cull{IdleTimeout: 3, BusyLimit: 20, MaxAge: 30, KeepLimit: 7}},
		{"no limits", kernelspecs.CullTimes{IdleTimeout: d(0), BusyLimit: d(0)}, Cull{Warning: 1, KeepLimit: 7}},
	} {
		if got := all.For(tt.user); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestCull_Parked: an idle time of a user or a kernelspec counts for parked kernels too, if it is not shorter.
func TestCull_Parked(t *testing.T) {
	for idle, want := range map[time.Duration]time.Duration{0: 0, 4: 5, 5: 0, 6: 0} {
		times := kernelspecs.CullTimes{IdleTimeout: (*kernelspecs.Duration)(&idle)}
		all := Cull{IdleTimeout: 1, ParkedTimeout: 5}
		if user, spec := all.For(times), all.With(times); user.ParkedTimeout != want || spec.ParkedTimeout != want {
			t.Errorf("%d: %d and %d", idle, user.ParkedTimeout, spec.ParkedTimeout)
		}
	}
	if c := (Cull{ParkedTimeout: -1}); c.Validate() == nil {
		t.Error("a negative time is valid")
	}
}

func TestCull_With(t *testing.T) {
	d := func(v time.Duration) *kernelspecs.Duration { return (*kernelspecs.Duration)(&v) }
	operator := Cull{IdleTimeout: 1, BusyLimit: 10, Warning: 1, KeepLimit: 7}
	for _, tt := range []struct {
		name string
		spec kernelspecs.CullTimes
		want Cull
	}{
		{"nothing", kernelspecs.CullTimes{}, operator},
		{"longer", kernelspecs.CullTimes{IdleTimeout: d(3), Warning: d(0)},
			Cull{IdleTimeout: 3, BusyLimit: 10, KeepLimit: 7}},
		{"too long", kernelspecs.CullTimes{IdleTimeout: d(9), BusyLimit: d(11), MaxAge: d(100)},
			Cull{IdleTimeout: 9, BusyLimit: 10, MaxAge: 100, Warning: 1, KeepLimit: 7}},
		{"without a limit", kernelspecs.CullTimes{IdleTimeout: d(0), BusyLimit: d(0), MaxAge: d(0)},
			Cull{BusyLimit: 10, Warning: 1, KeepLimit: 7}},
		{"processors in use", kernelspecs.CullTimes{CPU: 0.2},
			Cull{IdleTimeout: 1, BusyLimit: 10, Warning: 1, KeepLimit: 7, CPU: 0.2}},
		{"shorter", kernelspecs.CullTimes{BusyLimit: d(2)},
			Cull{IdleTimeout: 1, BusyLimit: 2, Warning: 1, KeepLimit: 7}},
	} {
		if got := operator.With(tt.spec); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}
