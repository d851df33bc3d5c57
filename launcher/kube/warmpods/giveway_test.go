package warmpods

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
)

// Room that was just made is reserved. It is forgotten when the scheduler has not used it in time, and when its pod
// does not wait any more.
func TestStore_RecentRooms(t *testing.T) {
	now := time.Now()
	s := &Store{o: Options{Now: func() time.Time { return now }}}
	s.rooms = map[types.UID]madeRoom{"new": {"n", now.Add(-time.Second)}, "old": {"m", now.Add(-gpuview.StaleRoom)},
		"gone": {"n", now}}
	has, reserved := s.recentRooms([]gpuview.Wait{{UID: "new", Resource: "r", Amount: 2}, {UID: "old", Resource: "r"},
		{UID: "other", Resource: "r"}})
	if len(has) != 1 || !has["new"] || len(reserved) != 1 || reserved["n r"] != 2 || len(s.rooms) != 1 {
		t.Errorf("%v, %v, %v", has, reserved, s.rooms)
	}
	if s.recentRooms(nil); len(s.rooms) != 0 {
		t.Errorf("%v", s.rooms)
	}
}
