package launchertest

import (
	"crypto/rand"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// kernelSocket is one bound ZeroMQ socket of the kernel: a ROUTER (shell, control, stdin, heartbeat) or the XPUB
// (iopub).
type kernelSocket struct {
	// Fixed.
	typ       string // "ROUTER" or "XPUB"
	listener  net.Listener
	handover  bool // a second connection with an identity replaces the first, else it is ignored
	mark      int  // high-water mark of the XPUB; 0: it waits and never drops
	silent    bool // accept connections and send nothing
	receive   func(identity string, frames [][]byte)
	subscribe func(p *zmtpPeer) // a connection has subscribed
	late      time.Duration     // before a subscription takes effect
	wg        sync.WaitGroup

	// Guarded by mu.
	mu     sync.Mutex
	closed bool
	raw    map[net.Conn]struct{}         // all connections
	peers  map[string]*zmtpPeer          // by identity; of a ROUTER
	topics map[*zmtpPeer]map[string]bool // of an XPUB
}

// listenZMTP binds a socket; serve makes it work.
func listenZMTP(typ, network, address string) (*kernelSocket, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return &kernelSocket{typ: typ, listener: l, raw: map[net.Conn]struct{}{}, peers: map[string]*zmtpPeer{},
		topics: map[*zmtpPeer]map[string]bool{}}, nil
}

// serve accepts until the socket is closed.
func (s *kernelSocket) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // the listener is closed; nothing else ends a test's kernel
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close() // nothing was sent on it
			return
		}
		s.raw[conn] = struct{}{}
		s.wg.Go(func() { s.attend(conn) })
		s.mu.Unlock()
	}
}

// attend serves one peer until either side closes the connection.
func (s *kernelSocket) attend(conn net.Conn) {
	defer func() {
		_ = conn.Close() // it may be closed already
		s.mu.Lock()
		delete(s.raw, conn)
		s.mu.Unlock()
	}()
	if s.silent {
		_, _ = io.Copy(io.Discard, conn) // until the peer closes the connection
		return
	}
	p, err := acceptZMTP(conn, s.typ)
	if err != nil {
		return // as in libzmq, a peer that does not speak ZMTP is dropped
	}
	if !s.enter(p) {
		_, _ = io.Copy(io.Discard, conn) // ignored until the peer closes it
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		p.out.run()
	}()
	for {
		frames, err := p.read()
		if err != nil {
			break
		}
		if s.typ == "XPUB" {
			s.topic(p, frames[0])
		} else {
			s.receive(p.identity, frames)
		}
	}
	s.mu.Lock()
	if s.peers[p.identity] == p {
		delete(s.peers, p.identity)
	}
	delete(s.topics, p)
	s.mu.Unlock()
	p.out.close()
	<-written
}

// enter registers a peer. It reports false if another peer keeps the identity.
func (s *kernelSocket) enter(p *zmtpPeer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.typ == "XPUB" {
		s.topics[p] = map[string]bool{}
		return true
	}
	if p.identity == "" {
		p.identity = "\x00" + rand.Text()
	}
	if old := s.peers[p.identity]; old != nil {
		if !s.handover {
			return false
		}
		_ = old.conn.Close() // its attend notices that
	}
	s.peers[p.identity] = p
	return true
}

func (s *kernelSocket) topic(p *zmtpPeer, message []byte) {
	if len(message) == 0 || message[0] > 1 {
		return
	}
	time.Sleep(s.late)
	s.mu.Lock()
	if message[0] == 1 {
		s.topics[p][string(message[1:])] = true
	} else {
		delete(s.topics[p], string(message[1:]))
	}
	s.mu.Unlock()
	if message[0] == 1 && s.subscribe != nil {
		s.subscribe(p)
	}
}

// sendTo sends a message to one peer of a ROUTER. As in ZeroMQ, a message for an unknown identity is dropped.
func (s *kernelSocket) sendTo(identity string, frames [][]byte) {
	s.mu.Lock()
	p := s.peers[identity]
	s.mu.Unlock()
	if p != nil {
		p.out.put(encodeMessage(nil, frames), 0)
	}
}

// publish sends bytes to every peer of the XPUB that has subscribed to the topic.
func (s *kernelSocket) publish(topic string, encoded []byte) { s.publishParts(topic, encoded, nil) }

// publishParts is publish for a message in two parts. The second is not copied, and must not be changed any more.
func (s *kernelSocket) publishParts(topic string, head, tail []byte) {
	var to [8]*zmtpPeer
	peers := to[:0]
	s.mu.Lock()
	for p, topics := range s.topics {
		for t := range topics {
			if strings.HasPrefix(topic, t) {
				peers = append(peers, p)
				break
			}
		}
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.out.putParts(head, tail, s.mark)
	}
}

// flush waits until all connections have written their messages.
func (s *kernelSocket) flush(limit time.Duration) {
	end := time.Now().Add(limit)
	s.mu.Lock()
	peers := make([]*zmtpPeer, 0, len(s.peers)+len(s.topics))
	for _, p := range s.peers {
		peers = append(peers, p)
	}
	for p := range s.topics {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.out.flush(time.Until(end))
	}
}

// shut closes the listener and all connections. It does not wait for them.
func (s *kernelSocket) shut() {
	_ = s.listener.Close() // it may be closed already
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.raw {
		_ = conn.Close()
	}
	for _, p := range s.peers {
		p.out.close()
	}
	for p := range s.topics {
		p.out.close()
	}
}
