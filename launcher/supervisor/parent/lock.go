package parent

import (
	"errors"
	"fmt"
	"os"

	"github.com/elastic-kernel-gateway/ekg/internal/flock"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// ErrTaken is returned if another supervisor runs this kernel.
var ErrTaken = errors.New("another supervisor holds the kernel's lock")

// Lock takes the kernel's lock for the life of this process, or returns ErrTaken. Closing the file releases it.
// Launchers read in the file which process has the lock.
func Lock(path string) (*os.File, error) {
	f, err := flock.Try(path)
	if errors.Is(err, flock.ErrBusy) {
		return nil, ErrTaken
	}
	if err != nil {
		return nil, err
	}
	if err := api.NoteHolder(f); err != nil {
		f.Close() //nolint:errcheck // the error of the write matters
		return nil, fmt.Errorf("lock: %w", err)
	}
	return f, nil
}
