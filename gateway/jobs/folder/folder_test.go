package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest"
)

func opened(t *testing.T, dir string) *Records {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestRecords runs the suite for records with two gateways.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	launchertest.Records(t, opened(t, dir), opened(t, dir))
	if left, err := os.ReadDir(filepath.Join(dir, "test")); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A folder that cannot be written, and a path that depends on where the gateway was started, are errors.
func TestOpen_Wrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"", "jobs", file, filepath.Join(file, "jobs")} {
		if _, err := Open(dir); err == nil {
			t.Errorf("%q was opened", dir)
		}
	}
}

// A writer that was frozen between reading a record and replacing it does not win, whatever was done meanwhile.
func TestReplace_Late(t *testing.T) {
	for what, meanwhile := range map[string]func(*Records, launcher.Record) error{
		"replaced twice": func(r *Records, one launcher.Record) error {
			one, err := r.ReplaceRecord(t.Context(), one)
			if err == nil {
				_, err = r.ReplaceRecord(t.Context(), one)
			}
			return err
		},
		"removed": func(r *Records, one launcher.Record) error {
			return r.RemoveRecord(t.Context(), one.Kind, one.ID)
		},
		"removed and created": func(r *Records, one launcher.Record) error {
			err := r.RemoveRecord(t.Context(), one.Kind, one.ID)
			one.Data = []byte("another")
			_, created := r.CreateRecord(t.Context(), one)
			return errors.Join(err, created)
		},
	} {
		r := opened(t, t.TempDir())
		one, err := r.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: []byte("0")})
		if err != nil {
			t.Fatal(err)
		}
		if err := meanwhile(r, one); err != nil {
			t.Fatal(err)
		}
		before, err := r.Records(t.Context(), "test")
		if _, late := r.ReplaceRecord(t.Context(), one); err != nil || !errors.Is(late, launcher.ErrRecordChanged) {
			t.Errorf("%s: %v, %v", what, err, late)
		}
		if _, err := r.CreateRecord(t.Context(), one); (err == nil) != (len(before) == 0) {
			t.Errorf("%s: created: %v", what, err)
		}
	}
}

// A rename may be done although it ends with an error: an answer of a file server was lost. The record stays whole.
func TestReplace_LostAnswer(t *testing.T) {
	for _, answer := range []error{syscall.ENOENT, syscall.EIO} {
		dir := t.TempDir()
		r := opened(t, dir)
		one, err := r.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: []byte("0")})
		if err != nil {
			t.Fatal(err)
		}
		r.rename = func(from, to string) error { return errors.Join(os.Rename(from, to), answer) }
		one.Data = []byte("1")
		_, err = r.ReplaceRecord(t.Context(), one)
		if known := err == nil; known != (answer == syscall.ENOENT) || !known && !errors.Is(err, launcher.ErrUnavailable) {
			t.Errorf("%v: %v", answer, err)
		}
		other := opened(t, dir)
		now, err := other.Record(t.Context(), "test", "one")
		if err != nil || string(now.Data) != "1" {
			t.Fatalf("%v: the record has %q, %v", answer, now.Data, err)
		}
		if _, err = other.ReplaceRecord(t.Context(), now); err != nil {
			t.Error(err)
		}
		if all, err := os.ReadDir(filepath.Join(dir, "test", "one")); err != nil || len(all) != 2 {
			t.Errorf("%v: a record has the files %v, %v", answer, all, err)
		}
	}
}

// Writers replace, create and remove one record at once. Each replacement that succeeds is of the newest version. A
// folder that a writer was in when it was removed goes later.
func TestReplace_Race(t *testing.T) {
	dir := t.TempDir()
	var last atomic.Int64
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			r := opened(t, dir)
			for range 60 {
				one, err := r.Record(t.Context(), "test", "one")
				if errors.Is(err, launcher.ErrNoRecord) {
					_, err = r.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: []byte("0")})
				} else if err == nil && w == 0 && len(one.Data) > 1 {
					err = r.RemoveRecord(t.Context(), "test", "one")
				} else if err == nil {
					one.Data = fmt.Append(nil, last.Add(1))
					_, err = r.ReplaceRecord(t.Context(), one)
				}
				if err != nil && !errors.Is(err, launcher.ErrRecordChanged) {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	r := opened(t, dir)
	if err := r.RemoveRecord(t.Context(), "test", "one"); err != nil {
		t.Error(err)
	}
	removed, err := filepath.Glob(filepath.Join(dir, "test", temporary+"*"))
	for _, folder := range removed {
		err = errors.Join(err, os.Chtimes(folder, time.Time{}, time.Now().Add(-2*leftAfter)))
	}
	if ids, readErr := r.RecordIDs(t.Context(), "test"); err != nil || readErr != nil || len(ids) > 0 {
		t.Errorf("%v, %v, %v", ids, err, readErr)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "test")); err != nil || len(left) != 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A killed writer leaves a folder, which is not read as a record and is removed, and data, which is not read because no
// mark names it.
func TestRecords_KilledWriter(t *testing.T) {
	dir := t.TempDir()
	r := opened(t, dir)
	one, err := r.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: "one", Data: []byte("0")})
	if err != nil {
		t.Fatal(err)
	}
	_, base, _ := strings.Cut(one.Version, "-")
	left, loser := filepath.Join(dir, "test", temporary+"1"), filepath.Join(dir, "test", "one", base+"-X"+data)
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(loser, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Record(t.Context(), "test", "one"); err != nil || string(got.Data) != "0" {
		t.Errorf("%s, %v", got.Data, err)
	}
	for _, age := range []time.Duration{0, 2 * leftAfter} {
		if err := os.Chtimes(left, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		ids, err := r.RecordIDs(t.Context(), "test")
		_, there := os.Stat(left)
		if err != nil || len(ids) != 1 || (there == nil) != (age == 0) {
			t.Errorf("%v, %v; %v after %v", ids, err, there, age)
		}
	}
	if _, err := r.ReplaceRecord(t.Context(), one); err != nil {
		t.Error(err)
	}
	if all, err := os.ReadDir(filepath.Join(dir, "test", "one")); err != nil || len(all) != 2 {
		t.Errorf("a record has the files %v, %v", all, err)
	}
}

// A record without its data or its mark is damaged. It keeps no other record from being read.
func TestRecords_Damaged(t *testing.T) {
	dir := t.TempDir()
	r := opened(t, dir)
	for _, id := range []string{"one", "no-mark", "no-data"} {
		one, err := r.CreateRecord(t.Context(), launcher.Record{Kind: "test", ID: id, Data: []byte("0")})
		if err != nil {
			t.Fatal(err)
		}
		if lost := map[string]string{"no-mark": "open", "no-data": "data"}[id]; lost != "" {
			if err := os.Remove(filepath.Join(dir, "test", id, one.Version+"."+lost)); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Record(t.Context(), "test", id); !errors.Is(err, launcher.ErrRecordDamaged) {
				t.Errorf("%s: %v", id, err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "test", "a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "test", "no-rights"), 0); err != nil { // root needs none
		t.Fatal(err)
	}
	for _, onlyOpen := range []bool{true, false} {
		if stamps, err := r.RecordStamps(t.Context(), "test", onlyOpen); err != nil || len(stamps) != 5 {
			t.Errorf("%v, %v", stamps, err)
		}
	}
	if all, err := r.Records(t.Context(), "test"); err != nil || len(all) != 5 {
		t.Errorf("%v, %v", all, err)
	}
	for _, id := range []string{"no-mark", "no-data", "a-file", "no-rights"} {
		if err := r.RemoveRecord(t.Context(), "test", id); err != nil {
			t.Error(err)
		}
	}
	if ids, err := r.RecordIDs(t.Context(), "test"); err != nil || len(ids) != 1 {
		t.Errorf("%v, %v", ids, err)
	}
}

// A server that refuses access for a while damages no record: only a mode without rights does.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mode     fs.FileMode
		unusable bool
	}{"refused": {0o600, false}, "sealed": {0, true}, "writable": {0o200, true}} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		for _, number := range []error{syscall.EACCES, syscall.EPERM} {
			err := error(&fs.PathError{Op: "open", Path: path, Err: number})
			for _, err := range []error{err, fmt.Errorf("%w: %w", files.ErrUnusable, err)} { // of a folder, and of a file
				if got := unusable(err); got != c.unusable {
					t.Errorf("%v, of a file with the mode %v, is unusable: %v", err, c.mode, got)
				}
			}
		}
	}
	if unusable(&fs.PathError{Op: "open", Path: filepath.Join(dir, "none"), Err: syscall.EACCES}) {
		t.Error("what is not there is unusable")
	}
}
