// Package zeromq connects to the ZeroMQ sockets of a kernel. It is the only door to the ZeroMQ library outside of
// tests.
//
// A kernel runs its user's code, so this package trusts nothing that the peer sends: it checks every length, command
// and handshake, bounds memory and waiting by Limits, and never redials. The library does the handshake; messages are
// read and written here. The package knows nothing of Jupyter's messages; a message is a list of frames.
//
// Goroutines: a Sub has one that reads ahead, which Dial starts and Close awaits. A Dealer has none.
package zeromq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

// Socket is one ZeroMQ connection to a kernel's port. An error of Send or Recv is permanent, except a TooLargeError:
// the owner closes the socket and dials another. Only a Sub queues messages.
type Socket interface {
	// Send writes one message, with one system call if the peer takes it at once. It returns when the operating system
	// has the message. It fails if the peer takes nothing for Limits.Write, if the connection is lost or if the socket
	// is closed. It does not keep the frames. It may be called concurrently.
	Send(frames [][]byte) error
	// Recv waits for one message, without a time limit. Only one goroutine may call it. The frames belong to the
	// caller, who must not append to them. They may share their memory with the frames of up to 128 KiB of other
	// messages, so a frame that outlives those is to be cloned. With a *TooLargeError it returns the frames before the
	// one that exceeded Limits, and the socket goes on.
	Recv() ([][]byte, error)
	// Close ends the connection, unblocks Send and Recv and waits for a Sub's goroutine. It returns nil. It may be
	// called twice and concurrently.
	Close() error
}

// Kind is the ZeroMQ type of our end.
type Kind int

// The kinds of our end, by the kernel's sockets that they speak to.
const (
	Dealer Kind = iota + 1 // ROUTER or REP: shell, control, stdin, heartbeat
	Sub                    // PUB or XPUB: iopub
)

// Limits bounds what a kernel can make us allocate or wait for. A zero member means its default. A message that exceeds
// Frame, Message or Frames is discarded as it arrives; see TooLargeError.
type Limits struct {
	Frame     int64         // bytes of one frame: 256 MiB
	Message   int64         // bytes of all frames of a message: 512 MiB
	Frames    int           // frames of a message: 65536
	Handshake time.Duration // from dialing to the end of the handshake: 5 s
	Write     time.Duration // without the peer taking a byte of what we send: 30 s

	// Large is called with the size of each frame that gets memory of its own, before the rest of it arrives. It must not
	// wait. nil: it is not called.
	Large func(bytes int)
}

// The defaults of Limits.
const (
	defaultFrameLimit     = 256 << 20
	defaultMessageLimit   = 512 << 20
	defaultFramesLimit    = 1 << 16
	defaultHandshakeLimit = 5 * time.Second
	defaultWriteLimit     = 30 * time.Second
)

func (l Limits) withDefaults() Limits {
	if l.Frame <= 0 {
		l.Frame = defaultFrameLimit
	}
	if l.Message <= 0 {
		l.Message = defaultMessageLimit
	}
	if l.Frames <= 0 {
		l.Frames = defaultFramesLimit
	}
	if l.Handshake <= 0 {
		l.Handshake = defaultHandshakeLimit
	}
	if l.Write <= 0 {
		l.Write = defaultWriteLimit
	}
	return l
}

// TooLargeError is a message that exceeded Limits. Recv returns its first frames with it, and the next call goes on
// with the next message.
type TooLargeError struct {
	Bytes  int64 // of the whole message
	Frames int   // of the whole message
}

// Error gives the message's size.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("message of %d bytes in %d frames exceeds the limits", e.Bytes, e.Frames)
}

// ErrProtocol says that the peer broke the ZeroMQ protocol. Dial, Send and Recv wrap it.
var ErrProtocol = errors.New("zeromq protocol violated")

// maxIdentity is ZMTP's bound for a socket's identity.
const maxIdentity = 255

// Dial connects to a kernel's endpoint, tcp://127.0.0.1:5555 or ipc:///path, and completes the handshake. A Sub
// subscribes to everything; the peer learns of the subscription a moment after Dial returns. With an empty identity the
// peer chooses one. ctx and Limits.Handshake bound the call, not the socket's life.
func Dial(ctx context.Context, endpoint string, kind Kind, identity []byte, limits Limits) (Socket, error) {
	limits = limits.withDefaults()
	if len(identity) > maxIdentity || len(identity) > 0 && identity[0] == 0 {
		return nil, fmt.Errorf("zeromq: an identity has at most %d bytes and does not start with 0", maxIdentity)
	}
	typ, err := kind.zmtp()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Handshake)
	defer cancel()
	s, err := connect(ctx, endpoint, kind, typ, identity, limits)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("no complete handshake: %w", cause)
		}
		return nil, fmt.Errorf("zeromq: %s: %w", endpoint, err)
	}
	return s, nil
}

func connect(ctx context.Context, endpoint string, kind Kind, typ zmq4.SocketType, identity []byte, limits Limits) (
	*socket, error) {
	raw, err := dialEndpoint(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	// Only closing the connection ends a handshake that is blocked in a read.
	stop := context.AfterFunc(ctx, func() { raw.Close() }) //nolint:errcheck // the handshake's error says why
	s, err := open(newZMTPConn(raw, kind, limits), typ, identity, endpoint)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		raw.Close() //nolint:errcheck // the first error is the one that matters
		if s != nil {
			s.Close() //nolint:errcheck // never fails
		}
		return nil, err
	}
	return s, nil
}

func (k Kind) zmtp() (zmq4.SocketType, error) {
	switch k {
	case Dealer:
		return zmq4.Dealer, nil
	case Sub:
		return zmq4.Sub, nil
	}
	return "", fmt.Errorf("zeromq: unknown kind of socket %d", k)
}

// dialEndpoint opens the stream below a ZeroMQ connection. Go sets TCP_NODELAY and keep-alive on TCP connections.
func dialEndpoint(ctx context.Context, endpoint string) (net.Conn, error) {
	var d net.Dialer
	switch scheme, address, _ := strings.Cut(endpoint, "://"); {
	case scheme == "tcp" && address != "":
		return d.DialContext(ctx, "tcp", address)
	case scheme == "ipc" && address != "":
		return d.DialContext(ctx, "unix", address)
	}
	return nil, fmt.Errorf("endpoint %q is neither tcp://host:port nor ipc://path", endpoint)
}

// open does the handshake on a new connection. A Sub subscribes.
func open(conn *zmtpConn, typ zmq4.SocketType, identity []byte, endpoint string) (*socket, error) {
	if _, err := zmq4.Open(conn, null.Security(), typ, identity, false, nil); err != nil {
		return nil, conn.refusal(err)
	}
	s := &socket{endpoint: endpoint, conn: conn, reader: conn.messages()}
	if typ == zmq4.Sub {
		s.ahead = newReadAhead(s.reader)
		s.ahead.begin()
		// The library speaks ZMTP 3.0, which subscribes by a message: 1 and the topic.
		if err := s.Send([][]byte{{1}}); err != nil {
			s.Close() //nolint:errcheck // never fails
			return nil, err
		}
	}
	return s, nil
}

// socket implements Socket.
type socket struct {
	// Fixed.
	endpoint string
	conn     *zmtpConn
	reader   *reader    // used by ahead, or by the caller of Recv
	ahead    *readAhead // nil for a Dealer

	// Owned by the caller of Recv.
	recvErr error

	// Guarded by mu.
	mu  sync.Mutex
	err error // the first reason why the socket is closed; nil: it is open
}

func (s *socket) Send(frames [][]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("zeromq: %s: a message has at least one frame", s.endpoint)
	}
	err := s.conn.send(frames)
	if err == nil {
		return nil
	}
	// Part of the message may be sent, so the peer would misread everything after it.
	return s.fail(fmt.Errorf("zeromq: %s: send: %w", s.endpoint, err))
}

func (s *socket) Recv() ([][]byte, error) {
	if s.recvErr != nil {
		return nil, s.recvErr
	}
	m, err := s.receive()
	if err != nil {
		s.recvErr = s.fail(fmt.Errorf("zeromq: %s: receive: %w", s.endpoint, err))
		return nil, s.recvErr
	}
	if m.large != nil {
		return m.frames, m.large
	}
	return m.frames, nil
}

func (s *socket) receive() (message, error) {
	if s.ahead != nil {
		return s.ahead.receive()
	}
	return s.reader.next()
}

func (s *socket) Close() error {
	s.fail(fmt.Errorf("zeromq: %s: %w", s.endpoint, net.ErrClosed)) //nolint:errcheck // the caller asked for it
	if s.ahead != nil {
		s.ahead.end()
	}
	return nil
}

// fail closes the connection. It returns the first reason to close it.
func (s *socket) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.conn.Close() //nolint:errcheck // there is already an error, and a closed socket has nothing to lose
	}
	return s.err
}
