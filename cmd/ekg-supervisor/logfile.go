package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/internal/files"
)

const (
	logFile      = "supervisor.log" // in the folder of the configuration
	olderLogFile = logFile + ".1"
	maxLogFile   = 1 << 20 // bytes; the older file has at most twice as many
)

// boundedLog writes the log file of a kernel's supervisor, and bounds it. When the file is full, its content replaces
// the older file, and the file is empty again. The file is not renamed: the parent, and the Go runtime at a panic,
// append to it too. A line that they write just then may be lost. All methods may be called concurrently.
type boundedLog struct {
	file *os.File // opened for appending
	path string
	max  int64

	mu sync.Mutex // held while the file is bounded
}

// logOutput returns where a supervisor logs. That is stderr, which is bounded if a launcher has made it the log file
// beside the configuration.
func logOutput(stderr *os.File, config string) io.Writer {
	path := filepath.Join(filepath.Dir(config), logFile)
	named, err := os.Stat(path)
	if err != nil {
		return stderr
	}
	if open, err := stderr.Stat(); err != nil || !os.SameFile(open, named) {
		return stderr
	}
	b := &boundedLog{file: stderr, path: path, max: maxLogFile}
	_ = b.bound() // after earlier supervisors; the next line tries again
	return b
}

// Write appends one or more lines.
func (b *boundedLog) Write(p []byte) (int, error) {
	n, err := b.file.Write(p)
	return n, errors.Join(err, b.bound())
}

// bound empties the file if it is full.
func (b *boundedLog) bound() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	info, err := b.file.Stat()
	if err != nil || info.Size() < b.max {
		return err
	}
	full, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer full.Close() //nolint:errcheck // it was only read
	// A trace of a panic may exceed the bound by much. Its end, and lines after it, are kept.
	if _, err := full.Seek(max(0, info.Size()-2*b.max), io.SeekStart); err != nil {
		return err
	}
	older := filepath.Join(filepath.Dir(b.path), olderLogFile)
	err = files.Replace(older, func(to *os.File) error {
		_, err := io.Copy(to, full)
		return err
	})
	return errors.Join(err, b.file.Truncate(0)) // also on a full disk
}
