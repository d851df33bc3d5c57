//go:build e2e

package e2e

import (
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// faultProxy is the network between clients and a gateway. It copies bytes, and fails in the ways in which networks
// fail. Any goroutine may call its methods. It closes at the end of the test.
type faultProxy struct {
	to  string // address of the gateway
	l   net.Listener
	ctx context.Context // ends with the proxy
	wg  sync.WaitGroup  // counts accept and all links

	mu        sync.Mutex
	links     map[*link]struct{} // those that have not ended, including faulty ones
	hole      bool               // the proxy accepts new connections and never answers them
	refusing  bool               // the proxy resets new connections
	weather   fault              // of new links
	swallowed int                // number of connections that were accepted and never answered
}

// fault is a failure of a link.
type fault int

const (
	whole fault = iota
	// Nothing is forwarded in either direction, not even the end of the stream. Both sockets stay open, as when a laptop
	// sleeps or loses its Wi-Fi.
	halfOpen
	// Data of the client is not forwarded. The client still receives data, but its answers to pings are lost.
	deaf
	// Data of the gateway is not forwarded. The client's data arrives, but the client gets no answer.
	mute
	// One byte a second is forwarded in each direction.
	crawling
	// Each piece of data is forwarded 0.3 s late.
	slow
)

// link is one connection through the proxy.
type link struct {
	p              *faultProxy
	client, server *net.TCPConn
	over           context.Context
	end            context.CancelFunc

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed at each change of fault
}

func newFaultProxy(t *testing.T, to string) *faultProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &faultProxy{to: to, l: l, ctx: ctx, links: map[*link]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		cancel()
		_ = l.Close() // this makes accept return
		p.wg.Wait()
	})
	return p
}

// through returns the gateway with the proxy's address.
func (p *faultProxy) through(g *gateway) *gateway {
	behind := *g
	behind.url = "http://" + p.l.Addr().String()
	return &behind
}

func (p *faultProxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.carry(c.(*net.TCPConn)) })
	}
}

// carry serves one connection until both sides have ended.
func (p *faultProxy) carry(client *net.TCPConn) {
	p.mu.Lock()
	hole, refusing := p.hole, p.refusing
	if hole {
		p.swallowed++
	}
	p.mu.Unlock()
	if refusing {
		reset(client)
		return
	}
	if hole {
		<-p.ctx.Done()
		reset(client)
		return
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	server, err := d.DialContext(p.ctx, "tcp", p.to)
	if err != nil {
		reset(client)
		return
	}
	over, end := context.WithCancel(p.ctx)
	k := &link{p: p, client: client, server: server.(*net.TCPConn), over: over, end: end, changed: make(chan struct{})}
	p.mu.Lock()
	k.fault = p.weather
	p.links[k] = struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { k.copy(k.server, k.client, true) })
	both.Go(func() { k.copy(k.client, k.server, false) })
	stop := context.AfterFunc(over, func() { reset(k.client); reset(k.server) })
	both.Wait()
	end()
	stop()
	reset(k.client) // after an orderly end on both sides no data can be lost
	reset(k.server)
	p.mu.Lock()
	delete(p.links, k)
	p.mu.Unlock()
}

// reset closes a connection at once with RST and drops its buffered data. The connection may already be closed.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// copy forwards one direction until it ends, with the link's fault.
func (k *link) copy(dst, src *net.TCPConn, fromClient bool) {
	buf := make([]byte, 32<<10)
	var pending []byte // read and not yet written
	var ended error    // of src
	for {
		now, changed := k.state()
		wait := make(<-chan time.Time) // never
		switch {
		case now == halfOpen, now == deaf && fromClient, now == mute && !fromClient:
		case now == crawling && len(pending) > 0:
			wait = time.After(time.Second)
		case now == slow && len(pending) > 0:
			wait = time.After(300 * time.Millisecond)
		case len(pending) > 0:
			wait = nil
		case ended != nil:
			if !errors.Is(ended, io.EOF) || dst.CloseWrite() != nil {
				k.end() // forwards a reset as a reset
			}
			return
		default:
			n, err := src.Read(buf)
			pending, ended = buf[:n], err
			continue
		}
		size := len(pending)
		if wait != nil {
			select {
			case <-wait:
				if now == crawling {
					size = 1
				}
			case <-changed:
				continue
			case <-k.over.Done():
				return
			}
		}
		n, err := dst.Write(pending[:size])
		pending = pending[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // only set causes that error
			k.end()
			return
		}
	}
}

func (k *link) state() (fault, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fault, k.changed
}

// set gives the link a fault. After set returns, the link forwards nothing more that the fault holds back.
func (k *link) set(f fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = f
	close(k.changed)
	k.changed = make(chan struct{})
	// A deadline also ends a write in progress. Setting one fails on a link that has ended.
	if f == halfOpen || f == deaf {
		_ = k.server.SetWriteDeadline(time.Unix(1, 0))
	}
	if f == halfOpen || f == mute {
		_ = k.client.SetWriteDeadline(time.Unix(1, 0))
	}
}

// live returns the links without a fault.
func (p *faultProxy) live() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*link
	for k := range p.links {
		if f, _ := k.state(); f == whole {
			found = append(found, k)
		}
	}
	return found
}

// all returns every link that has not ended.
func (p *faultProxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// some returns a random live link, or all live links if all is set. It returns an empty slice if no link is live.
func (p *faultProxy) some(all bool, random *rand.Rand) []*link {
	found := p.live()
	if all || len(found) == 0 {
		return found
	}
	i := random.IntN(len(found))
	return found[i : i+1]
}

// swallow makes every link half open and leaves new connections without an answer, until restore.
func (p *faultProxy) swallow() {
	p.mu.Lock()
	p.hole = true
	p.mu.Unlock()
	for _, k := range p.live() {
		k.set(halfOpen)
	}
}

// refuse resets every link and each new connection, until restore.
func (p *faultProxy) refuse() {
	p.mu.Lock()
	p.refusing = true
	p.mu.Unlock()
	for _, k := range p.all() {
		k.end()
	}
}

// slowDown makes every link slow, and each new one until restore.
func (p *faultProxy) slowDown() {
	p.mu.Lock()
	p.weather = slow
	p.mu.Unlock()
	for _, k := range p.live() {
		k.set(slow)
	}
}

// restore undoes swallow, refuse and slowDown for new connections, and slowDown for all.
func (p *faultProxy) restore() {
	p.mu.Lock()
	p.hole, p.refusing, p.weather = false, false, whole
	p.mu.Unlock()
	for _, k := range p.all() {
		if f, _ := k.state(); f == slow {
			k.set(whole)
		}
	}
}

// swallowedSoFar returns the number of connections that were accepted and not answered.
func (p *faultProxy) swallowedSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed
}
