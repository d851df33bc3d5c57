package gateway

import (
	"context"
	"sync"
)

// keyLocks makes requests for one key wait for each other. A key has an entry only while a request holds it. A request
// that holds a path may wait for a kernel, and never the other way round.
type keyLocks struct {
	mu    sync.Mutex
	byKey map[string]chan struct{} // guarded by mu; closed when the key is unlocked
}

// lock waits for the key and returns the function that unlocks it.
func (l *keyLocks) lock(ctx context.Context, key string) (func(), error) {
	for {
		l.mu.Lock()
		unlocked, held := l.byKey[key]
		if !held {
			unlocked = make(chan struct{})
			l.byKey[key] = unlocked
		}
		l.mu.Unlock()
		if !held {
			return func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				delete(l.byKey, key)
				close(unlocked)
			}, nil
		}
		select {
		case <-unlocked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
