package gateway

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// drainSpread is the time over which Drain ends websockets, and drainStep the longest wait between two of them.
const (
	drainSpread = 10 * time.Second
	drainStep   = 20 * time.Millisecond
)

// Why the gateway itself ends a websocket or a log.
var (
	errKernelStopped = errors.New("its kernel was stopped")
	errDraining      = errors.New("the gateway stops")
)

// connections is every websocket the gateway carries, from before its handshake until both its ends are closed, or
// every log that it passes on.
type connections struct {
	wg sync.WaitGroup // one for each connection

	// Fixed before the first is added; 0 means that there is no limit.
	perKernel int
	perUser   int

	mu       sync.Mutex
	byKernel map[string]map[*connection]struct{} // guarded by mu
	byUser   map[string]int                      // guarded by mu; how many each has
	draining bool                                // guarded by mu; true for good: nothing is added any more
	in       int64                               // guarded by mu; bytes from clients of those that are gone
	out      int64                               // guarded by mu; and to them
}

// connection is one websocket in the list.
type connection struct {
	kernel string
	who    *caller                 // not changed any more
	ctx    context.Context         // ends with the connection; its cause says why
	cancel context.CancelCauseFunc // may be called at any time, by anyone
	splice atomic.Pointer[splice]  // nil before bytes are copied
	cause  error                   // why it ended; owned by its handler
}

func newConnections() *connections {
	return &connections{byKernel: map[string]map[*connection]struct{}{}, byUser: map[string]int{}}
}

// connectAgain is what clients that are over a limit are told of when to come back.
const connectAgain = 5 * time.Second

// add lists a connection of the request's user. From then on it can be ended by its context, which is derived from ctx.
func (cs *connections) add(ctx context.Context, kernel string) (*connection, error) {
	c := &connection{kernel: kernel, who: callerOf(ctx)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.draining {
		c.cancel(errDraining)
		return nil, refuse(http.StatusServiceUnavailable, "The gateway is stopping. Connect again.")
	}
	if err := cs.room(c); err != nil {
		c.cancel(nil)
		return nil, err
	}
	if cs.byKernel[kernel] == nil {
		cs.byKernel[kernel] = map[*connection]struct{}{}
	}
	cs.byKernel[kernel][c] = struct{}{}
	cs.byUser[c.who.Name]++
	cs.wg.Add(1)
	return c, nil
}

// room refuses a connection that is over a limit. mu is held.
func (cs *connections) room(c *connection) error {
	var p *problem
	switch {
	case cs.perKernel > 0 && len(cs.byKernel[c.kernel]) >= cs.perKernel:
		p = refuse(http.StatusTooManyRequests, "The kernel has %d connections, as many as are allowed here.", cs.perKernel)
	case cs.perUser > 0 && cs.byUser[c.who.Name] >= cs.perUser:
		p = refuse(http.StatusTooManyRequests, "You have %d connections, as many as are allowed here.", cs.perUser)
	default:
		return nil
	}
	p.retry = connectAgain
	return p.by(limitCheck)
}

// remove takes a connection off the list when everything it held is closed.
func (cs *connections) remove(c *connection) {
	c.cancel(nil)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	in, out := c.bytes()
	cs.in += in
	cs.out += out
	delete(cs.byKernel[c.kernel], c)
	if len(cs.byKernel[c.kernel]) == 0 {
		delete(cs.byKernel, c.kernel)
	}
	if cs.byUser[c.who.Name]--; cs.byUser[c.who.Name] == 0 {
		delete(cs.byUser, c.who.Name)
	}
	cs.wg.Done()
}

// bytes are those that were copied from the client and to it.
func (c *connection) bytes() (in, out int64) {
	if s := c.splice.Load(); s != nil {
		return s.in.Load(), s.out.Load()
	}
	return 0, 0
}

// traffic is how many connections there are, and the bytes of all that there ever were.
func (cs *connections) traffic() (n int, in, out int64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	in, out = cs.in, cs.out
	for _, set := range cs.byKernel {
		for c := range set {
			n++
			i, o := c.bytes()
			in += i
			out += o
		}
	}
	return n, in, out
}

// revoke ends all connections of one kernel. They are gone within flushTime.
func (cs *connections) revoke(kernel string, cause error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.byKernel[kernel] {
		c.cancel(cause)
	}
}

// all returns the connections there are.
func (cs *connections) all() []*connection {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var all []*connection
	for _, set := range cs.byKernel {
		all = slices.AppendSeq(all, maps.Keys(set))
	}
	return all
}

// revokeToken ends all connections that were made with a token.
func (cs *connections) revokeToken(token string) {
	for _, c := range cs.all() {
		if c.who.token == token {
			c.cancel(errRevoked)
		}
	}
}

// drain refuses new connections, ends all others one by one, faster once ctx has ended, and waits until they are gone.
func (cs *connections) drain(ctx context.Context) {
	cs.mu.Lock()
	cs.draining = true
	cs.mu.Unlock()
	all := cs.all()

	step := min(drainSpread/time.Duration(max(len(all), 1)), drainStep)
	tick := time.NewTicker(step)
	defer tick.Stop()
	for _, c := range all {
		c.cancel(errDraining)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	cs.wg.Wait()
}
