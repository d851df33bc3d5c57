package zmtp

import (
	"bufio"
	"cmp"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// Options says what a Socket does with what peers send.
type Options struct {
	Type Type
	// Receive gets the messages of a ROUTER. Those of one peer come in order; those of several come at once. While it
	// runs, nothing more is read from that peer. It may keep the frames.
	Receive func(p *Peer, frames [][]byte)
	// Subscribed is called when a peer of an XPUB has a new subscription, with its prefix. It may be nil.
	Subscribed func(p *Peer, prefix []byte)

	handshake time.Duration // of a peer; 0: handshakeTime
}

// Socket is a bound socket. All methods may be called concurrently.
type Socket struct {
	o        Options
	listener net.Listener
	done     chan struct{} // closed by the first Close
	arriving atomic.Int64  // bytes; see reader
	running  sync.WaitGroup

	mu     sync.Mutex
	peers  map[*Peer]bool
	newest map[string]*Peer // by identity, of peers that have shaken hands
}

// Listen binds a socket to an address of the network "tcp" or "unix", and begins to accept peers. A unix socket that
// another process has left behind is replaced. The caller calls Close.
func Listen(network, address string, o Options) (*Socket, error) {
	if network == "unix" {
		if info, err := os.Lstat(address); err == nil && info.Mode().Type() == os.ModeSocket {
			if c, err := net.Dial(network, address); err == nil {
				_ = c.Close()
				return nil, errors.New(address + " is in use")
			}
			if err := os.Remove(address); err != nil {
				return nil, err
			}
		}
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	s := &Socket{o: o, listener: l, done: make(chan struct{}), peers: map[*Peer]bool{}, newest: map[string]*Peer{}}
	s.running.Go(s.accept)
	return s, nil
}

// Addr returns the address on which the socket listens.
func (s *Socket) Addr() net.Addr { return s.listener.Addr() }

// Close ends the socket. What waits for a peer is sent first, for at most the time given. It waits for all goroutines.
func (s *Socket) Close(linger time.Duration) {
	s.mu.Lock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
	_ = s.listener.Close() // it may be closed already
	for p := range s.peers {
		p.drain()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	if !goroutines.Within(done, linger) {
		s.mu.Lock()
		for p := range s.peers {
			p.Close()
		}
		s.mu.Unlock()
	}
	<-done
}

func (s *Socket) closed() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// acceptPause is the time until the next try if the system can open no connection.
const acceptPause = 100 * time.Millisecond

func (s *Socket) accept() {
	for {
		conn, err := s.listener.Accept()
		switch {
		case err == nil:
			s.add(conn)
		case s.closed():
			return
		default: // no more files, for example
			select {
			case <-time.After(acceptPause):
			case <-s.done:
			}
		}
	}
}

// add begins to serve a connection. One too many is closed.
func (s *Socket) add(conn net.Conn) {
	p := &Peer{s: s, conn: conn, topics: map[string]int{}}
	p.changed = sync.NewCond(&p.mu)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed() || len(s.peers) == maxPeers {
		_ = conn.Close()
		return
	}
	s.peers[p] = true
	s.running.Go(func() {
		p.serve()
		p.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.peers, p)
		if s.newest[p.identity] == p {
			delete(s.newest, p.identity)
		}
	})
}

// Send queues a message of a ROUTER for the peer with an identity. Of several it is the one that came last. It reports
// false if there is none.
func (s *Socket) Send(identity string, frames [][]byte) bool {
	s.mu.Lock()
	p := s.newest[identity]
	s.mu.Unlock()
	return p != nil && p.Send(frames)
}

// Publish queues a message of an XPUB for each peer with a subscription to its first frame. If left is not nil, the
// message may be left out: a peer that is Behind gets what left returns in its place, and nothing more that may be left
// out until it has read half of that.
func (s *Socket) Publish(frames [][]byte, left func() [][]byte) {
	s.mu.Lock()
	peers := make([]*Peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.publish(frames, left)
	}
}

// shaken notes a peer that has shaken hands.
func (s *Socket) shaken(p *Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest[p.identity] = p
}

// handshake is the part of serve before messages.
func (p *Peer) handshake(r *reader) error {
	_ = p.conn.SetDeadline(time.Now().Add(cmp.Or(p.s.o.handshake, handshakeTime)))
	if _, err := p.conn.Write(hello(p.s.o.Type)); err != nil {
		return err
	}
	if err := r.greeting(); err != nil {
		return err
	}
	identity, err := r.ready(p.s.o.Type)
	if err != nil {
		return err
	}
	if p.identity = identity; identity == "" {
		p.identity = newIdentity()
	}
	return p.conn.SetDeadline(time.Time{})
}

// serve handles what the peer sends, until it ends or violates the protocol.
func (p *Peer) serve() {
	most := int64(maxSmall)
	if p.s.o.Type == Router {
		most = maxMessage
	}
	r := &reader{r: bufio.NewReaderSize(p.conn, 16<<10), most: most, arriving: &p.s.arriving}
	defer r.handled()
	if p.handshake(r) != nil {
		return
	}
	p.s.shaken(p)
	var writer sync.WaitGroup
	writer.Go(p.write)
	defer writer.Wait()
	defer p.Close()
	for {
		frames, command, err := r.next()
		if err != nil || !p.handle(frames, command) {
			return
		}
		r.handled()
	}
}

// handle handles a message or a command. It reports false if the peer is to be closed.
func (p *Peer) handle(frames [][]byte, command []byte) bool {
	switch {
	case p.s.closed():
		return true // what it asks is not answered any more
	case command != nil:
		return p.command(command)
	case p.s.o.Type == XPub:
		return p.subscribe(frames)
	}
	if !p.room() { // a peer that does not read its answers gets no more
		return false
	}
	if p.s.o.Type == Rep {
		return p.Send(frames)
	}
	p.s.o.Receive(p, frames)
	return true
}

// command answers PING. All other commands are ignored.
func (p *Peer) command(body []byte) bool {
	const name, ttl, context = "\x04PING", 2, 16
	if len(body) < len(name)+ttl || string(body[:len(name)]) != name {
		return true
	}
	echo := body[len(name)+ttl:]
	if len(echo) > context {
		return false
	}
	return p.room() && p.push(item{[][]byte{append([]byte("\x04PONG"), echo...)}, flagCommand})
}
