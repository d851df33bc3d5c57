package channels

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// drainSpread is the time over which Drain ends connections, and drainStep the longest wait between two of them.
const (
	drainSpread = 10 * time.Second
	drainStep   = 20 * time.Millisecond
)

// Causes that end a connection.
var (
	ErrKernelStopped = errors.New("its kernel was stopped")
	ErrDraining      = errors.New("the gateway stops")
)

// Errors of Add, besides ErrDraining.
var (
	ErrKernelFull = errors.New("the kernel has the most connections that are allowed")
	ErrUserFull   = errors.New("the user has the most connections that are allowed")
)

// Registry lists every open connection, from before its handshake until both its ends are closed. O is the type of what
// its user stores about the opener of each connection. It may be used concurrently.
type Registry[O any] struct {
	wg sync.WaitGroup // counts connections

	// Fixed; 0 means no limit.
	perKernel int
	places    *Places

	mu       sync.Mutex
	byKernel map[string]map[*Conn[O]]struct{} // guarded by mu
	draining bool                             // guarded by mu; once true, no connection is added any more
	in       int64                            // guarded by mu; bytes from clients, of closed connections
	out      int64                            // guarded by mu; bytes to clients, of closed connections
}

// Conn is one connection in a Registry.
type Conn[O any] struct {
	Kernel string // id
	User   string // name, by which connections are counted
	Opener O

	ctx    context.Context         // ends with the connection; its cause says why
	cancel context.CancelCauseFunc // may be called at any time, by anyone

	mu      sync.Mutex
	carrier Carrier // guarded by mu; nil before the handshake is done
}

// Carrier carries a connection after its handshake; *Splice and *Waiting do.
type Carrier interface {
	// Run carries the connection until it ends or ctx ends, and returns why. Everything it needs is closed then.
	Run(ctx context.Context) error
	// Bytes returns how many bytes came from the client and went to it so far.
	Bytes() (in, out int64)
}

// NewRegistry makes a registry that limits the connections of one kernel, where 0 means no limit, and of one user.
// Registries with the same Places count a user's connections together.
func NewRegistry[O any](perKernel int, perUser *Places) *Registry[O] {
	return &Registry[O]{perKernel: perKernel, places: perUser, byKernel: map[string]map[*Conn[O]]struct{}{}}
}

// Places counts the connections of each user. It may be used concurrently, and locks nothing else while it is locked.
type Places struct {
	most int // of one user; 0: no limit

	mu     sync.Mutex
	byUser map[string]int // guarded by mu; number of connections
}

// NewPlaces makes a Places that allows each user so many connections; 0 means no limit.
func NewPlaces(most int) *Places { return &Places{most: most, byUser: map[string]int{}} }

// take counts one more connection of a user, unless the user has as many as are allowed.
func (p *Places) take(user string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most > 0 && p.byUser[user] >= p.most {
		return false
	}
	p.byUser[user]++
	return true
}

// leave counts one connection less.
func (p *Places) leave(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byUser[user]--; p.byUser[user] == 0 {
		delete(p.byUser, user)
	}
}

// Add lists a connection of a user, whose context is derived from ctx. The caller must call Remove. The error is
// ErrDraining, ErrKernelFull or ErrUserFull.
func (r *Registry[O]) Add(ctx context.Context, kernel, user string, opener O) (*Conn[O], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.draining:
		return nil, ErrDraining
	case r.perKernel > 0 && len(r.byKernel[kernel]) >= r.perKernel:
		return nil, ErrKernelFull
	case !r.places.take(user):
		return nil, ErrUserFull
	}
	c := &Conn[O]{Kernel: kernel, User: user, Opener: opener}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	if r.byKernel[kernel] == nil {
		r.byKernel[kernel] = map[*Conn[O]]struct{}{}
	}
	r.byKernel[kernel][c] = struct{}{}
	r.wg.Add(1)
	return c, nil
}

// Remove takes a connection off the list. Everything that the connection held must be closed.
func (r *Registry[O]) Remove(c *Conn[O]) {
	c.cancel(nil)
	in, out := c.Bytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.in += in
	r.out += out
	delete(r.byKernel[c.Kernel], c)
	if len(r.byKernel[c.Kernel]) == 0 {
		delete(r.byKernel, c.Kernel)
	}
	r.places.leave(c.User)
	r.wg.Done()
}

// Context ends with the connection; its cause says why.
func (c *Conn[O]) Context() context.Context { return c.ctx }

// Close ends the connection with a cause, at the latest FlushTime later. Only the first cause counts.
func (c *Conn[O]) Close(cause error) { c.cancel(cause) }

// Carry runs the carrier with the connection's context, and counts its bytes as the connection's.
func (c *Conn[O]) Carry(carrier Carrier) error {
	c.mu.Lock()
	c.carrier = carrier
	c.mu.Unlock()
	return carrier.Run(c.ctx)
}

// Bytes returns how many bytes came from the client and went to it so far.
func (c *Conn[O]) Bytes() (in, out int64) {
	c.mu.Lock()
	carrier := c.carrier
	c.mu.Unlock()
	if carrier == nil {
		return 0, 0
	}
	return carrier.Bytes()
}

// Traffic returns the number of open connections, and the bytes of all connections there ever were.
func (r *Registry[O]) Traffic() (open int, in, out int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, out = r.in, r.out
	for _, set := range r.byKernel {
		for c := range set {
			open++
			i, o := c.Bytes()
			in += i
			out += o
		}
	}
	return open, in, out
}

// Revoke ends all connections of one kernel. They are closed within FlushTime.
func (r *Registry[O]) Revoke(kernel string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.byKernel[kernel] {
		c.Close(cause)
	}
}

// All returns the open connections, in no order.
func (r *Registry[O]) All() []*Conn[O] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*Conn[O]
	for _, set := range r.byKernel {
		all = slices.AppendSeq(all, maps.Keys(set))
	}
	return all
}

// Drain rejects new connections, ends all others one by one, and waits until they are removed. Their clients then do
// not all reconnect at once. When ctx ends, Drain ends the rest at once.
func (r *Registry[O]) Drain(ctx context.Context) {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	all := r.All()

	step := min(drainSpread/time.Duration(max(len(all), 1)), drainStep)
	tick := time.NewTicker(step)
	defer tick.Stop()
	for _, c := range all {
		c.Close(ErrDraining)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	r.wg.Wait()
}
