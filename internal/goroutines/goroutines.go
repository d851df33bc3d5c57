// Package goroutines has what goroutines of several packages do alike. Group is the goroutines of one owner, who waits
// for them when it closes. Contain turns a panic into an error. Sleep waits for a time, or for the end of a context.
// Wake wakes a goroutine that reads a channel. Only Group.Go starts a goroutine.
package goroutines

import "sync"

// Group is the goroutines of one owner. It may be used concurrently, also while locks of the owner are held: its own
// lock is held for no longer than a look. The zero Group is open and empty.
type Group struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // added to under mu, while closed is false
}

// Go runs f in a goroutine of the group. It reports false, without running f, if the group is closed.
func (g *Group) Go(f func()) bool {
	leave, ok := g.Join()
	if !ok {
		return false
	}
	go func() {
		defer leave()
		f()
	}()
	return true
}

// Join makes the caller's own goroutine one of the group until leave is called, once. It reports false, with a nil
// leave, if the group is closed.
func (g *Group) Join() (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, false
	}
	g.running.Add(1)
	return g.running.Done, true
}

// Closed reports whether the group takes no more goroutines.
func (g *Group) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Close makes the group take no more goroutines. It reports false if the group was closed before.
func (g *Group) Close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.closed
	g.closed = true
	return !was
}

// Wait returns when every goroutine has ended. The group must have been closed.
func (g *Group) Wait() { g.running.Wait() }
