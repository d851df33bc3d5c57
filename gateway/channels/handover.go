package channels

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// giveTime is how long a client may take to take the 101, and a supervisor to take the client's socket.
	giveTime = 10 * time.Second
	// lookTime is the time between two looks whether the client is gone. A supervisor notices that at once, unless its
	// process is stopped.
	lookTime = time.Minute
	// lateTime is how long after its deadline a connection is shut down that did not end by itself.
	lateTime = 200 * time.Millisecond
)

// CanHandOver reports whether the socket of a request's client can be handed over: it is a TCP connection without TLS.
func CanHandOver(r *http.Request) bool {
	_, tcp := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return tcp && r.TLS == nil
}

// Handover is a connection whose client's socket the supervisor has: see package api. No byte passes this program. It
// keeps a descriptor of the socket, to count bytes and to end the connection. It also keeps the connection to the
// supervisor, which ends when the websocket ends.
//
// When the supervisor ends, the client still gets what was written. When the context ends, the supervisor is notified,
// and closes. At the deadline the socket is shut down for both programs. Until then this program reads from the socket,
// too, and discards what comes. So a supervisor that is suspended reads nothing later from a client that has lost its
// right.
type Handover struct {
	// Fixed.
	supervisor *net.UnixConn
	earlyBytes int64 // length of early

	// Owned by Run; nil once they are sent.
	early  []byte // from the client
	answer []byte // to the client, before the supervisor has the socket

	mu       sync.Mutex
	client   *net.TCPConn // guarded by mu; nil once it is parked
	socket   *parked      // guarded by mu; nil before that
	deadline time.Time    // guarded by mu; zero before end is called
	cause    error        // guarded by mu; why it ended
}

// newHandover prepares a handover of two connections, which it owns from then on. The bytes of early came from the
// client already.
func newHandover(client *net.TCPConn, supervisor *net.UnixConn, early, answer []byte) *Handover {
	tune(client)
	return &Handover{supervisor: supervisor, earlyBytes: int64(len(early)), early: early, answer: answer, client: client}
}

// Bytes returns how many bytes came from the client and were written for it so far.
func (h *Handover) Bytes() (in, out int64) {
	h.mu.Lock()
	socket := h.socket
	h.mu.Unlock()
	if socket == nil {
		return h.earlyBytes, 0
	}
	return socket.bytes()
}

// Run hands over the client's socket, and returns why the connection has ended. Everything is closed then.
func (h *Handover) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { h.end(context.Cause(ctx)) })
	defer stop()
	err := h.give()
	if err == nil {
		err = h.await()
	}
	first := h.end(err)
	h.finish(first && errors.Is(err, errEOF))
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cause
}

// end begins the connection's end: the supervisor stops reading, and has until the deadline to close. The first call
// counts, and returns true; later calls do nothing.
func (h *Handover) end(cause error) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.deadline.IsZero() {
		return false
	}
	h.deadline, h.cause = time.Now().Add(FlushTime), cause
	// These fail only on connections that are closed already.
	if h.client != nil {
		_ = h.client.SetWriteDeadline(h.deadline)
	}
	_ = h.supervisor.SetReadDeadline(past) // ends await
	_ = h.supervisor.SetWriteDeadline(h.deadline)
	closeWrite(h.supervisor)
	return true
}

// setDeadline sets a deadline with set. It fails once end was called, whose deadlines hold.
func (h *Handover) setDeadline(set func(time.Time) error, after time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.deadline.IsZero() {
		return h.cause
	}
	return set(time.Now().Add(after))
}

// give answers the client and sends its socket to the supervisor.
func (h *Handover) give() error {
	if err := h.setDeadline(h.client.SetWriteDeadline, giveTime); err != nil {
		return ending(err)
	}
	if _, err := h.client.Write(h.answer); err != nil {
		return ending(err)
	}
	socket, err := h.park()
	if err != nil {
		return err
	}
	if err := h.setDeadline(h.supervisor.SetWriteDeadline, giveTime); err != nil {
		return ending(err)
	}
	if err := api.SendSocket(h.supervisor, socket.fd, h.early); err != nil {
		return ending(err)
	}
	h.early, h.answer = nil, nil
	return nil
}

// park takes the client's socket from the poller of this program.
func (h *Handover) park() (*parked, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	socket, err := park(h.client, h.earlyBytes)
	if err != nil {
		return nil, err
	}
	h.client, h.socket = nil, socket
	return socket, nil
}

// await waits for the end of the connection to the supervisor, and returns why the websocket ends.
func (h *Handover) await() error {
	var sink [1]byte
	for gone := false; ; {
		if err := h.setDeadline(h.supervisor.SetReadDeadline, lookTime); err != nil {
			return ending(err)
		}
		_, err := h.supervisor.Read(sink[:])
		switch {
		case err == nil: // no supervisor sends anything
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return ending(err)
		case gone:
			return errGone
		default:
			gone = h.socket.hungUp() // the supervisor has until the next look
		}
	}
}

// finish ends both connections. over says that the supervisor has ended, before anything else did.
func (h *Handover) finish(over bool) {
	h.mu.Lock()
	deadline, client, socket := h.deadline, h.client, h.socket
	h.mu.Unlock()
	if socket == nil {
		_ = h.supervisor.Close() // it waits for the socket
		closeWrite(client)
		linger(client, deadline)
		_ = client.Close() // see linger
		return
	}
	file := socket.unpark()
	until := deadline
	if over {
		until = until.Add(FlushTime) // the supervisor does not wait for the client's answer to its close frame
	} else {
		socket.count(true, false)
	}
	// Who holds the socket can make reads of all others block, whatever their deadline. This ends them, too.
	late := time.AfterFunc(time.Until(until.Add(lateTime)), func() { socket.shutdown(unix.SHUT_RDWR) })
	defer late.Stop()
	var reader sync.WaitGroup
	reader.Go(func() { linger(file, until) })
	if !over {
		linger(h.supervisor, deadline) // it may still write
	}
	socket.count(true, true)
	socket.shutdown(unix.SHUT_WR)
	_ = h.supervisor.Close() // nothing is written on it
	reader.Wait()
	socket.shutdown(unix.SHUT_RDWR)
	linger(file, time.Now().Add(FlushTime)) // nothing arrives any more, so this only empties the socket
	socket.close(file)
}
