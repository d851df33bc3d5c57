package kube

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseLock is a lease in the kernels' namespace, for this gateway to hold.
func (l *Launcher) leaseLock(name string) resourcelock.Interface {
	host, err := os.Hostname()
	if err != nil {
		l.log.Debug("this machine has no name", "err", err)
	}
	return &resourcelock.LeaseLock{Client: l.client.CoordinationV1(),
		LeaseMeta:  metav1.ObjectMeta{Namespace: l.opts.Pods.Namespace, Name: name, Labels: map[string]string{LabelManagedBy: Manager}},
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(host, "ekg") + "_" + uuid.NewString()}}
}

// elect runs for as long as the launcher, and lead while this gateway holds the lease.
func (l *Launcher) elect(lock resourcelock.Interface, t leaseTiming, lead func(context.Context)) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock, Name: lock.Describe(),
		LeaseDuration: t.duration, RenewDeadline: t.renew, RetryPeriod: t.retry, ReleaseOnCancel: t.release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { l.own(func() { lead(ctx) }) },
			OnStoppedLeading: func() {},
		}})
	if err != nil {
		l.log.Error("this gateway takes part in no election", "lease", lock.Describe(), "err", err) // its times do not fit together
		return
	}
	for l.ctx.Err() == nil {
		elector.Run(l.ctx) // until the lease is lost
	}
}

// leaseClock is the lock of an election that knows until when the lease is surely this gateway's: it counts from before a
// renewal was asked for, where others count from when they have seen it.
type leaseClock struct {
	resourcelock.Interface
	lasts time.Duration // from a renewal, less a margin

	mu     sync.Mutex
	asked  time.Time // guarded by mu; for the last renewal that went well; zero: the lease is not held
	holder string    // guarded by mu; when the lease was read last
}

// Get reads the lease.
func (c *leaseClock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := c.Interface.Get(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.holder = r.HolderIdentity
	}
	return r, raw, err
}

// Create makes the lease.
func (c *leaseClock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return c.renewed(func() error { return c.Interface.Create(ctx, r) })
}

// Update renews the lease, or gives it back. An election of client-go's that is told to end gives back what it has read, even if
// that is another's by now: that is refused here.
func (c *leaseClock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == c.Identity() {
		return c.renewed(func() error { return c.Interface.Update(ctx, r) })
	}
	c.mu.Lock()
	c.asked = time.Time{} // before it is given back, whether or not one hears of that
	own := c.holder == c.Identity()
	c.mu.Unlock()
	if !own {
		return errors.New("another gateway has it")
	}
	return c.Interface.Update(ctx, r)
}

func (c *leaseClock) renewed(write func() error) error {
	asked := time.Now()
	err := write()
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked = asked
	}
	return err
}

// holds reports whether nobody else can have the lease at this moment.
func (c *leaseClock) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.asked.IsZero() && within(c.asked, time.Now(), c.lasts)
}

// within reports whether less than a time has passed by both of a machine's clocks: one of them stops while the machine is
// suspended, the other can be set.
func within(from, now time.Time, limit time.Duration) bool {
	byWall := now.Round(0).Sub(from.Round(0))
	return now.Sub(from) < limit && byWall < limit
}
