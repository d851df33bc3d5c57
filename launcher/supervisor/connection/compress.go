package connection

import (
	"net/http"
	"runtime"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
)

// Messages are compressed one by one (permessage-deflate without context takeover, RFC 7692), at the fastest level. A
// compressor takes about 1 MB and a processor. So the program has few of them, and a message that finds none free is
// sent as it is. A peer that reads slowly holds none: what was compressed is gathered first. What is gathered has one
// bound for all connections. A message that has no room there is sent as it is, too.
const (
	compressFrom    = 1 << 10  // bytes of a message; smaller ones gain little
	compressGather  = 4 << 20  // compressed bytes of a message; beyond that it is sent while the rest is compressed
	gatherTotal     = 16 << 20 // bytes of all connections
	compressorsMost = 4
)

var (
	compressors slots  // of the messages that are being compressed
	gathered    budget // of the messages that are compressed, until their peers have them
)

// budget bounds the gathered bytes of all connections. The zero value is ready. It may be used concurrently.
type budget struct {
	mu     sync.Mutex
	used   int
	guests int // of used
}

// take takes n bytes. It returns false if there are too few. Guests leave half of them to the kernel's owner.
func (b *budget) take(owner bool, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > gatherTotal || !owner && b.guests+n > gatherTotal/2 {
		return false
	}
	b.used += n
	if !owner {
		b.guests += n
	}
	return true
}

func (b *budget) giveBack(owner bool, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if !owner {
		b.guests -= n
	}
}

// slots bounds how much is done at once. The zero value is ready. It may be used concurrently.
type slots struct {
	mu     sync.Mutex
	used   int
	guests int // of used
}

// take takes a slot. It returns false if all are in use. The slots are one more than the processors. Guests leave half
// of them to the kernel's owner.
func (s *slots) take(owner bool) bool {
	all := min(compressorsMost, runtime.GOMAXPROCS(0)+1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= all || !owner && s.guests >= all/2 {
		return false
	}
	s.used++
	if !owner {
		s.guests++
	}
	return true
}

func (s *slots) giveBack(owner bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	if !owner {
		s.guests--
	}
}

// compressingUpgrader is upgrader for clients that may get compressed messages. The library writes a frame in two
// pieces if it gets more than two buffers at once. A close frame of the reader could come between them. A compressor
// gives it one block at a time, and a block that gains nothing has less than 64 KiB (RFC 1951, section 3.2.4).
var compressingUpgrader = func() websocket.Upgrader {
	u := upgrader
	u.EnableCompression = true
	u.WriteBufferSize, u.WriteBufferPool = 32<<10, &sync.Pool{}
	return u
}()

// chooseUpgrader returns the Upgrader for a request, and whether messages can be compressed. No relay is compressed.
func (c *Conn) chooseUpgrader(r *http.Request) (*websocket.Upgrader, bool) {
	offered := strings.Contains(strings.Join(r.Header["Sec-Websocket-Extensions"], ","), "permessage-deflate")
	if !c.o.Compress || c.o.Relay || !offered {
		return &upgrader, false
	}
	return &compressingUpgrader, true
}

// writeCompressed sends one websocket message of n bytes, compressed if a compressor is free and there is room for the
// result.
func (c *Conn) writeCompressed(opcode byte, n int, parts [][]byte) error {
	owner := c.o.Input.owner
	if !compressors.take(owner) {
		return c.flow.WriteFrame(opcode, parts...)
	}
	n = min(n, compressGather) // random bytes become larger by less than a thousandth
	if !gathered.take(owner, n) {
		compressors.giveBack(owner)
		return c.flow.WriteFrame(opcode, parts...)
	}
	defer gathered.giveBack(owner, n)
	return c.flow.Gather(compressGather,
		func() error { return c.writeByLibrary(int(opcode), parts) },
		func() { compressors.giveBack(owner) })
}

// writeByLibrary sends one websocket message, compressed. Kinds of messages are opcodes.
func (c *Conn) writeByLibrary(kind int, parts [][]byte) error {
	w, err := c.ws.NextWriter(kind)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return w.Close()
}
