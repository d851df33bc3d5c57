// Package records stores launcher.Records in files: DIR/KIND/ID. launcher/local keeps them in its state directory. Each
// is replaced in one step, under the flock DIR/KIND/.lock that all gateways take. Unlike the state of kernels, records
// outlive the machine, so they are synced to disk. The file of a settled record is read-only: so one look at the folder
// tells which records need not be read. The package starts no goroutine.
package records

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
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	recordsLock = ".lock"
	maxRecord   = 1 << 30 // bytes
	recordPace  = 10 * time.Second
	settledMode = 0o400 // of the file of a settled record
)

// Store is the records of one folder. All methods may be called concurrently, also by Stores of other programs.
type Store struct{ dir string }

// NewStore returns the records of a folder, which is created with the first record.
func NewStore(dir string) Store { return Store{dir} }

// Records returns all records of a kind. A damaged one has no data.
func (s Store) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	ids, err := s.RecordIDs(ctx, kind)
	if err != nil {
		return nil, err
	}
	all := make([]launcher.Record, 0, len(ids))
	for _, id := range ids {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r, err := s.Record(ctx, kind, id)
		switch {
		case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
		case errors.Is(err, launcher.ErrRecordDamaged):
			all = append(all, launcher.Record{Kind: kind, ID: id})
		case err != nil:
			return nil, err
		default:
			all = append(all, r)
		}
	}
	return all, nil
}

// MaxRecord returns how many bytes of data a record can have.
func (s Store) MaxRecord() int64 { return maxRecord }

// RecordPace returns the time between two replacements of a record.
func (s Store) RecordPace() time.Duration { return recordPace }

// stampAge is how old a file is whose stamp is trusted: two replacements within a tick of the clock look alike.
const stampAge = time.Second

// RecordStamps returns the ids of the records of a kind, with stamps of their files.
func (s Store) RecordStamps(_ context.Context, kind string, onlyOpen bool) (map[string]string, error) {
	stamps := map[string]string{}
	_, err := s.recordNames(kind, func(e fs.DirEntry) bool {
		info, err := e.Info()
		if err != nil || onlyOpen && info.Mode() == settledMode {
			return false // it has gone, or is not wanted
		}
		if stamps[e.Name()] = ""; time.Since(info.ModTime()) > stampAge {
			file, _ := info.Sys().(*syscall.Stat_t)
			stamps[e.Name()] = fmt.Sprint(file.Ino, info.ModTime().UnixNano(), info.Size(), info.Mode())
		}
		return true
	})
	return stamps, err
}

// RecordIDs returns the ids of all records of a kind.
func (s Store) RecordIDs(_ context.Context, kind string) ([]string, error) {
	return s.recordNames(kind, func(fs.DirEntry) bool { return true })
}

func (s Store) recordNames(kind string, want func(fs.DirEntry) bool) ([]string, error) {
	dir, err := s.recordsDir(kind)
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
		if launcher.ValidRecordName(e.Name()) && want(e) { // neither the lock nor a file that is being written
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Record returns one record.
func (s Store) Record(_ context.Context, kind, id string) (launcher.Record, error) {
	path, err := s.recordPath(kind, id)
	if err != nil {
		return launcher.Record{}, err
	}
	b, settled, err := readRecord(path)
	if errors.Is(err, fs.ErrNotExist) {
		return launcher.Record{}, launcher.ErrNoRecord
	}
	if errors.Is(err, files.ErrUnusable) {
		return launcher.Record{}, fmt.Errorf("%w: %w", launcher.ErrRecordDamaged, err)
	}
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	return launcher.Record{Kind: kind, ID: id, Data: b, Version: recordVersion(b), Settled: settled}, nil
}

// readRecord reads the file of a record.
func readRecord(path string) (b []byte, settled bool, err error) {
	b, info, err := files.ReadInfo(path, maxRecord)
	if err != nil {
		return nil, false, err
	}
	return b, info.Mode() == settledMode, nil
}

// CreateRecord stores a new record.
func (s Store) CreateRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	r.Version = ""
	return s.writeRecord(ctx, r)
}

// ReplaceRecord stores other data for a record.
func (s Store) ReplaceRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	if r.Version == "" {
		return launcher.Record{}, launcher.ErrRecordChanged
	}
	return s.writeRecord(ctx, r)
}

// writeRecord writes a record if the present one has the given version; "" means that there is none.
func (s Store) writeRecord(ctx context.Context, r launcher.Record) (launcher.Record, error) {
	path, err := s.recordPath(r.Kind, r.ID)
	if err != nil {
		return launcher.Record{}, err
	}
	if len(r.Data) > maxRecord {
		return launcher.Record{}, launcher.ErrRecordTooLarge
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	lock, err := flock.Wait(ctx, filepath.Join(filepath.Dir(path), recordsLock))
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	defer flock.Unlock(lock)
	before, err := files.Read(path, maxRecord)
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
	err = files.Replace(path, func(f *os.File) error {
		if _, err := f.Write(r.Data); err != nil {
			return err
		}
		if r.Settled {
			if err := f.Chmod(settledMode); err != nil {
				return err
			}
		}
		return f.Sync()
	})
	if err == nil {
		err = files.SyncFolder(filepath.Dir(path))
	}
	if err != nil {
		return launcher.Record{}, unavailableRecords(err)
	}
	r.Version = recordVersion(r.Data)
	r.Data = bytes.Clone(r.Data)
	return r, nil
}

// RemoveRecord removes a record.
func (s Store) RemoveRecord(ctx context.Context, kind, id string) error {
	path, err := s.recordPath(kind, id)
	if err != nil {
		return err
	}
	lock, err := flock.Wait(ctx, filepath.Join(filepath.Dir(path), recordsLock))
	if errors.Is(err, fs.ErrNotExist) { // no record of this kind was ever stored
		return nil
	}
	if err != nil {
		return unavailableRecords(err)
	}
	defer flock.Unlock(lock)
	if err := os.RemoveAll(path); err != nil { // a damaged record may be a folder
		return unavailableRecords(err)
	}
	return nil
}

func (s Store) recordsDir(kind string) (string, error) {
	if !launcher.ValidRecordName(kind) {
		return "", fmt.Errorf("records: %q is not a kind", kind)
	}
	return filepath.Join(s.dir, kind), nil
}

func (s Store) recordPath(kind, id string) (string, error) {
	dir, err := s.recordsDir(kind)
	if err == nil && !launcher.ValidRecordName(id) {
		err = fmt.Errorf("records: %q is not an id", id)
	}
	return filepath.Join(dir, id), err
}

// recordVersion is taken from the content: the same content is the same record for every writer.
func recordVersion(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

func unavailableRecords(err error) error {
	return fmt.Errorf("%w: records: %w", launcher.ErrUnavailable, err)
}
