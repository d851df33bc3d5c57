// Package files writes files that readers see whole or not at all, even if the writer is killed. Write and Replace
// put the content into a temporary file in the same folder, and then rename that file. Launchers and supervisors write
// their state with it. On Linux, Read reads what they have written: state that was damaged never makes a reader wait,
// and never costs it much memory. There the package also measures the free space of file systems, and makes private
// folders.
//
// Write, Replace and Create sync nothing to disk: most files hold the state of processes, which end with the machine. A
// sync would slow down the start of every kernel, and libraries for this purpose (google/renameio, natefinch/atomic)
// always sync. A writer whose files outlive the machine syncs them in fill, and calls SyncFolder.
//
// The package starts no goroutine. Its functions may be called concurrently, also for one path.
package files

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// Write replaces the file at path by one of mode 0600 that holds content. The folder must exist.
func Write(path string, content []byte) error {
	return Replace(path, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

// WriteJSON is Write of a value in JSON, with a line's end.
func WriteJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, append(b, '\n'))
}

// Replace replaces the file at path by the one that fill writes. The file has mode 0600 unless fill changes it. It is
// closed before it gets its name, so a program can be run from there at once. An error of fill is returned as it is,
// and the old file stays.
func Replace(path string, fill func(*os.File) error) error {
	return place(path, fill, os.Rename)
}

// Create makes a file of mode 0600 that holds content. The error is fs.ErrExist if path exists: of several writers one
// wins.
func Create(path string, content []byte) error {
	return place(path, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	}, func(temporary, path string) error {
		return errors.Join(os.Link(temporary, path), os.Remove(temporary)) // a rename would replace the winner's file
	})
}

// SyncFolder makes the names in a folder outlive a crash of the machine.
func SyncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// place fills a temporary file beside path and moves it there.
func place(path string, fill func(*os.File) error, move func(temporary, path string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // of mode 0600
	if err != nil {
		return err
	}
	err = fill(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = move(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error matters
	}
	return err
}
