package local

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/atomicfile"
)

// Records are files: STATE/records/KIND/ID. Each is replaced in one step, under the flock STATE/records/KIND/.lock that
// all gateways take. Unlike the state of kernels, records outlive the machine, so they are synced to disk.

const (
	recordsLock = ".lock"
	maxRecord   = 1 << 30 // bytes
)

// Records returns all records of a kind.
func (l *Launcher) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	ids, err := l.RecordIDs(ctx, kind)
	if err != nil {
		return nil, err
	}
	all := make([]launcher.Record, 0, len(ids))
	for _, id := range ids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r, err := l.Record(ctx, kind, id)
		switch {
		case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
		case err != nil:
			return nil, err
		default:
			all = append(all, r)
		}
	}
	return all, nil
}

// RecordIDs returns the ids of all records of a kind.
func (l *Launcher) RecordIDs(_ context.Context, kind string) ([]string, error) {
	dir, err := l.recordsDir(kind)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, unavailableRecords(err)
	}
	var ids []string
	for _, e := range entries {
		if launcher.ValidRecordName(e.Name()) { // neither the lock nor a file that is being written
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Record returns one record.
func (l *Launcher) Record(_ context.Context, kind, id string) (launcher.Record, error) {
	path, err := l.recordPath(kind, id)
	if err != nil {
		return launcher.Record{}, err
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return launcher.Record{}, launcher.ErrNoRecord
	}
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	return launcher.Record{Kind: kind, ID: id, Data: b, Version: recordVersion(b)}, nil
}

// CreateRecord stores a new record.
func (l *Launcher) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	r.Version = ""
	return l.writeRecord(ctx, r)
}

// ReplaceRecord stores other data for a record.
func (l *Launcher) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if r.Version == "" {
		return launcher.Record{}, launcher.ErrRecordChanged
	}
	return l.writeRecord(ctx, r)
}

// writeRecord writes a record if the present one has the given version; "" means that there is none.
func (l *Launcher) writeRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	path, err := l.recordPath(r.Kind, r.ID)
	if err != nil {
		return launcher.Record{}, err
	}
	if len(r.Data) > maxRecord {
		return launcher.Record{}, launcher.ErrRecordTooLarge
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	lock, err := lockPath(ctx, filepath.Join(filepath.Dir(path), recordsLock))
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	defer unlock(lock)
	before, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if r.Version != "" {
			return launcher.Record{}, launcher.ErrRecordChanged
		}
	case err != nil:
		return launcher.Record{}, unavailableRecords(err)
	case recordVersion(before) != r.Version:
		return launcher.Record{}, launcher.ErrRecordChanged
	}
	err = atomicfile.Replace(path, func(f *os.File) error {
		if _, err := f.Write(r.Data); err != nil {
			return err
		}
		return f.Sync()
	})
	if err == nil {
		err = syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	r.Version = recordVersion(r.Data)
	r.Data = bytes.Clone(r.Data)
	return r, nil
}

// RemoveRecord removes a record.
func (l *Launcher) RemoveRecord(ctx context.Context, kind, id string) error {
	path, err := l.recordPath(kind, id)
	if err != nil {
		return err
	}
	lock, err := lockPath(ctx, filepath.Join(filepath.Dir(path), recordsLock))
	if errors.Is(err, fs.ErrNotExist) { // no record of this kind was ever stored
		return nil
	}
	if err != nil {
		return unavailableRecords(err)
	}
	defer unlock(lock)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailableRecords(err)
	}
	return nil
}

func (l *Launcher) recordsDir(kind string) (string, error) {
	if !launcher.ValidRecordName(kind) {
		return "", fmt.Errorf("records: %q is no kind", kind)
	}
	return filepath.Join(l.layout.state, "records", kind), nil
}

func (l *Launcher) recordPath(kind, id string) (string, error) {
	dir, err := l.recordsDir(kind)
	if err == nil && !launcher.ValidRecordName(id) {
		err = fmt.Errorf("records: %q is no id", id)
	}
	return filepath.Join(dir, id), err
}

// recordVersion is taken from the content: the same content is the same record for every writer.
func recordVersion(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

func unavailableRecords(err error) error {
	return fmt.Errorf("%w: records: %v", launcher.ErrUnavailable, err)
}

// syncFolder makes the names in a folder outlive a crash of the machine.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
