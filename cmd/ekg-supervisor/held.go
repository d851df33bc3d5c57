package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/local/devices"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/gpumemory"
)

const heldUsage = "descriptors of locks that the kernel inherits, as FIRST+COUNT"

// seat is a kernel's place at its GPU, as its supervisor uses it.
type seat struct{ *devices.Seat }

// Wait puts the kernel in the line for its GPU.
func (s seat) Wait(since time.Time) (gpumemory.Turn, error) {
	turn, err := s.Seat.Wait(since, false)
	if err != nil {
		return nil, err // a nil *devices.Turn would be a Turn
	}
	return turn, nil
}

// maxHeld bounds the descriptors of --held-fds: two for each of 64 GPUs.
const maxHeld = 128

// heldFiles is the flag --held-fds. Other programs that this one starts do not inherit the files.
type heldFiles []*os.File

// String returns "", the default.
func (h *heldFiles) String() string { return "" }

// Set reads FIRST+COUNT.
func (h *heldFiles) Set(text string) error {
	var first, count int
	if n, err := fmt.Sscanf(text, "%d+%d", &first, &count); n != 2 || err != nil || first < 3 || count < 1 ||
		count > maxHeld {
		return errors.New("not two numbers like 4+1")
	}
	*h = nil
	for fd := first; fd < first+count; fd++ {
		var st syscall.Stat_t
		if err := syscall.Fstat(fd, &st); err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
		syscall.CloseOnExec(fd)
		*h = append(*h, os.NewFile(uintptr(fd), "held"))
	}
	return nil
}
