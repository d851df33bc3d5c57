package kernelspecs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// Resources returns the names of files beside kernel.json that front ends request, by Jupyter's key: logos without
// their extension (logo-64x64: logo-64x64.png), kernel.js and kernel.css with it. The map is never nil and must not be
// modified.
func (s Spec) Resources() map[string]string {
	if s.resources == nil {
		return map[string]string{}
	}
	return s.resources
}

// findResources lists the resources of a directory. Errors are ignored: a spec without its logo is still usable.
func findResources(dir string) map[string]string {
	found := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return found
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == "kernel.js" || name == "kernel.css":
			found[name] = name
		case strings.HasPrefix(name, "logo-"):
			found[strings.TrimSuffix(name, path.Ext(name))] = name
		}
	}
	return found
}

// OpenResource opens a file of the spec's directory for reading. The name is slash separated and may name a file in a
// subdirectory. It cannot name a file outside, neither by "..", nor by an absolute path, nor through a symlink. The
// error for a file that cannot be served is fs.ErrNotExist, so that clients learn nothing else about it.
func (s Spec) OpenResource(file string) (*os.File, error) {
	notExist := &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}
	if !fs.ValidPath(file) {
		return nil, notExist
	}
	root, err := os.OpenRoot(s.Dir)
	if err != nil {
		return nil, openError(err, notExist)
	}
	defer func() { _ = root.Close() }() // the file stays open
	// Without O_NONBLOCK opening a FIFO would block until a program writes to it.
	f, err := root.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, openError(err, notExist)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("kernelspec %s: %w", s.Name, err), f.Close())
	}
	if !info.Mode().IsRegular() {
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("kernelspec %s: %w", s.Name, err)
		}
		return nil, notExist
	}
	return f, nil
}

// openError returns err for a temporary lack of descriptors or memory, and notExist for other errors.
func openError(err error, notExist error) error {
	for _, temporary := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EIO} {
		if errors.Is(err, temporary) {
			return err
		}
	}
	return notExist
}
