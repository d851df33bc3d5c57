package limits

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStarts_Take(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStarts(2)
		for i, ok := range []bool{true, true, false, false} {
			if wait := s.Take("ann"); (wait == 0) != ok {
				t.Errorf("start %d: wait %v", i, wait)
			}
		}
		if wait := s.Take("ann"); wait != 30*time.Second {
			t.Errorf("wait %v, want 30s", wait)
		}
		if wait := s.Take("bob"); wait != 0 {
			t.Errorf("another user waits %v", wait)
		}
		<-time.After(30 * time.Second)
		if first, second := s.Take("ann"), s.Take("ann"); first != 0 || second == 0 {
			t.Errorf("after 30s: wait %v, then %v; want one start", first, second)
		}
	})
	if wait := NewStarts(0).Take("ann"); wait != 0 {
		t.Errorf("without a bound: wait %v", wait)
	}
}
