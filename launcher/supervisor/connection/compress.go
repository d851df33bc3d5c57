package connection

import (
	"net/http"
	"runtime"
	"slices"
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
	offers := strings.Split(strings.Join(r.Header["Sec-Websocket-Extensions"], ","), ",")
	if !c.o.Compress || c.o.Relay || !slices.ContainsFunc(offers, acceptable) {
		return &upgrader, false
	}
	return &compressingUpgrader, true
}

// acceptable reports whether the library's answer accepts an offer of permessage-deflate as RFC 7692, section 7.1,
// defines it. The library neither honours nor confirms server_max_window_bits. A client with a smaller window could not
// read what it compresses. So that parameter declines the offer, as unknown and invalid ones do.
func acceptable(offer string) bool {
	name, rest, more := strings.Cut(offer, ";")
	if strings.TrimSpace(name) != "permessage-deflate" {
		return false
	}
	seen := map[string]bool{}
	for more {
		var parameter string
		parameter, rest, more = strings.Cut(rest, ";")
		key, value, valued := strings.Cut(parameter, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if seen[key] {
			return false
		}
		seen[key] = true
		switch key {
		case "server_no_context_takeover", "client_no_context_takeover":
			if valued {
				return false
			}
		case "client_max_window_bits":
			if quoted := len(value) > 2 && value[0] == '"' && value[len(value)-1] == '"'; quoted {
				value = value[1 : len(value)-1]
			}
			if valued && !slices.Contains(windowBits, value) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// windowBits are the values that a parameter for the size of a window may have.
var windowBits = []string{"8", "9", "10", "11", "12", "13", "14", "15"}

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
