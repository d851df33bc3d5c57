package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Times of Watch. A revoked connection ends within watchEvery, the time of listing kernels, and channels.FlushTime.
const (
	watchEvery    = 2 * time.Second
	watchRetry    = 30 * time.Second // until a token is verified again whose source was unavailable
	watchParallel = 32               // tokens that are verified again at one time
)

// errRevoked is the cause of a connection that its user may no longer have.
var errRevoked = errors.New("its user lost the right to it")

// Watch ends the websockets, logs and streams of events of users whose token is no longer valid. It also ends those of
// users whose right to the kernel has changed: a supervisor reads the right when a connection begins, and clients
// reconnect. While the source of a token is unavailable, its connections stay. Watch returns after ctx has ended and
// its goroutines have, too.
func (g *Gateway) Watch(ctx context.Context) {
	if g.opts.Users == nil {
		return
	}
	w := &watcher{g: g, verifying: map[string]bool{}, notBefore: map[string]time.Time{}}
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

// watcher is the state of Watch.
type watcher struct {
	g       *Gateway
	running sync.WaitGroup // one for each token in asking

	mu        sync.Mutex
	verifying map[string]bool      // guarded by mu; tokens that are being verified
	notBefore map[string]time.Time // guarded by mu; when a token may be verified again
}

// look checks all open connections.
func (w *watcher) look(ctx context.Context) {
	open := w.open()
	w.forget(open)
	if len(open) == 0 {
		return
	}
	// Most tokens can be checked without asking their source.
	users := map[string]identity.User{}
	for _, c := range open {
		if _, seen := users[c.Opener.Token]; seen {
			continue
		}
		user, known, err := w.g.opts.Users.Recall(c.Opener.Token, c.Opener.User)
		switch {
		case !known:
			user = c.Opener.User // until its source says otherwise
			w.verify(ctx, c.Opener.Token)
		case err != nil:
			user = identity.User{} // no user has this token
		}
		users[c.Opener.Token] = user
	}
	byID, err := w.kernels(ctx)
	for _, c := range open {
		user := users[c.Opener.Token]
		k, there := byID[c.Kernel]
		switch now := (kernels.Caller{User: user}); {
		case user.Name != c.Opener.Name:
			c.Close(errRevoked)
		case c.Kernel == "": // a stream of events, which filters by the rights that its user had
			if user.Admin != c.Opener.Admin || !slices.Equal(user.Groups, c.Opener.Groups) {
				c.Close(errRevoked)
			}
		case err != nil, !there: // kernels cannot be listed, or the kernel's end will end the connection
		case now.AccessTo(k) != c.Opener.Has:
			c.Close(errRevoked)
		}
	}
}

// open returns all open websockets, logs and streams of events.
func (w *watcher) open() []*connection {
	return slices.Concat(w.g.websockets.All(), w.g.logReaders.All(), w.g.eventReaders.All())
}

// kernels returns all kernels by id.
func (w *watcher) kernels(ctx context.Context) (map[string]launcher.Kernel, error) {
	ctx, cancel := context.WithTimeout(ctx, kernels.ReadTime)
	defer cancel()
	list, err := w.g.opts.Launcher.Kernels(ctx)
	byID := make(map[string]launcher.Kernel, len(list))
	for _, k := range list {
		byID[k.ID] = k
	}
	return byID, err
}

// verify checks a token again in a goroutine, and closes the token's connections if no user has it any more.
func (w *watcher) verify(ctx context.Context, token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.verifying[token] || len(w.verifying) >= watchParallel || time.Now().Before(w.notBefore[token]) {
		return
	}
	w.verifying[token] = true
	w.running.Go(func() {
		err := goroutines.Contain(func() error {
			_, err := w.g.opts.Users.Identify(ctx, token)
			return err
		})
		var panicked *goroutines.PanicError
		if errors.As(err, &panicked) {
			w.g.log.Error("a token cannot be verified again", logkey.Err, err)
		}
		if errors.Is(err, identity.ErrUnknown) {
			for _, c := range w.open() {
				if c.Opener.Token == token {
					c.Close(errRevoked)
				}
			}
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.verifying, token)
		if err != nil {
			w.notBefore[token] = time.Now().Add(w.g.watchRetry)
		}
	})
}

// forget drops the state of tokens without an open connection.
func (w *watcher) forget(open []*connection) {
	tokens := map[string]bool{}
	for _, c := range open {
		tokens[c.Opener.Token] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for token := range w.notBefore {
		if !tokens[token] {
			delete(w.notBefore, token)
		}
	}
}
