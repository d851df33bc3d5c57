package zmtp

import (
	"bytes"
	"net"
	"strings"
	"sync"
)

// Peer is one connection to a Socket. All methods may be called concurrently.
type Peer struct {
	s        *Socket
	conn     net.Conn
	identity string // written before the peer is used

	mu      sync.Mutex
	changed *sync.Cond
	queue   []item
	bytes   int            // in queue, and of what is being written
	behind  bool           // what may be left out is left out
	topics  map[string]int // how often the peer has subscribed to each prefix
	drained bool           // the connection ends when the queue is empty
	ended   bool
}

// item is a message or a command that waits.
type item struct {
	frames [][]byte
	flags  byte
}

// itemCost is what an item takes besides its bytes, and each frame too.
const itemCost = 64

func (i item) size() int {
	n := itemCost * (1 + len(i.frames))
	for _, f := range i.frames {
		n += len(f)
	}
	return n
}

// Identity returns what the peer calls itself, or a unique text if it has no name. Several peers may have one identity.
func (p *Peer) Identity() string { return p.identity }

// Send queues a message for the peer. It reports false if the peer has ended. The caller must not change the frames.
func (p *Peer) Send(frames [][]byte) bool { return p.push(item{frames, 0}) }

// Close ends the connection. What waits is lost.
func (p *Peer) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked()
}

func (p *Peer) endLocked() {
	p.ended = true
	p.queue, p.bytes = nil, 0
	_ = p.conn.Close() // it may be closed already
	p.changed.Broadcast()
}

// drain lets the connection end when everything is sent.
func (p *Peer) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drained = true
	p.changed.Broadcast()
}

func (p *Peer) push(i item) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pushLocked(i)
}

func (p *Peer) pushLocked(i item) bool {
	if p.ended || p.drained {
		return false
	}
	p.queue = append(p.queue, i)
	if p.bytes += i.size(); p.bytes > lost {
		p.endLocked()
		return false
	}
	p.changed.Broadcast()
	return true
}

// room waits until the peer is not behind. It reports false if it has ended.
func (p *Peer) room() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.bytes > Behind && !p.ended {
		p.changed.Wait()
	}
	return !p.ended
}

// publish is Socket.Publish for one peer.
func (p *Peer) publish(frames [][]byte, left func() [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wantsLocked(frames[0]) {
		return
	}
	i := item{frames, 0}
	if left == nil {
		p.pushLocked(i)
		return
	}
	was := p.behind
	if p.behind = p.bytes > Behind/2 && (was || p.bytes+i.size() > Behind); !p.behind {
		p.pushLocked(i)
	} else if !was {
		p.pushLocked(item{left(), 0})
	}
}

func (p *Peer) wantsLocked(topic []byte) bool {
	if p.topics[""] > 0 {
		return true
	}
	for prefix := range p.topics {
		if strings.HasPrefix(string(topic), prefix) {
			return true
		}
	}
	return false
}

// subscribe handles a message to an XPUB. It reports false if the peer has too many subscriptions.
func (p *Peer) subscribe(frames [][]byte) bool {
	if len(frames[0]) == 0 || frames[0][0] > 1 {
		return true // not about subscriptions: XPUB drops it here
	}
	prefix := bytes.Clone(frames[0][1:])
	if frames[0][0] == 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.topics[string(prefix)]--; p.topics[string(prefix)] <= 0 {
			delete(p.topics, string(prefix))
		}
		return true
	}
	p.mu.Lock()
	p.topics[string(prefix)]++
	ok := len(p.topics) <= maxTopics
	p.mu.Unlock()
	if ok && p.s.o.Subscribed != nil {
		p.s.o.Subscribed(p, prefix)
	}
	return ok
}

// write sends what waits, until the connection ends or everything is sent after drain.
func (p *Peer) write() {
	var pieces net.Buffers
	for {
		items, size := p.take()
		if items == nil {
			break
		}
		pieces = pieces[:0]
		for _, i := range items {
			pieces = appendFrames(pieces, i.frames, i.flags)
		}
		rest := pieces // WriteTo consumes it
		_, err := rest.WriteTo(p.conn)
		clear(pieces)
		p.mu.Lock()
		if err != nil {
			p.endLocked()
		} else if !p.ended {
			p.bytes -= size
			p.changed.Broadcast()
		}
		p.mu.Unlock()
	}
	// The peer gets what was sent also if it has sent something that nobody has read: the connection is closed when the
	// peer closes it, or at the end of the time that Socket.Close has.
	if c, ok := p.conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // it may be closed already
	}
}

// take waits for what is to be written next, and returns it with its size. It returns nil at the end.
func (p *Peer) take() (items []item, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.ended && !p.drained {
		p.changed.Wait()
	}
	n := 0
	for n < len(p.queue) && (n == 0 || size < batch) {
		size += p.queue[n].size()
		n++
	}
	if n == 0 {
		return nil, 0
	}
	items, p.queue = p.queue[:n:n], p.queue[n:]
	return items, size
}
