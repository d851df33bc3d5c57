// Package gpucalls makes the first calls of CUDA in a kernel's processes wait until the kernel has its GPU. A filter of
// system calls (seccomp, with user notification) holds CUDA's own ioctls; all other calls pass. The filter belongs to a
// thread. What that thread starts inherits it, and so do the children of these processes. Begin with Hold; filter.go
// has the calls that are held.
//
// This package does not decide who has the GPU. It starts no goroutine: its user runs Serve. A call waits for as long
// as a Calls is open. After Close, such calls fail with ENOSYS. A signal ends the wait of a call with EINTR.
package gpucalls

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Repeat is how often Serve tells again of calls that wait.
const Repeat = time.Second

// Calls are the held calls of the processes behind one filter. All methods may be called concurrently, but only one
// Serve runs.
type Calls struct {
	// Fixed.
	listener int
	closing  int // an eventfd: Serve ends

	// Guarded by mu.
	mu     sync.Mutex
	held   []uint64 // ids of calls that wait
	closed bool     // listener may be another file
}

// Hold sets the filter for the calling thread, and for what it starts. The goroutine must be locked to the thread, and
// must end without unlocking it: a thread cannot lose its filter. The thread gains no privileges from then on, nor do
// its children: no set-user-ID program works. The error is a sentence for the kernel's owner.
func Hold() (*Calls, error) {
	closing, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	listener, err := install()
	if err != nil {
		_ = unix.Close(closing) // nothing was written
		return nil, err
	}
	return &Calls{listener: listener, closing: closing}, nil
}

// Serve receives the calls until End. It calls asks for each call, and again every Repeat while one waits. asks may
// call Pass, and must not wait. The error says why no call is received any more.
func (c *Calls) Serve(asks func()) error {
	for {
		timeout := -1
		if c.waits() {
			timeout = int(Repeat.Milliseconds())
		}
		fds := []unix.PollFd{{Fd: int32(c.listener), Events: unix.POLLIN}, {Fd: int32(c.closing), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, timeout)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case fds[1].Revents != 0:
			return nil
		case fds[0].Revents&unix.POLLIN != 0:
			if err := c.receive(); err != nil {
				return err
			}
		case fds[0].Revents != 0:
			return nil // the last process behind the filter has ended
		}
		if c.waits() {
			asks()
		}
	}
}

// notification is struct seccomp_notif.
type notification struct {
	id         uint64
	pid, flags uint32
	data       [64]byte // struct seccomp_data
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// receive takes the next call, which is there. Its process may have given it up by now.
func (c *Calls) receive() error {
	var n notification
	switch err := control(c.listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err {
	case 0:
	case unix.ENOENT, unix.EINTR:
		return nil
	default:
		return fmt.Errorf("SECCOMP_IOCTL_NOTIF_RECV: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = append(c.held, n.id)
	return nil
}

// waits reports whether a call waits. It forgets those whose process was interrupted or has ended.
func (c *Calls) waits() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.held = slices.DeleteFunc(c.held, func(id uint64) bool {
		return control(c.listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) != 0
	})
	return len(c.held) > 0
}

// Pass lets the calls go on that wait now. Those that come later wait again.
func (c *Calls) Pass() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	for _, id := range c.held {
		r := response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		_ = control(c.listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)) // ENOENT: it waits no more
	}
	c.held = nil
}

// End makes Serve return.
func (c *Calls) End() {
	_, _ = unix.Write(c.closing, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // a counter of 1: it cannot be full
}

// Close ends the hold. Serve must have returned, or never have been called.
func (c *Calls) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed, c.held = true, nil
	_ = unix.Close(c.listener) // nothing is lost
	_ = unix.Close(c.closing)
}

func control(fd int, request uintptr, argument unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
	return errno
}
