package supervisor

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

// socket is one ZeroMQ connection to a kernel's port. It never redials: an error of Send or Recv is permanent, and
// whoever owns the socket closes it and dials another. Only a sub queues and has a goroutine: see readAhead.
type socket interface {
	// Send writes one message with one system call where the kernel takes it at once. It may be called concurrently. It
	// returns when the operating system has the message, or with an error when the peer has taken nothing of it for the
	// write limit, when the connection is lost or when the socket is closed. The frames are not kept.
	Send(frames [][]byte) error
	// Recv waits for one message. Only one goroutine may call it. The frames are the caller's. It has no time limit.
	Recv() ([][]byte, error)
	// Close ends the connection, unblocks Send and Recv and waits for a sub's goroutine. It may be called twice and
	// concurrently.
	Close() error
}

// socketKind is the ZeroMQ type of our end.
type socketKind int

// A dealer speaks to a ROUTER or REP (shell, control, stdin, heartbeat), a sub to a PUB or XPUB (iopub).
const (
	dealer socketKind = iota + 1
	sub
)

// socketLimits bounds what a kernel, which runs its user's code, can make us allocate or wait for. Zero members mean
// the defaults.
type socketLimits struct {
	Frame     int64         // bytes of one frame: 256 MiB
	Message   int64         // bytes of all frames of a message: 512 MiB
	Frames    int           // frames of a message: 65536
	Handshake time.Duration // from dialing to the end of the handshake: 5 s
	Write     time.Duration // without the peer taking a byte of what we send: 30 s
}

// Defaults of socketLimits.
const (
	defaultFrameLimit     = 256 << 20
	defaultMessageLimit   = 512 << 20
	defaultFramesLimit    = 1 << 16
	defaultHandshakeLimit = 5 * time.Second
	defaultWriteLimit     = 30 * time.Second
)

func (l socketLimits) withDefaults() socketLimits {
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

// errZMTP says that the peer broke the ZeroMQ protocol or one of our limits.
var errZMTP = errors.New("zeromq protocol violated")

// maxIdentity is ZMTP's bound for a socket's identity.
const maxIdentity = 255

// dialSocket connects to an endpoint of a kernel, tcp://127.0.0.1:5555 or ipc:///path, and completes the handshake. A
// sub is subscribed to everything when it returns; as ever with ZeroMQ, the peer learns of that a moment later. An
// empty identity lets the peer make one up. ctx and the handshake limit bound the call, not the socket's life.
func dialSocket(ctx context.Context, endpoint string, kind socketKind, identity []byte, limits socketLimits) (socket, error) {
	limits = limits.withDefaults()
	if len(identity) > maxIdentity || len(identity) > 0 && identity[0] == 0 {
		return nil, fmt.Errorf("zmq: an identity has at most %d bytes and does not start with 0", maxIdentity)
	}
	typ, err := kind.zmtp()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Handshake)
	defer cancel()
	s, err := connectSocket(ctx, endpoint, kind, typ, identity, limits)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("no complete handshake: %w", cause)
		}
		return nil, fmt.Errorf("zmq: %s: %w", endpoint, err)
	}
	return s, nil
}

func connectSocket(ctx context.Context, endpoint string, kind socketKind, typ zmq4.SocketType, identity []byte, limits socketLimits) (*zmqSocket, error) {
	raw, err := dialEndpoint(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	// Closing is what ends a handshake that is blocked in a read, and the only thing that could.
	stop := context.AfterFunc(ctx, func() { raw.Close() }) //nolint:errcheck // nothing is left to be done about it
	s, err := openSocket(newZMTPConn(raw, kind, limits), typ, identity, endpoint)
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

func (k socketKind) zmtp() (zmq4.SocketType, error) {
	switch k {
	case dealer:
		return zmq4.Dealer, nil
	case sub:
		return zmq4.Sub, nil
	}
	return "", fmt.Errorf("zmq: unknown kind of socket %d", k)
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

// openSocket does the handshake on a fresh connection, and subscribes.
func openSocket(conn *zmtpConn, typ zmq4.SocketType, identity []byte, endpoint string) (*zmqSocket, error) {
	lib, err := zmq4.Open(conn, null.Security(), typ, identity, false, nil)
	if err != nil {
		return nil, conn.refusal(err)
	}
	conn.handshaken()
	s := &zmqSocket{endpoint: endpoint, conn: conn, lib: lib}
	if typ == zmq4.Sub {
		// ZMTP 3.0, which is what the library speaks, subscribes by a message: 1 and the topic.
		if err := s.Send([][]byte{{1}}); err != nil {
			s.Close() //nolint:errcheck // never fails
			return nil, err
		}
	}
	return s, nil
}

// zmqSocket is the one implementation of socket: the library's connection, which frames and unframes, on our own.
type zmqSocket struct {
	// Fixed.
	endpoint string
	conn     *zmtpConn
	lib      *zmq4.Conn

	// Owned by the caller of Recv.
	recvErr error

	// Guarded by mu.
	mu  sync.Mutex
	err error // why the socket is dead; the first reason stays
}

func (s *zmqSocket) Send(frames [][]byte) error {
	if len(frames) == 0 {
		return fmt.Errorf("zmq: %s: a message has at least one frame", s.endpoint)
	}
	err := s.conn.batch(func() error { return s.lib.SendMsg(zmq4.NewMsgFrom(frames...)) })
	if err == nil {
		return nil
	}
	// A message may be out in part: nothing after it would be understood.
	return s.fail(fmt.Errorf("zmq: %s: send: %w", s.endpoint, err))
}

func (s *zmqSocket) Recv() ([][]byte, error) {
	if s.recvErr != nil {
		return nil, s.recvErr
	}
	msg, err := s.lib.RecvMsg()
	if err != nil {
		s.recvErr = s.fail(fmt.Errorf("zmq: %s: receive: %w", s.endpoint, s.conn.reason(err)))
		return nil, s.recvErr
	}
	return msg.Frames, nil
}

func (s *zmqSocket) Close() error {
	s.fail(fmt.Errorf("zmq: %s: %w", s.endpoint, net.ErrClosed)) //nolint:errcheck // it is no error to us
	s.conn.ahead.end()
	return nil
}

// fail closes the connection and returns the reason for which it was closed first.
func (s *zmqSocket) fail(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		s.conn.Close() //nolint:errcheck // there is already an error, and a closed socket has nothing to lose
	}
	return s.err
}
