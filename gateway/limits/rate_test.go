package limits

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestRate_Take(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRate(2)
		for i, ok := range []bool{true, true, false, false} {
			if wait := r.Take("ann"); (wait == 0) != ok {
				t.Errorf("time %d: wait %v", i, wait)
			}
		}
		if wait := r.Take("ann"); wait != 30*time.Second {
			t.Errorf("wait %v, want 30s", wait)
		}
		if wait := r.Take("bob"); wait != 0 {
			t.Errorf("another user waits %v", wait)
		}
		<-time.After(30 * time.Second)
		if first, second := r.Take("ann"), r.Take("ann"); first != 0 || second == 0 {
			t.Errorf("after 30s: wait %v, then %v; want one time", first, second)
		}
	})
	if wait := NewRate(0).Take("ann"); wait != 0 {
		t.Errorf("without a bound: wait %v", wait)
	}
}
