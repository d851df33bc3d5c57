package jobs

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

// freezing is the records and kernels as a gateway sees them that is frozen during the first start of a kernel.
type freezing struct {
	*launchertest.MemoryRecords
	*cluster
	thaw   chan struct{}
	frozen atomic.Bool
}

func (f *freezing) Start(ctx context.Context, author Author, id string, wish kernels.Wish) error {
	f.frozen.Store(true)
	<-f.thaw
	return f.cluster.Start(ctx, author, id, wish)
}

func (f *freezing) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if f.frozen.Load() {
		<-f.thaw
	}
	return f.MemoryRecords.ReplaceRecord(ctx, r)
}

// A gateway that is frozen during a start leaves no kernel, whatever the job's next holder has done meanwhile.
func TestManager_FrozenDuringStart(t *testing.T) {
	for what, meanwhile := range map[string]time.Duration{
		"the job runs": 40 * time.Second, "it has ended": 10 * time.Minute,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				frozen := &freezing{MemoryRecords: &launchertest.MemoryRecords{}, cluster: newCluster(9),
					thaw: make(chan struct{})}
				a, endA := gatewayOf(frozen, frozen, Policy{}, time.Minute)
				defer endA()
				id := submit(t, a, submission("ann", "job"))
				time.Sleep(time.Second)
				b, endB := gatewayOf(frozen.MemoryRecords, frozen.cluster, Policy{}, time.Minute)
				defer endB()
				time.Sleep(meanwhile)
				close(frozen.thaw)
				time.Sleep(10 * time.Minute)
				if j := wantState(t, b, id, Succeeded, ""); j.Attempt != 1 {
					t.Errorf("the job had %d attempts", j.Attempt)
				}
				if n := frozen.living(); n != 0 {
					t.Errorf("%d kernels are left", n)
				}
			})
		})
	}
}
