package jobs

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// round looks at all jobs that have not ended, and takes those that no living gateway holds. A user's jobs start one
// after the other, in their order: one that is about to start keeps those behind it waiting.
func (m *Manager) round(ctx context.Context, working *sync.WaitGroup) error {
	began, holds := time.Now(), m.holding()
	all, _, err := m.readable(ctx, true)
	if err != nil {
		return err
	}
	leases, err := m.leases(ctx, all) // after the jobs: a gateway renews its lease before it takes a job
	if err != nil {
		return err
	}
	seen := map[string]string{}
	for i := range all {
		seen[all[i].ID] = all[i].version
	}
	for _, h := range holds {
		h.see(seen[h.id])
	}
	m.view.replace(all, m.held)
	blocked := map[string]bool{}
	for i := range all {
		s := &all[i]
		if s.State != Queued || s.GiveWay == "" {
			m.mu.Lock()
			delete(m.gave, s.ID) // of an earlier time: another gateway has held the job since
			m.mu.Unlock()
		}
		if s.ended() {
			continue
		}
		mine, free := m.mayTake(s, leases[s.Holder], began)
		starts := s.State == Queued && s.Outcome == nil && !s.Stopping && !s.inKernel()
		waits := m.waits(s.ID) || starts && blocked[s.Owner]
		// A kernel that is being started and has a reason to wait is admitted: it waits for a GPU or a node.
		blocked[s.Owner] = blocked[s.Owner] || starts ||
			s.State == Starting && s.Reason == "" && (s.Outcome == nil || s.Outcome.Waits)
		trial := s.trialAfter()
		if mine || !free || waits || trial > 0 && (m.tries() || time.Since(m.born) < trial) {
			continue
		}
		if err := m.take(ctx, s, working); err != nil {
			m.log.Warn("a job cannot be taken over", logkey.Job, s.ID, logkey.Err, err)
		}
	}
	m.forget(seen)
	if err := m.giveWay(ctx, all); err != nil && ctx.Err() == nil {
		m.log.Warn("no job can give way to a kernel that waits for a GPU", logkey.Err, err)
	}
	return nil
}

// mayTake reports whether this gateway holds the job, and whether no living gateway does. The holder's lease was read
// after began.
func (m *Manager) mayTake(s *stored, lease string, began time.Time) (mine, free bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holds[s.ID] != nil || m.looking[s.ID] {
		return true, false
	}
	if s.Holder == "" || s.Holder == m.name { // m.name: this gateway could not give the job back
		delete(m.watched, s.ID)
		return false, true
	}
	w := m.watched[s.ID]
	if w == nil || w.holder != s.Holder || w.lease != lease {
		m.watched[s.ID] = &watched{s.Holder, lease, time.Now()}
		return false, false
	}
	return false, began.Sub(w.since) > m.timing.lease
}

// hold returns this gateway's hold on a job. It is nil for a job that this gateway does not hold.
func (m *Manager) hold(id string) *hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holds[id]
}

// holding returns what this gateway holds.
func (m *Manager) holding() []*hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.holds))
}

// waits reports whether the start of a job has to wait longer.
func (m *Manager) waits(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Before(m.notYet[id])
}

// forget drops what is known of jobs that do not exist any more.
func (m *Manager) forget(seen map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.watched {
		if seen[id] == "" {
			delete(m.watched, id)
		}
	}
	for id := range m.gave {
		if seen[id] == "" {
			delete(m.gave, id)
		}
	}
	for id, until := range m.notYet {
		if seen[id] == "" || time.Now().After(until) {
			delete(m.notYet, id)
		}
	}
}

// take makes this gateway the job's holder, and works on the job in a goroutine. If another gateway was faster, it does
// nothing.
func (m *Manager) take(ctx context.Context, s *stored, working *sync.WaitGroup) error {
	if err := m.lease.renew(ctx, m.timing.beat); err != nil {
		return err
	}
	now, err := m.store.job(ctx, s.ID) // the list has only a part of it
	if errors.Is(err, launcher.ErrNoRecord) || err == nil && now.version != s.version {
		return nil // the next look decides again
	}
	if err != nil {
		return err
	}
	now.tryAgain(m.name)
	now.Holder = m.name
	err = m.store.write(ctx, &now)
	if errors.Is(err, launcher.ErrRecordChanged) {
		return nil
	}
	if err != nil {
		return err
	}
	h := newHold(ctx, m, now)
	m.mu.Lock()
	m.holds[s.ID] = h
	m.mu.Unlock()
	working.Go(func() {
		h.work()
		m.mu.Lock()
		delete(m.holds, s.ID)
		m.mu.Unlock()
		m.look()
	})
	return nil
}

// retry calls do until it succeeds or ctx ends, for what may fail only for a while.
func retry(ctx context.Context, log *slog.Logger, what string, do func() error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := do()
		if err == nil || ctx.Err() != nil || !errors.Is(err, launcher.ErrUnavailable) {
			return err
		}
		log.Warn("a step of a job failed and is tried again", logkey.What, what, logkey.Err, err)
		if err := goroutines.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}
