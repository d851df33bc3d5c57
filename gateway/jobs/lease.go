package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// lease is a record with which this gateway shows that it lives, while it holds jobs. Each renewal changes the record.
// Other gateways see that, and do not read the time in it.
type lease struct {
	store store
	name  string // of the gateway

	mu      sync.Mutex
	renewed time.Time // when the last renewal began
}

// renew renews the lease, unless a renewal has begun within age.
func (l *lease) renew(ctx context.Context, age time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.renewed) < age {
		return nil
	}
	_, err := changed(
		func() (launcher.Record, error) {
			r, err := l.store.keeper.Record(ctx, kindLease, l.name)
			if errors.Is(err, launcher.ErrNoRecord) { // it is new, or was swept
				return launcher.Record{Kind: kindLease, ID: l.name}, nil
			}
			return r, err
		},
		func(*launcher.Record) error { return nil },
		func(r *launcher.Record) error { return l.store.put(ctx, *r, now.UTC(), &r.Version) })
	if err == nil {
		l.renewed = now
	}
	return err
}

// keepLease renews the lease while this gateway holds jobs, until ctx ends.
func (m *Manager) keepLease(ctx context.Context) {
	for goroutines.Sleep(ctx, m.timing.beat) == nil {
		if len(m.holding()) == 0 {
			continue
		}
		if err := m.lease.renew(ctx, 0); err != nil && ctx.Err() == nil {
			m.log.Warn("this gateway cannot renew its lease of jobs", logkey.Err, err)
		}
	}
}

// leases returns the versions of all leases by the names of their gateways. It reads the leases only if another gateway
// holds one of the jobs.
func (m *Manager) leases(ctx context.Context, all []stored) (map[string]string, error) {
	others := func(s stored) bool { return s.Holder != "" && s.Holder != m.name }
	if !slices.ContainsFunc(all, others) {
		return nil, nil
	}
	records, err := m.store.keeper.Records(ctx, kindLease)
	versions := make(map[string]string, len(records))
	for _, r := range records {
		versions[r.ID] = r.Version
	}
	return versions, err
}

// endLease removes the lease, if there is one. This gateway holds no jobs any more.
func (m *Manager) endLease(ctx context.Context) {
	if m.lease.renewed.IsZero() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	if err := m.store.keeper.RemoveRecord(ctx, kindLease, m.name); err != nil {
		m.log.Warn("the lease of a gateway that ends is removed later", logkey.Err, err)
	}
}
