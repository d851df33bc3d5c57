// Package folder keeps the records of jobs in a folder that all gateways mount, for jobs with more output than config
// maps can hold. Records is a launcher.RecordKeeper. It takes no locks: each change is one rename(2). Any file
// system will do on which that is atomic for all machines, such as NFS.
//
// A record is a folder. It has a file with the data, and an empty file, the mark, which says that this is the data:
//
//	DIR/KIND/ID/BEFORE-VERSION.data
//	DIR/KIND/ID/BEFORE-VERSION.open, or .settled
//
// VERSION is a random text. BEFORE is that of the data which was replaced; in a new record it is another random text. A
// writer writes its data into a file, and renames the mark. That fails if another writer has renamed it, or the record
// was removed. No text is used twice, so a writer that was frozen for long fails, too. A record is created and removed
// by a rename of its folder.
//
// The package starts no goroutine.
package folder

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

const (
	maxRecord    = 1 << 30 // bytes
	recordPace   = 10 * time.Second
	readAttempts = 10 // at a record that is being replaced

	temporary = ".new-" // with it begin the names of new folders, and of removed ones that still have files
	leftAfter = time.Hour

	data    = ".data"
	open    = ".open"
	settled = ".settled"
)

// Records are the records in a folder. All methods may be called concurrently.
type Records struct {
	dir    string
	rename func(from, to string) error // os.Rename, but in tests
}

// Open returns the records in a folder, which it makes if it is missing. The error says why they cannot be written.
func Open(dir string) (*Records, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not an absolute path", dir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	probe, err := os.MkdirTemp(dir, temporary)
	if err != nil {
		return nil, err
	}
	return &Records{dir, os.Rename}, os.Remove(probe)
}

// MaxRecord returns how many bytes of data a record can have.
func (r *Records) MaxRecord() int64 { return maxRecord }

// RecordPace returns the time between two replacements of a record.
func (r *Records) RecordPace() time.Duration { return recordPace }

// Records returns all records of a kind. A damaged one has no data.
func (r *Records) Records(ctx context.Context, kind string) ([]launcher.Record, error) {
	ids, err := r.RecordIDs(ctx, kind)
	if err != nil {
		return nil, err
	}
	all := make([]launcher.Record, 0, len(ids))
	for _, id := range ids {
		one, err := r.Record(ctx, kind, id)
		switch {
		case errors.Is(err, launcher.ErrNoRecord): // it was removed meanwhile
			continue
		case err != nil && !errors.Is(err, launcher.ErrRecordDamaged):
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// RecordIDs returns the ids of all records of a kind. It removes what killed gateways have left.
func (r *Records) RecordIDs(_ context.Context, kind string) (ids []string, err error) {
	if !launcher.ValidRecordName(kind) {
		return nil, fmt.Errorf("records: %q is not a kind", kind)
	}
	dir := filepath.Join(r.dir, kind)
	entries, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
		return nil, unavailable(err)
	}
	for _, e := range entries {
		if launcher.ValidRecordName(e.Name()) {
			ids = append(ids, e.Name())
			continue
		}
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), temporary) && time.Since(info.ModTime()) > leftAfter {
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
		if err != nil && !gone(err) {
			return nil, unavailable(err)
		}
	}
	return ids, nil
}

// RecordStamps returns the ids of the records of a kind, with the versions that their marks name.
func (r *Records) RecordStamps(ctx context.Context, kind string, onlyOpen bool) (map[string]string, error) {
	ids, err := r.RecordIDs(ctx, kind)
	stamps := make(map[string]string, len(ids))
	for _, id := range ids {
		mark, err := markIn(filepath.Join(r.dir, kind, id))
		switch {
		case gone(err):
		case unusable(err):
			stamps[id] = ""
		case err != nil:
			return nil, unavailable(err)
		case !onlyOpen || filepath.Ext(mark) != settled:
			stamps[id] = mark // "" while it is being replaced
		}
	}
	return stamps, err
}

// Record returns one record.
func (r *Records) Record(ctx context.Context, kind, id string) (launcher.Record, error) {
	one := launcher.Record{Kind: kind, ID: id}
	dir, err := r.path(kind, id)
	if err != nil {
		return one, err
	}
	for i := range readAttempts {
		if err := goroutines.Sleep(ctx, time.Duration(i*i)*time.Millisecond); err != nil {
			return one, err
		}
		mark, err := markIn(dir)
		if err == nil && mark != "" {
			one.Settled = strings.HasSuffix(mark, settled)
			one.Version = strings.TrimSuffix(mark, filepath.Ext(mark))
			one.Data, err = files.Read(filepath.Join(dir, one.Version+data), maxRecord)
			if err == nil {
				return one, nil
			}
		} else if gone(err) {
			return one, launcher.ErrNoRecord
		}
		if unusable(err) {
			break
		}
		if err != nil && !gone(err) {
			return one, unavailable(err)
		}
		// The record was replaced or removed meanwhile.
	}
	one.Version, one.Settled = "", false
	return one, launcher.ErrRecordDamaged
}

// markIn returns the name of the mark in a record's folder, or "" if the mark is just being renamed.
func markIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext == open || ext == settled {
			return e.Name(), err
		}
	}
	return "", err
}

// CreateRecord stores a new record.
func (r *Records) CreateRecord(_ context.Context, one launcher.Record) (launcher.Record, error) {
	dir, err := r.path(one.Kind, one.ID)
	if err != nil {
		return one, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return one, unavailable(err)
	}
	made, err := os.MkdirTemp(filepath.Dir(dir), temporary)
	if err != nil {
		return one, unavailable(err)
	}
	one.Version = rand.Text() + "-" + rand.Text()
	if err = write(made, one.Version, one.Data); err == nil {
		err = os.WriteFile(filepath.Join(made, one.Version+mark(one)), nil, 0o600)
	}
	if err == nil {
		err = files.SyncFolder(made)
	}
	if err == nil {
		err = r.rename(made, dir)
	}
	if err == nil {
		err = files.SyncFolder(filepath.Dir(dir))
	}
	return result(one, err, os.RemoveAll(made))
}

// ReplaceRecord stores other data for a record.
func (r *Records) ReplaceRecord(_ context.Context, one launcher.Record) (launcher.Record, error) {
	dir, err := r.path(one.Kind, one.ID)
	if err != nil {
		return one, err
	}
	before := one.Version
	_, base, ok := strings.Cut(before, "-")
	if !ok || filepath.Base(before) != before {
		return one, launcher.ErrRecordChanged
	}
	one.Version = base + "-" + rand.Text()
	if err := write(dir, one.Version, one.Data); err != nil {
		return result(one, err, os.RemoveAll(filepath.Join(dir, one.Version+data)))
	}
	if err := r.replaceMark(dir, before, one.Version+mark(one)); err != nil {
		var left error
		if gone(err) {
			left = os.RemoveAll(filepath.Join(dir, one.Version+data))
		} // else the mark may name the data. If it does not, a later replacement removes the data.
		return result(one, err, left)
	}
	return result(one, files.SyncFolder(dir), removeOthers(dir, before, one.Version))
}

// replaceMark renames the mark of a version. If the mark was renamed or removed by others, the error is one for which
// gone reports true.
func (r *Records) replaceMark(dir, before, mark string) error {
	to := filepath.Join(dir, mark)
	err := r.rename(filepath.Join(dir, before+open), to)
	if gone(err) { // it may be settled
		err = r.rename(filepath.Join(dir, before+settled), to)
	}
	if !gone(err) {
		return err
	}
	// A file server may have renamed it, and not remember that when the same request comes again.
	switch now, lookErr := markIn(dir); {
	case now == mark:
		return nil
	case lookErr != nil:
		return lookErr
	}
	return err
}

// removeOthers removes data that no mark names any more: that of the version before, of the one before that, and of
// writers who wanted to replace either. A writer that was killed has not removed the older ones.
func removeOthers(dir, before, now string) error {
	older, base, _ := strings.Cut(before, "-")
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		version, isData := strings.CutSuffix(e.Name(), data)
		replaced, own, _ := strings.Cut(version, "-")
		dead := replaced == older || replaced == base || own == older
		if !isData || !dead || version == now {
			continue
		}
		if removed := os.Remove(filepath.Join(dir, e.Name())); !gone(removed) {
			err = errors.Join(err, removed)
		}
	}
	return err
}

// result returns a record that was written, or why it was not. left says what could not be removed: it goes later.
func result(one launcher.Record, err, left error) (launcher.Record, error) {
	switch {
	case errors.Is(err, fs.ErrExist), gone(err):
		return one, launcher.ErrRecordChanged
	case errors.Is(err, launcher.ErrRecordTooLarge):
		return one, err
	case err != nil:
		return one, unavailable(errors.Join(err, left))
	}
	one.Data = bytes.Clone(one.Data)
	return one, nil
}

// mark returns how the name of a record's mark ends.
func mark(one launcher.Record) string {
	if one.Settled {
		return settled
	}
	return open
}

// write writes the data of a version.
func write(dir, version string, content []byte) error {
	if len(content) > maxRecord {
		return launcher.ErrRecordTooLarge
	}
	f, err := os.OpenFile(filepath.Join(dir, version+data), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// RemoveRecord removes a record. Files that are still being read may stay until RecordIDs removes them.
func (r *Records) RemoveRecord(_ context.Context, kind, id string) error {
	dir, err := r.path(kind, id)
	if err != nil {
		return err
	}
	old := filepath.Join(filepath.Dir(dir), temporary+rand.Text())
	switch err := r.rename(dir, old); {
	case gone(err):
		return nil
	case err != nil:
		return unavailable(err)
	}
	_ = os.RemoveAll(old)
	return nil
}

func (r *Records) path(kind, id string) (string, error) {
	if !launcher.ValidRecordName(kind) || !launcher.ValidRecordName(id) {
		return "", fmt.Errorf("records: %q of the kind %q is not a name", id, kind)
	}
	return filepath.Join(r.dir, kind, id), nil
}

// unusable reports whether what has the name of a record, or of its data, cannot be one.
func unusable(err error) bool {
	var refused *fs.PathError
	if errors.Is(err, fs.ErrPermission) && errors.As(err, &refused) {
		return sealed(refused.Path)
	}
	return errors.Is(err, files.ErrUnusable) || errors.Is(err, syscall.ENOTDIR)
}

// sealed reports whether the mode of a folder or a file gives this process no right to read it. A server that refuses
// access for a while does not change the mode.
func sealed(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	rights := fs.FileMode(0o400)
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) != os.Geteuid() {
		rights = 0o044
	}
	return info.Mode()&rights == 0
}

// gone reports whether a file or its folder is not there, or on NFS is not there any more.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) }

func unavailable(err error) error { return fmt.Errorf("%w: records: %w", launcher.ErrUnavailable, err) }
