package flavor

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// File is the operator's file of flavors, which may change while it is used. Its methods may be called concurrently.
type File struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	flavors []Flavor // guarded by mu; of the last valid version; replaced, never changed
	failure string   // guarded by mu; why the present version does not count; "" if it does
	text    []byte   // guarded by mu; of the version that was parsed last, valid or not; nil after a failure to read
}

// Open reads a file of flavors. The error has one line for each problem: file:line: text.
func Open(path string, log *slog.Logger) (*File, error) {
	text, err := read(path)
	if err != nil {
		return nil, err
	}
	flavors, err := parse(path, text)
	if err != nil {
		return nil, err
	}
	return &File{path: path, log: log, flavors: flavors, text: text}, nil
}

// List returns the flavors in the file's order, as the file says at this moment. While the file is missing or invalid,
// the last valid version counts; each new problem is logged once. List reads the file on each call, so that it notices
// every way of replacing it. It parses the file only if it has changed. The slice must not be modified.
func (f *File) List() []Flavor {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := read(f.path)
	if err == nil && f.text != nil && bytes.Equal(text, f.text) {
		return f.flavors
	}
	f.text = text
	var flavors []Flavor
	if err == nil {
		flavors, err = parse(f.path, text)
	}
	switch {
	case err != nil && err.Error() != f.failure:
		f.failure = err.Error()
		for line := range strings.Lines(f.failure) {
			f.log.Error("the file of flavors is invalid; its last valid version still counts", logkey.Err,
				strings.TrimSpace(line))
		}
	case err == nil:
		if f.failure != "" || !reflect.DeepEqual(f.flavors, flavors) {
			f.log.Info("the file of flavors was read again", logkey.File, f.path)
		}
		f.flavors, f.failure = flavors, ""
	}
	return f.flavors
}
