package channels

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// parked is a descriptor of a TCP connection that another process reads and writes. This program's poller does not
// watch it: each packet would wake this program, too.
type parked struct {
	// Fixed.
	fd      int   // valid until close
	baseIn  int64 // what the system's counts were when the connection's began
	baseOut int64

	mu      sync.Mutex
	in, out int64 // guarded by mu; the last known counts
	inEnd   bool  // guarded by mu; in does not change any more
	outEnd  bool  // guarded by mu; out does not change any more
	closed  bool  // guarded by mu
}

// park takes a connection from the poller. early is how many bytes were read that count as the connection's.
func park(c *net.TCPConn, early int64) (*parked, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	p := &parked{fd: -1}
	cerr := raw.Control(func(fd uintptr) {
		if p.baseIn, p.baseOut, err = position(int(fd)); err != nil {
			return
		}
		p.baseIn -= early
		p.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err := errors.Join(cerr, err); err != nil {
		return nil, fmt.Errorf("the client's socket: %w", err)
	}
	_ = c.Close() // the descriptor keeps the connection open
	return p, nil
}

// bytes returns how many bytes the system has received from the peer, and was given for it.
func (p *parked) bytes() (in, out int64) { return p.count(false, false) }

// count returns the counts. inEnd and outEnd say which of them does not change any more.
func (p *parked) count(inEnd, outEnd bool) (in, out int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.inEnd || !p.outEnd { // else the descriptor may be closed
		in, out, err := counts(p.fd)
		if err == nil && !p.inEnd { // it fails on no TCP socket
			p.in = in - p.baseIn
		}
		if err == nil && !p.outEnd {
			p.out = out - p.baseOut
		}
	}
	p.inEnd, p.outEnd = p.inEnd || inEnd, p.outEnd || outEnd
	return p.in, p.out
}

// counts returns the bytes that a socket has received and that were written to it, since its connection began. This
// side must not have ended its writing half.
func counts(fd int) (received, written int64, err error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, 0, err
	}
	received = int64(info.Bytes_received)
	if info.State == unix.BPF_TCP_CLOSE_WAIT {
		received-- // the end of the peer's half counts as a byte
	}
	return received, int64(info.Bytes_sent-info.Bytes_retrans) + int64(info.Notsent_bytes), nil
}

// position returns how many bytes were read from a socket and written to it, since its connection began.
func position(fd int) (read, written int64, err error) {
	for {
		before, written, err := counts(fd)
		if err != nil {
			return 0, 0, err
		}
		unread, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
		if err != nil {
			return 0, 0, err
		}
		if after, _, err := counts(fd); err != nil || after == before {
			return before - int64(unread), written, err
		}
		// Bytes have arrived meanwhile.
	}
}

// hungUp reports whether the peer has closed its side or is gone.
func (p *parked) hungUp() bool { return descriptorHungUp(p.fd) }

// shutdown ends halves of the connection, for all who hold it.
func (p *parked) shutdown(how int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		_ = unix.Shutdown(p.fd, how) // it fails once the peer has reset the connection
	}
}

// close closes the file of unpark. The counts must not change any more.
func (p *parked) close(file *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	_ = file.Close() // see linger
}

// unpark makes the descriptor one that can be waited for. It is closed by close.
func (p *parked) unpark() *os.File { return os.NewFile(uintptr(p.fd), "client") }
