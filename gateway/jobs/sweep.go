package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// sweep removes jobs that have ended long ago or are too many, and notebooks without a job. One that cannot be removed
// does not keep the others.
func (m *Manager) sweep(ctx context.Context) error {
	all, damaged, err := m.readable(ctx, false)
	if err != nil {
		return err
	}
	surplus := m.surplus(all)
	named, holders := map[string]bool{}, map[string]bool{}
	var failed []error
	for i := range all {
		full, err := m.store.job(ctx, all[i].ID) // one at a time, since a list has only a part of each
		switch {
		case errors.Is(err, launcher.ErrNoRecord):
			continue
		case errors.Is(err, launcher.ErrRecordDamaged):
			damaged[all[i].ID] = true
			continue
		case err != nil:
			return err
		}
		s := &full
		ids, err := s.pieces()
		if err != nil {
			failed, damaged[s.ID] = append(failed, err), true
		}
		maps.Copy(named, ids)
		if !s.ended() {
			holders[s.Holder] = true
			continue
		}
		if surplus[s.ID] {
			if err := m.discard(ctx, &s.entry); err != nil {
				failed = append(failed, fmt.Errorf("job %s: %w", s.ID, err))
			}
		}
	}
	return errors.Join(append(failed, m.sweepUnnamed(ctx, kindNotebook, named, damaged),
		m.sweepUnnamed(ctx, kindLease, holders, nil))...)
}

// surplus returns the ids of the jobs that have ended too long ago, or are too many for their owner.
func (m *Manager) surplus(all []stored) map[string]bool {
	ended := slices.DeleteFunc(slices.Clone(all), func(s stored) bool { return !s.ended() })
	slices.SortFunc(ended, func(a, b stored) int { return b.Ended.Compare(a.Ended) })
	kept, ids := map[string]int{}, map[string]bool{}
	for i := range ended {
		s := &ended[i]
		kept[s.Owner]++
		if m.policy.Keep > 0 && kept[s.Owner] > m.policy.Keep ||
			m.policy.KeepFor > 0 && time.Since(s.Ended) > m.policy.KeepFor {
			ids[s.ID] = true
		}
	}
	return ids
}

// trimEvery is the time between two trims: each lists all records.
const trimEvery = 30 * time.Second

// trim removes what is surplus of the owners of jobs that have ended here since the last time. So a user has hardly
// more than is kept, also between two sweeps.
func (m *Manager) trim(ctx context.Context) error {
	if time.Since(m.trimmed) < trimEvery {
		return nil
	}
	m.mu.Lock()
	owners := m.ends
	m.ends = map[string]bool{}
	m.mu.Unlock()
	if len(owners) == 0 || m.policy.Keep == 0 {
		return nil
	}
	m.trimmed = time.Now()
	all, _, err := m.readable(ctx, false)
	if err != nil {
		return err // the sweep removes them later
	}
	surplus := m.surplus(all)
	var failed []error
	for i := range all {
		if !surplus[all[i].ID] || !owners[all[i].Owner] {
			continue
		}
		full, err := m.store.job(ctx, all[i].ID)
		if err == nil && full.ended() { // else it was removed, and submitted again under its id
			err = m.discard(ctx, &full.entry)
		}
		if err != nil && !errors.Is(err, launcher.ErrNoRecord) {
			failed = append(failed, fmt.Errorf("job %s: %w", all[i].ID, err))
		}
	}
	return errors.Join(failed...)
}

// sweepUnnamed removes notebooks and leases that no record named at two sweeps: they are stored before a record names
// them. Those of a damaged record stay.
func (m *Manager) sweepUnnamed(ctx context.Context, kind string, named, damaged map[string]bool) error {
	ids, err := m.store.keeper.RecordIDs(ctx, kind)
	if err != nil {
		return err
	}
	orphans := map[string]bool{}
	var failed []error
	for _, id := range ids {
		if named[id] || damaged[pieceOf(id)] {
			continue
		}
		if !m.orphans[kind][id] {
			orphans[id] = true
			continue
		}
		if err := m.store.keeper.RemoveRecord(ctx, kind, id); err != nil {
			orphans[id] = true
			failed = append(failed, fmt.Errorf("%s %s: %w", kind, id, err))
		}
	}
	m.orphans[kind] = orphans
	return errors.Join(failed...)
}

// sweepDefinitions removes notebooks without a definition.
func (m *Manager) sweepDefinitions(ctx context.Context) error {
	all, damaged, err := m.allDefinitions(ctx, false)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for i := range all {
		named[all[i].Source] = true
	}
	return m.sweepUnnamed(ctx, kindDefinitionNotebook, named, damaged)
}
