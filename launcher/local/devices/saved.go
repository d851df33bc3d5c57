package devices

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/launcher/proctree"
)

// savedMark begins the name of the file that says what a parked kernel takes of the machine's memory:
//
//	DIR/@saved-KERNEL
//
// It names the process that has this memory. A file of a process that has ended means nothing, and is removed by those
// that look. Only the holder of Seat.Exclusive looks and writes.
const savedMark = "@saved-"

// savedText is the content.
type savedText struct {
	PID   int    `json:"pid"`
	Began uint64 `json:"began"` // proctree.Process.Began: another process may get the number later
	Bytes int64  `json:"bytes"`
}

func (s *Seat) savedFile() string { return filepath.Join(s.pool.dir, savedMark+s.kernel) }

// Saved returns what other parked kernels of the machine take of its memory, in bytes. It is known until the end of
// Exclusive, but that others may take less meanwhile.
func (s *Seat) Saved() (sum int64, err error) {
	entries, err := os.ReadDir(s.pool.dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		path := filepath.Join(s.pool.dir, e.Name())
		if !strings.HasPrefix(e.Name(), savedMark) || path == s.savedFile() {
			continue
		}
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its kernel has its GPU again
		}
		if err != nil {
			return 0, err
		}
		var text savedText
		if err := json.Unmarshal(b, &text); err == nil { // else its writer was killed, and has saved nothing
			if p, ok := proctree.Find(text.PID); ok && p.Alive() && p.Began == text.Began {
				sum += text.Bytes
				continue
			}
		}
		_ = os.Remove(path) // another look tries again
	}
	return sum, nil
}

// NoteSaved notes that the kernel takes so many bytes of the machine's memory in a process, until ForgetSaved or the
// end of that process. It must be called before Exclusive ends.
func (s *Seat) NoteSaved(pid int, bytes int64) error {
	p, _ := proctree.Find(pid) // one that has ended takes nothing
	b, err := json.Marshal(savedText{PID: pid, Began: p.Began, Bytes: bytes})
	if err != nil {
		return err
	}
	return os.WriteFile(s.savedFile(), b, 0o600)
}

// ForgetSaved notes that the kernel takes no memory instead of its GPU's.
func (s *Seat) ForgetSaved() error {
	if err := os.Remove(s.savedFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
