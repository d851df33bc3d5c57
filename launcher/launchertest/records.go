package launchertest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// MemoryRecords is a launcher.RecordKeeper in memory. The zero value is empty. It may be used concurrently.
type MemoryRecords struct {
	mu   sync.Mutex
	kept map[[2]string]launcher.Record // by kind and id
	last int                           // version
}

// Records returns all records of a kind.
func (m *MemoryRecords) Records(_ context.Context, kind string) (all []launcher.Record, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, r := range m.kept {
		if key[0] == kind {
			all = append(all, r)
		}
	}
	return all, nil
}

// MaxRecord returns 1 GiB.
func (m *MemoryRecords) MaxRecord() int64 { return 1 << 30 }

// RecordPace returns 10 s.
func (m *MemoryRecords) RecordPace() time.Duration { return 10 * time.Second }

// RecordIDs returns the ids of all records of a kind.
func (m *MemoryRecords) RecordIDs(ctx context.Context, kind string) (ids []string, _ error) {
	all, err := m.Records(ctx, kind)
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	return ids, err
}

// RecordStamps returns the versions of the records of a kind.
func (m *MemoryRecords) RecordStamps(ctx context.Context, kind string, onlyOpen bool) (map[string]string, error) {
	all, err := m.Records(ctx, kind)
	stamps := map[string]string{}
	for _, r := range all {
		if !onlyOpen || !r.Settled {
			stamps[r.ID] = r.Version
		}
	}
	return stamps, err
}

// Record returns one record.
func (m *MemoryRecords) Record(_ context.Context, kind, id string) (launcher.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.kept[[2]string{kind, id}]
	if !ok {
		return r, launcher.ErrNoRecord
	}
	return r, nil
}

// CreateRecord stores a new record.
func (m *MemoryRecords) CreateRecord(_ context.Context, r launcher.Record) (launcher.Record, error) {
	r.Version = ""
	return m.write(r)
}

// ReplaceRecord stores other data for a record.
func (m *MemoryRecords) ReplaceRecord(_ context.Context, r launcher.Record) (launcher.Record, error) {
	if r.Version == "" {
		return r, launcher.ErrRecordChanged
	}
	return m.write(r)
}

func (m *MemoryRecords) write(r launcher.Record) (launcher.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{r.Kind, r.ID}
	if m.kept[key].Version != r.Version {
		return r, launcher.ErrRecordChanged
	}
	if m.kept == nil {
		m.kept = map[[2]string]launcher.Record{}
	}
	m.last++
	r.Version, r.Data = strconv.Itoa(m.last), slices.Clone(r.Data)
	m.kept[key] = r
	return r, nil
}

// RemoveRecord removes a record.
func (m *MemoryRecords) RemoveRecord(_ context.Context, kind, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.kept, [2]string{kind, id})
	return nil
}
