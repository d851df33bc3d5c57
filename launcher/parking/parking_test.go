package parking

import (
	"math"
	"testing"
	"time"
)

const gib = 1 << 30

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns the time some seconds after the start.
func at(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// Every rule for one kernel has a row. A rule that is dropped or applied in the wrong case moves the moment.
func TestSettings_Due(t *testing.T) {
	usual := Settings{Idle: time.Minute, After: 15 * time.Minute}
	tests := []struct {
		name     string
		settings Settings
		use      Use
		waited   bool
		want     float64 // seconds after the start; negative: never
	}{
		{"off", Settings{After: time.Minute}, Use{IdleSince: at(0)}, true, -1},
		{"another waits", usual, Use{IdleSince: at(5)}, true, 65},
		{"none waits", usual, Use{IdleSince: at(5)}, false, 905},
		{"none waits, and only one that waits gets the GPU", Settings{Idle: time.Minute}, Use{IdleSince: at(5)}, false, -1},
		{"after is shorter than idle", Settings{Idle: time.Minute, After: time.Second}, Use{IdleSince: at(5)}, false, 65},
		{"busy", usual, Use{}, true, -1},
		{"a list of cells", usual, Use{IdleSince: at(5), Listed: true}, true, -1},
		{"it cannot be parked", usual, Use{IdleSince: at(5), Resident: true}, true, -1},
		{"ahead of a cell", usual, Use{IdleSince: at(0), Woken: at(100), Ahead: true}, false, 130},
		{"ahead of a cell, and its user types", usual,
			Use{IdleSince: at(0), Woken: at(100), Ahead: true, Typed: at(140)}, false, 170},
		{"ahead of a cell, and its user types for long", usual,
			Use{IdleSince: at(0), Woken: at(100), Ahead: true, Typed: at(300)}, false, 250},
		{"ahead of a cell, and its user types, and another waits", usual,
			Use{IdleSince: at(0), Woken: at(100), Ahead: true, Typed: at(140)}, true, 100},
		{"ahead of a cell, and another waits", usual, Use{IdleSince: at(0), Woken: at(100), Ahead: true}, true, 100},
		{"ahead of a cell, and kept", usual, Use{IdleSince: at(0), Ahead: true, KeepUntil: at(7200)}, true, 7200},
		{"large", usual, Use{IdleSince: at(0), Memory: 16 * gib}, true, 20 * (0.310 + 0.180 + 16*0.762)},
		{"large, and none waits", usual, Use{IdleSince: at(0), Memory: 8*gib + 1}, false, -1},
		{"large, within the bound", usual, Use{IdleSince: at(0), Memory: 8 * gib}, false, 900},
		{"a bound of its own", Settings{Idle: time.Minute, After: time.Minute, IdleMemory: gib},
			Use{IdleSince: at(0), Memory: gib + 1}, false, -1},
		{"just woken", Settings{Idle: time.Second}, Use{IdleSince: at(100), Woken: at(200)}, true, 210},
		{"woken long ago", usual, Use{IdleSince: at(100), Woken: at(99)}, true, 160},
		{"kept", usual, Use{IdleSince: at(0), KeepUntil: at(7200)}, true, 7200},
		{"kept, and none waits", usual, Use{IdleSince: at(0), KeepUntil: at(7200)}, false, 7200},
		{"kept before", usual, Use{IdleSince: at(0), KeepUntil: at(30)}, true, 60},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.settings.Due(test.use, test.waited)
			if ok != (test.want >= 0) {
				t.Fatalf("got %v, %v; want %v s", got, ok, test.want)
			}
			if diff := got.Sub(at(test.want)).Abs(); ok && diff > time.Microsecond {
				t.Errorf("got %v after the start, want %v s", got.Sub(start), test.want)
			}
		})
	}
}

// The estimates are within 5 % of what the driver took on an H200.
func TestTimes_Measured(t *testing.T) {
	for _, m := range []struct {
		memory        int64
		save, restore float64 // seconds: docs/gpu-measured.md
	}{{gib / 4, 0.44, 0.24}, {4 * gib, 2.51, 1.12}, {16 * gib, 8.82, 3.88}} {
		for _, v := range []struct {
			name      string
			got, want float64
		}{
			{"save", SaveTime(m.memory).Seconds(), m.save},
			{"restore", RestoreTime(m.memory).Seconds(), m.restore},
		} {
			if math.Abs(v.got-v.want) > 0.05*v.want {
				t.Errorf("%s of %d bytes: got %.3f s, want %.3f s", v.name, m.memory, v.got, v.want)
			}
		}
	}
}
