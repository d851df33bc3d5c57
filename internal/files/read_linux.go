package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// MaxState bounds the files that ReadJSON reads, in bytes.
const MaxState = 16 << 20

// ErrUnusable says that a name is not that of a file which can be used. It is that of a folder, a FIFO, a link or a
// device, or the file is too large, is not JSON, or this user has no right to read it.
var ErrUnusable = errors.New("it cannot be used")

// Refused reports whether an error of an open(2) with O_NOFOLLOW and O_NONBLOCK says that the name is that of a link, a
// socket or a FIFO, or of a file without rights.
func Refused(err error) bool {
	return errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrPermission)
}

// open opens a regular file to read it.
func open(path string, most int64) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	switch {
	case Refused(err):
		return nil, nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	case err != nil:
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s: %w: its mode is %s", path, ErrUnusable, info.Mode())
	case info.Size() > most:
		err = fmt.Errorf("%s: %w: it has more than %d bytes", path, ErrUnusable, most)
	default:
		return f, info, nil
	}
	return nil, nil, errors.Join(err, f.Close())
}

// Read returns the content of a regular file. It follows no link and does not wait for the writer of a FIFO. The error
// is ErrUnusable if path is not a regular file of at most most bytes.
func Read(path string, most int64) ([]byte, error) {
	b, _, err := ReadInfo(path, most)
	return b, err
}

// ReadInfo is Read, and also returns what the system says about the file.
func ReadInfo(path string, most int64) ([]byte, os.FileInfo, error) {
	f, info, err := open(path, most)
	if err != nil {
		return nil, nil, err
	}
	b := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	_, err = b.ReadFrom(io.LimitReader(f, most+1))
	if err == nil && int64(b.Len()) > most { // it grows
		err = fmt.Errorf("%s: %w: it has more than %d bytes", path, ErrUnusable, most)
	}
	return b.Bytes(), info, errors.Join(err, f.Close())
}

// ReadJSON decodes a file of at most MaxState bytes into what v points to. It reads the file as Read does. The error of
// a file that is not JSON is ErrUnusable, too.
func ReadJSON(path string, v any) error {
	b, err := Read(path, MaxState)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrUnusable, err)
	}
	return nil
}
