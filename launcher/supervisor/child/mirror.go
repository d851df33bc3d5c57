package child

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// mirrorPatience is how long the container's log may take to accept the kernel's output.
const mirrorPatience = 2 * time.Second

// mirror copies a kernel's output to the container's own. It drops output that is not accepted within mirrorPatience.
// The kernel's log has that output, and a runtime that reads no logs must not stop a kernel.
type mirror struct {
	f     *os.File
	own   bool // f is a description of its own, not the container's
	stuck bool // the last write ran into its deadline; owned by the writer
}

// openMirror opens an output again, so that its writes can have deadlines. It uses f itself if that is not a pipe or
// belongs to another user.
func openMirror(f *os.File) *mirror {
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), flags, 0)
	if err != nil {
		return &mirror{f: f}
	}
	return &mirror{f: os.NewFile(uintptr(fd), f.Name()), own: true}
}

// Write never fails.
func (m *mirror) Write(b []byte) (int, error) {
	limit := mirrorPatience
	if m.stuck {
		limit = time.Millisecond // it has waited once
	}
	m.f.SetWriteDeadline(time.Now().Add(limit)) //nolint:errcheck // a regular file has no deadline, and does not block
	_, err := m.f.Write(b)
	m.stuck = errors.Is(err, os.ErrDeadlineExceeded)
	return len(b), nil
}

func (m *mirror) close() {
	if m.own {
		_ = m.f.Close() // everything that could be written is written
	}
}
