package connection

import (
	"encoding/binary"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/flow"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

const (
	ackWindow = 4 << 20               // bytes that may be unacknowledged, or one message
	ackBytes  = 256 << 10             // bytes after which a numbered ping goes out
	ackDelay  = 50 * time.Millisecond // the least time between two numbered pings, unless ackBytes are sent
	ackLatest = time.Second           // the longest time between a message and the next ping
	pingIdle  = 15 * time.Second      // between pings when nothing is sent
	maxPings  = 1024                  // numbered pings without a pong that are remembered
)

// largeBytes is the size from which a message may break a connection. No known peer or proxy has a smaller limit.
const largeBytes = 128 << 10

// sentPing is a numbered ping and what its pong acknowledges.
type sentPing struct {
	number   uint64
	at       messagelog.Position
	sent     int64 // bytes
	messages int
}

// largeMessage is a message that may break the connection.
type largeMessage struct {
	seq  uint64 // 0: there is none
	size int64  // bytes as sent
}

// noteSent remembers the largest message that is sent, or begun, and not acknowledged. A smaller one behind it is found
// when it is the first on a later connection. Only the writer calls it.
func (c *Conn) noteSent(seq uint64, n int) {
	if n < largeBytes {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(n) > c.largest.size {
		c.largest = largeMessage{seq: seq, size: int64(n)}
	}
}

// pong handles a pong. Peers may answer only the newest of several pings, so numbers are cumulative.
func (c *Conn) pong(data string) {
	if len(data) != 8 {
		return
	}
	p, found := c.answered(binary.BigEndian.Uint64([]byte(data)))
	if !found {
		return
	}
	c.o.Handler.Acknowledge(p.at, p.messages)
	goroutines.Wake(c.acks)
}

// answered notes that the peer has received the ping of a number, and returns it.
func (c *Conn) answered(number uint64) (p sentPing, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range c.pings {
		if p.number != number {
			continue
		}
		c.ackedBytes, c.acksEver = p.sent, true
		c.signs++
		c.error.answered = c.error.answered || number >= c.error.number
		if c.largest.seq <= p.at.Seq {
			c.largest = largeMessage{}
		}
		c.pings = append(c.pings[:0], c.pings[i+1:]...)
		return p, true
	}
	return sentPing{}, false
}

func (c *Conn) windowFull() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.windowFullLocked()
}

func (c *Conn) windowFullLocked() bool { return c.acksEver && c.sent-c.ackedBytes >= ackWindow }

// signsNeeded are the pongs that show a client which uses the connection. One message shows it, too. JupyterLab
// abandons its first connection, which answers exactly one ping.
const signsNeeded = 2

// used reports whether the client has shown that it uses the connection, and has room for more. Then it may leave pings
// unanswered for as long as its host is alive.
func (c *Conn) used() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.signs >= signsNeeded && !c.windowFullLocked()
}

// nextDue returns when the writer has to act again: for the next ping, or because the peer is gone.
func (c *Conn) nextDue() time.Time {
	due := c.lastPing.Add(pingIdle)
	if c.sincePing > 0 {
		due = c.lastPing.Add(ackDelay)
		if c.pingOutstanding() {
			due = c.lastPing.Add(ackLatest)
		}
	}
	if end := c.flow.Deadline(); end.Before(due) {
		return end.Add(time.Millisecond)
	}
	return due
}

func (c *Conn) pingOutstanding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pings) > 0
}

// mark is a ping that was sent just before an entry.
type mark struct {
	seq      uint64 // of the entry; 0: none
	number   uint64 // of the ping
	answered bool
}

// PingBefore makes the writer send a ping just before an entry that is not in the log yet. Only the last call counts.
func (c *Conn) PingBefore(seq uint64) { c.before.Store(seq) }

// Received reports whether the client has answered the ping before an entry. The entry came with the ping, so the
// client's messages from now on were sent when the client had both.
func (c *Conn) Received(seq uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.error.seq >= seq && c.error.answered
}

// markEntry sends the ping that PingBefore has asked for, if the entry with seq comes next.
func (c *Conn) markEntry(seq uint64) error {
	at := c.before.Load()
	if at == 0 || seq < at || !c.before.CompareAndSwap(at, 0) {
		return nil
	}
	n := c.numberPing()
	c.mu.Lock()
	c.error = mark{seq: at, number: n}
	c.mu.Unlock()
	return c.writePing(n)
}

// writePings sends a numbered ping if one is due.
func (c *Conn) writePings() error {
	now := time.Now()
	since := now.Sub(c.lastPing)
	switch {
	case c.sincePing >= ackBytes:
	case c.pingNow:
		// JupyterLab reconnects as soon as it reads that the kernel restarts. If that message were not acknowledged by then,
		// JupyterLab would read it again, as another restart.
	case c.sincePing > 0 && since >= ackDelay && !c.pingOutstanding():
	case c.sincePing > 0 && since >= ackLatest:
	case since >= pingIdle:
	default:
		return nil
	}
	if c.pingOutstanding() && since >= ackLatest { // pings behind much output follow each other at once
		c.o.Handler.Unanswered()
	}
	c.flow.Look() // before the ping is in the queue
	c.lastPing, c.sincePing, c.pingNow = now, 0, false
	return c.writePing(c.numberPing())
}

// numberPing remembers one more ping, and returns its number.
func (c *Conn) numberPing() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pingNumber++
	if len(c.pings) >= maxPings { // the peer does not answer; its next pong proves the rest
		c.pings = append(c.pings[:0], c.pings[maxPings/2:]...)
	}
	c.pings = append(c.pings, sentPing{number: c.pingNumber, at: c.cursor, sent: c.sent, messages: c.messages})
	return c.pingNumber
}

func (c *Conn) writePing(number uint64) error {
	return c.flow.WriteFrame(flow.Ping, binary.BigEndian.AppendUint64(nil, number))
}
