package channels

import (
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/elastic-kernel-gateway/ekg/internal/sendqueue"
)

// Watches reports whether the connection of a request's client is watched: it ends once the client's host is gone.
// Splices and the lobby do that. After a hand-over, the supervisor does.
func Watches(r *http.Request) bool {
	_, tcp := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return tcp && sendqueue.Known
}

// errSilent ends the connection of a client whose host is gone, or that has not read for so long that all buffers are
// full.
var errSilent = errors.New("the client's machine takes nothing any more")

// watch knows since when bytes for a client go nowhere. It is not for concurrent use.
type watch struct {
	queue *sendqueue.Queue // nil: unknown
	alive time.Time        // when the client's host was last seen
}

func newWatch(client net.Conn) watch { return watch{queue: sendqueue.Of(client), alive: time.Now()} }

// gone looks at the client's socket, and reports whether the client counts as gone.
func (w *watch) gone(now time.Time) bool {
	if w.queue == nil {
		return false
	}
	queued, moved, err := w.queue.Look()
	switch {
	case err != nil: // the connection is closed
		return false
	case moved, queued == 0:
		w.alive = now
	}
	return now.Sub(w.alive) > sendqueue.Limit(queued)
}
