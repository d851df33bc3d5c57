package kube

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// leaseLock returns the lock on a lease in the kernels' namespace.
func (l *Launcher) leaseLock(name string) resourcelock.Interface {
	return &resourcelock.LeaseLock{Client: l.opts.Cluster.Leases.CoordinationV1(),
		LeaseMeta: metav1.ObjectMeta{
			Namespace: l.opts.Pods.Namespace,
			Name:      name,
			Labels:    map[string]string{podspec.LabelManagedBy: podspec.Manager},
		},
		LockConfig: resourcelock.ResourceLockConfig{Identity: cmp.Or(hostName(l.log), "ekg") + "_" + uuid.NewString()}}
}

// elect takes part in an election for as long as the launcher lives. It calls lead while this gateway holds the lease.
func (l *Launcher) elect(lock resourcelock.Interface, t leaseTiming, lead func(context.Context)) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{Lock: lock, Name: lock.Describe(),
		LeaseDuration: t.duration, RenewDeadline: t.renew, RetryPeriod: t.retry, ReleaseOnCancel: t.release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { l.goroutines.Go(func() { lead(ctx) }) },
			OnStoppedLeading: func() {},
		}})
	if err != nil {
		// its durations are inconsistent
		l.log.Error("this gateway takes part in no election", logkey.Lease, lock.Describe(), logkey.Err, err)
		return
	}
	for l.ctx.Err() == nil {
		elector.Run(l.ctx) // until the lease is lost
	}
}

// leaseClock is the lock of an election, and knows until when this gateway certainly holds the lease. It counts from
// the time before it requests a renewal. Other gateways count from the later time at which they see the renewal.
type leaseClock struct {
	resourcelock.Interface
	lasts time.Duration // from a renewal, less a margin

	mu        sync.Mutex
	renewedAt time.Time // guarded by mu; when the last successful renewal was requested; zero: the lease is not held
	holder    string    // guarded by mu; at the last read of the lease
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

// Create creates the lease.
func (c *leaseClock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return c.renewed(func() error { return c.Interface.Create(ctx, r) })
}

// Update renews the lease, or releases it. When an election of client-go ends, it releases the lease that it last read,
// even if another gateway holds that lease by then. Update prevents that.
func (c *leaseClock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == c.Identity() {
		return c.renewed(func() error { return c.Interface.Update(ctx, r) })
	}
	c.mu.Lock()
	c.renewedAt = time.Time{} // before the release, whatever its answer
	own := c.holder == c.Identity()
	c.mu.Unlock()
	if !own {
		return errors.New("another gateway holds it")
	}
	return c.Interface.Update(ctx, r)
}

func (c *leaseClock) renewed(write func() error) error {
	requested := time.Now()
	err := write()
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.renewedAt = requested
	}
	return err
}

// holds reports whether no other gateway can have the lease at this moment.
func (c *leaseClock) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.renewedAt.IsZero() && within(c.renewedAt, time.Now(), c.lasts)
}

// within reports whether less than limit has passed by both clocks of the machine. Neither clock alone is reliable: the
// monotonic clock stops while the machine is suspended, and the wall clock can be set.
func within(from, now time.Time, limit time.Duration) bool {
	byWall := now.Round(0).Sub(from.Round(0))
	return now.Sub(from) < limit && byWall < limit
}
