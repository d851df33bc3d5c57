//go:build e2e

package main_test

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

// faultProxy is the network between clients and a gateway: it copies bytes, and breaks as networks do. Its methods may
// be called from any goroutine. It is closed at the end of the test.
type faultProxy struct {
	to  string // address of the gateway
	l   net.Listener
	ctx context.Context // ends with the proxy
	wg  sync.WaitGroup  // accept and all links

	mu        sync.Mutex
	links     map[*link]struct{} // those that have not ended, faulty ones included
	hole      bool               // new connections are accepted and never answered
	swallowed int                // connections that were
}

// fault is what a link does instead of copying.
type fault int

const (
	whole fault = iota
	// Nothing is forwarded in either direction, the end of the stream included; both sockets stay open. This is what a
	// laptop's sleep or a lost Wi-Fi looks like.
	halfOpen
	// What the client sends is not forwarded: it still receives, but its answers to pings are lost.
	deaf
	// What the gateway sends is not forwarded: what the client sends arrives, and nobody tells it.
	mute
	// One byte a second in each direction.
	crawling
)

// link is one connection through the proxy.
type link struct {
	p              *faultProxy
	client, server *net.TCPConn
	over           context.Context
	end            context.CancelFunc

	mu      sync.Mutex
	fault   fault
	changed chan struct{} // closed when fault changes
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
		_ = l.Close() // accept returns
		p.wg.Wait()
	})
	return p
}

// through is the gateway as clients behind the proxy see it.
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

// carry serves one connection until it has ended on both sides.
func (p *faultProxy) carry(client *net.TCPConn) {
	p.mu.Lock()
	hole := p.hole
	if hole {
		p.swallowed++
	}
	p.mu.Unlock()
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
	p.links[k] = struct{}{}
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { k.copy(k.server, k.client, true) })
	both.Go(func() { k.copy(k.client, k.server, false) })
	stop := context.AfterFunc(over, func() { reset(k.client); reset(k.server) })
	both.Wait()
	end()
	stop()
	reset(k.client) // after an orderly end on both sides there is nothing left to lose
	reset(k.server)
	p.mu.Lock()
	delete(p.links, k)
	p.mu.Unlock()
}

// reset closes a connection at once, with RST, and drops what it holds. It may be closed already.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// copy forwards one direction until it ends, doing what the link's fault says.
func (k *link) copy(dst, src *net.TCPConn, fromClient bool) {
	buf := make([]byte, 32<<10)
	var pending []byte // read and not written yet
	var ended error    // of src
	for {
		now, changed := k.state()
		wait := make(<-chan time.Time) // never
		switch {
		case now == halfOpen, now == deaf && fromClient, now == mute && !fromClient:
		case now == crawling && len(pending) > 0:
			wait = time.After(time.Second)
		case len(pending) > 0:
			wait = nil
		case ended != nil:
			if !errors.Is(ended, io.EOF) || dst.CloseWrite() != nil {
				k.end() // a reset goes on as a reset
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
				size = 1
			case <-changed:
				continue
			case <-k.over.Done():
				return
			}
		}
		n, err := dst.Write(pending[:size])
		pending = pending[n:]
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // only set makes that one
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

// set makes the link faulty. When it has returned, nothing is forwarded any more that the fault holds back.
func (k *link) set(f fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = f
	close(k.changed)
	k.changed = make(chan struct{})
	// A write in progress ends too. Setting a deadline fails on a link that has ended.
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

// some returns a live link, or all of them if all is set; none if there is none.
func (p *faultProxy) some(all bool, random *rand.Rand) []*link {
	found := p.live()
	if all || len(found) == 0 {
		return found
	}
	i := random.IntN(len(found))
	return found[i : i+1]
}

// swallow makes every link half open and answers no new connection, until restore.
func (p *faultProxy) swallow() {
	p.mu.Lock()
	p.hole = true
	p.mu.Unlock()
	for _, k := range p.live() {
		k.set(halfOpen)
	}
}

// restore ends what swallow began, for new connections.
func (p *faultProxy) restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = false
}

// swallowedSoFar counts the connections that were accepted and not answered.
func (p *faultProxy) swallowedSoFar() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallowed
}
