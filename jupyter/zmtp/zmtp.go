// Package zmtp is the bound side of ZeroMQ's sockets: ROUTER, XPUB and REP over TCP and unix sockets. A program that
// stands in the place of a kernel listens with it. It speaks ZMTP 3.0 with the NULL mechanism, which every libzmq since
// version 4 understands: https://rfc.zeromq.org/spec/23/.
//
// One peer never delays another. Each has a queue of its own, bounded by bytes, and two goroutines: one reads, the
// other writes. Nothing that a peer sends is trusted: lengths, commands and handshakes are checked, and memory grows
// only with what has arrived. The package knows nothing of Jupyter's messages; a message is a list of frames.
//
// Goroutines: one accepts connections, and each peer has two. Listen starts the first, and Socket.Close awaits all.
// Begin with Socket in socket.go. reader.go parses the stream.
package zmtp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// Type is the ZeroMQ type of a bound socket.
type Type string

// The types.
const (
	Router Type = "ROUTER" // messages of each peer, and to one peer
	XPub   Type = "XPUB"   // messages to all peers that have subscribed to their first frame
	Rep    Type = "REP"    // answers each request with the request itself, as a heartbeat does
)

// peersOf are the types of sockets that may connect to one of ours.
var peersOf = map[Type][]string{
	Router: {"DEALER", "REQ", "ROUTER"},
	XPub:   {"SUB", "XSUB"},
	Rep:    {"REQ", "DEALER"},
}

// Bounds.
const (
	handshakeTime = 10 * time.Second // for the greeting and the READY of a peer
	maxPeers      = 1024             // of one socket
	maxTopics     = 1000             // subscriptions of one peer
	maxSmall      = 64 << 10         // bytes of a message to XPUB and REP, and of a command
	maxMessage    = 512 << 20        // bytes of a message to ROUTER
	maxArriving   = 1 << 30          // bytes of all messages to one socket that have begun and are not handled
	maxFrames     = 1<<16 + 16       // of a message
	batch         = 256 << 10        // bytes that are written at once; a larger message goes alone

	// Behind is how many bytes may wait for one peer. Of a ROUTER, a peer that is further behind is not read. Of an
	// XPUB, it loses what may be left out.
	Behind = 64 << 20
	// lost is how many bytes may wait in all. A peer that is further behind is closed.
	lost = 4 * Behind
)

// The stream: a greeting of 64 bytes, one READY command each way, then frames. A frame is a byte of flags, the length
// in one byte or, with flagLong, in eight (big endian), and that many bytes.
const (
	greetingSize = 64

	flagMore     = 0x01
	flagLong     = 0x02
	flagCommand  = 0x04
	flagReserved = ^byte(flagMore | flagLong | flagCommand)
)

// errProtocol is why a peer is closed that violates the protocol.
var errProtocol = errors.New("zmtp: the peer violates the protocol")

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errProtocol}, args...)...)
}

// hello is our half of the handshake: the greeting and READY.
func hello(t Type) []byte {
	b := make([]byte, greetingSize)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	ready := append([]byte{5}, "READY"...)
	for _, property := range [][2]string{{"Socket-Type", string(t)}, {"Identity", ""}} {
		ready = append(append(ready, byte(len(property[0]))), property[0]...)
		ready = append(binary.BigEndian.AppendUint32(ready, uint32(len(property[1]))), property[1]...)
	}
	return append(append(b, flagCommand, byte(len(ready))), ready...)
}

// appendFrames appends a message, or with flagCommand a command, to the pieces of one write. It copies no frame.
func appendFrames(to net.Buffers, frames [][]byte, flags byte) net.Buffers {
	for i, f := range frames {
		flags := flags
		if i < len(frames)-1 {
			flags |= flagMore
		}
		head := []byte{flags, byte(len(f))}
		if len(f) > 255 {
			head = binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(f)))
		}
		to = append(to, head, f)
	}
	return to
}

// newIdentity is that of a peer that names none. It begins with a zero, as no identity that a peer names may.
func newIdentity() string {
	var b [5]byte
	_, _ = rand.Read(b[1:]) // never fails
	return string(b[:])
}
