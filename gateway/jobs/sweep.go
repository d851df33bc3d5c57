package jobs

import (
	"context"
	"slices"
	"time"
)

// sweep removes jobs that have ended long ago or are too many, and notebooks without a job.
func (m *Manager) sweep(ctx context.Context) error {
	all, others, err := m.readable(ctx, m.store.keeper.Records)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b stored) int { return b.Ended.Compare(a.Ended) })
	kept := map[string]int{}
	named := map[string]bool{}
	for i := range all {
		s := &all[i]
		named[s.Source], named[s.Saved] = true, true
		if !s.ended() {
			continue
		}
		kept[s.Owner]++
		if m.policy.Keep > 0 && kept[s.Owner] > m.policy.Keep ||
			m.policy.KeepFor > 0 && time.Since(s.Ended) > m.policy.KeepFor {
			if err := m.discard(ctx, &s.entry); err != nil {
				return err
			}
		}
	}
	if others > 0 {
		return nil // their notebooks are not known
	}
	return m.sweepNotebooks(ctx, kindNotebook, named)
}

// sweepNotebooks removes notebooks that no record named at two sweeps: a notebook is stored before a record names it.
func (m *Manager) sweepNotebooks(ctx context.Context, kind string, named map[string]bool) error {
	ids, err := m.store.keeper.RecordIDs(ctx, kind)
	if err != nil {
		return err
	}
	orphans := map[string]bool{}
	for _, id := range ids {
		if named[id] {
			continue
		}
		if !m.orphans[kind][id] {
			orphans[id] = true
			continue
		}
		if err := m.store.keeper.RemoveRecord(ctx, kind, id); err != nil {
			return err
		}
	}
	m.orphans[kind] = orphans
	return nil
}

// sweepDefinitions removes notebooks without a definition.
func (m *Manager) sweepDefinitions(ctx context.Context) error {
	all, others, err := m.allDefinitions(ctx, m.store.keeper.Records)
	if err != nil || others > 0 { // their notebooks are not known
		return err
	}
	named := map[string]bool{}
	for i := range all {
		named[all[i].Source] = true
	}
	return m.sweepNotebooks(ctx, kindDefinitionNotebook, named)
}
