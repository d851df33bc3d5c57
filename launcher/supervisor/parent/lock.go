package parent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// ErrTaken is returned if another supervisor runs this kernel.
var ErrTaken = errors.New("another supervisor holds the kernel's lock")

// Lock takes the kernel's lock for the life of this process, or returns ErrTaken. Closing the file releases it.
// Launchers read in the file which process has the lock.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrTaken
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := api.NoteHolder(f); err != nil {
		f.Close() //nolint:errcheck // the error of the write matters
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}
