// Package sendqueue tells whether the host of a TCP peer is alive. A host acknowledges what is sent to it, also while
// its program reads nothing, until the buffers are full. So a queue of sent bytes that stays as it is shows a host that
// is gone, or a program that has not read for long. An empty queue shows a living host.
//
// The package starts no goroutine. It works on Linux only.
package sendqueue

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// Patience is how long bytes may stay in a queue without any going out, plus the time that slowest takes for them.
	Patience = 45 * time.Second
	// LookEvery is the longest time between two looks at a queue.
	LookEvery = 15 * time.Second

	slowest = 32 << 10 // bytes per second below which a peer counts as gone
)

// Limit returns how long so many bytes may stay in a queue without any going out.
func Limit(queued int64) time.Duration { return Patience + time.Duration(queued/slowest)*time.Second }

// Queue is the send queue of a TCP connection: the bytes that were written and that the peer's system has not
// acknowledged. It may be used concurrently, also after the connection was closed.
type Queue struct {
	raw   syscall.RawConn
	acked atomic.Uint64 // bytes that were acknowledged at the last look
}

// Of returns the send queue of a connection, or of the one below TLS. It returns nil if that is not TCP, and where
// Known is false.
func Of(conn net.Conn) *Queue {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok || !Known {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil { // the connection is nil
		return nil
	}
	return &Queue{raw: raw}
}

// Look returns how many bytes are in the queue, and whether some have gone out since the last look. It fails once the
// connection is closed.
func (q *Queue) Look() (queued int64, moved bool, err error) {
	var acked uint64
	failed := q.raw.Control(func(fd uintptr) { queued, acked, err = look(int(fd)) })
	if failed != nil {
		err = failed
	}
	if err != nil {
		return 0, false, err
	}
	return queued, q.acked.Swap(acked) != acked, nil
}
