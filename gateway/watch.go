package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Times of Watch. What is revoked ends within watchEvery, the time a list of kernels takes, and flushTime.
const (
	watchEvery = 2 * time.Second
	watchRetry = 30 * time.Second // until a token whose judge is away is looked at again
	watchAsks  = 32               // tokens that are being verified anew at one time
)

// errRevoked ends what its user may no longer have.
var errRevoked = errors.New("its user may no longer have it")

// Watch ends websockets and logs whose user's token counts no longer, or who may do less or more with the kernel than when
// they began: a supervisor is told the right once, and every client comes back. It returns when ctx ends and nothing that
// it has started is left. While a token's judge is away its connections go on.
func (g *Gateway) Watch(ctx context.Context) {
	if g.opts.Users == nil {
		return
	}
	w := &watcher{g: g, asking: map[string]bool{}, notBefore: map[string]time.Time{}}
	defer w.running.Wait()
	tick := time.NewTicker(g.watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		g.opts.Users.Refresh()
		w.look(ctx)
	}
}

// watcher is what Watch knows from one look to the next.
type watcher struct {
	g       *Gateway
	running sync.WaitGroup // one for each token in asking

	mu        sync.Mutex
	asking    map[string]bool      // guarded by mu; tokens that are being verified
	notBefore map[string]time.Time // guarded by mu; when a token may be verified again
}

// look goes through everything that is open.
func (w *watcher) look(ctx context.Context) {
	open := append(w.g.conns.all(), w.g.streams.all()...)
	w.forget(open)
	if len(open) == 0 {
		return
	}
	// First what needs no asking.
	users := map[string]identity.User{}
	for _, c := range open {
		if _, seen := users[c.who.token]; seen {
			continue
		}
		user, known, err := w.g.opts.Users.Recall(c.who.token, c.who.User)
		switch {
		case !known:
			user = c.who.User // until somebody says otherwise
			w.ask(ctx, c.who.token)
		case err != nil:
			user = identity.User{} // nobody
		}
		users[c.who.token] = user
	}
	kernels, err := w.kernels(ctx)
	for _, c := range open {
		user := users[c.who.token]
		k, there := kernels[c.kernel]
		switch now := (&caller{User: user}); {
		case user.Name != c.who.Name:
			c.cancel(errRevoked)
		case err != nil, !there: // it cannot be told, or the end of the kernel will end it
		case now.to(k) != c.who.has:
			c.cancel(errRevoked)
		}
	}
}

// kernels returns all kernels by id.
func (w *watcher) kernels(ctx context.Context) (map[string]launcher.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	list, err := w.g.opts.Launcher.Kernels(ctx)
	byID := make(map[string]launcher.Kernel, len(list))
	for _, k := range list {
		byID[k.ID] = k
	}
	return byID, err
}

// ask has a token verified anew and ends what is open with it if it is nobody's any more.
func (w *watcher) ask(ctx context.Context, token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asking[token] || len(w.asking) >= watchAsks || time.Now().Before(w.notBefore[token]) {
		return
	}
	w.asking[token] = true
	w.running.Go(func() {
		_, err := w.g.opts.Users.Identify(ctx, token)
		if errors.Is(err, identity.ErrUnknown) {
			w.g.conns.revokeToken(token)
			w.g.streams.revokeToken(token)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.asking, token)
		if err != nil {
			w.notBefore[token] = time.Now().Add(w.g.watchRetry)
		}
	})
}

// forget drops what is known of tokens with which nothing is open.
func (w *watcher) forget(open []*connection) {
	tokens := map[string]bool{}
	for _, c := range open {
		tokens[c.who.token] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for token := range w.notBefore {
		if !tokens[token] {
			delete(w.notBefore, token)
		}
	}
}
