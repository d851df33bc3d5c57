package routes

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/logstream"
)

// Bounds of concurrent readers of the log. The owner's places are the owner's alone.
const (
	logReadersOfOwner  = 64
	logReadersOfUser   = 16 // of each other user
	logReadersOfOthers = 64 // of all other users together
)

// getLog answers with the log of all sessions as JSON lines. With follow, it goes on with new messages until the kernel
// has ended or the client has gone. A client with the right to read gets nothing, since it would see others' input and
// replies.
func (h *routes) getLog(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get(api.HeaderRight) == api.RightRead {
		return Error{http.StatusForbidden, "you may only look at this kernel; its log is its owner's"}
	}
	q, err := logstream.ParseQuery(r.URL.Query())
	if err != nil {
		return Error{http.StatusBadRequest, err.Error()}
	}
	name := h.Source.Log.Name()
	if q.Log != "" && q.Log != name {
		return Error{http.StatusConflict,
			"log: the kernel was started again by another supervisor and has a new log; read it from its beginning"}
	}
	if end := h.Source.Log.Tail().Seq; q.After > end {
		// A client that waits for these messages would not get them.
		return Error{http.StatusBadRequest,
			fmt.Sprintf("after: this log ends at number %d, so it cannot go on after %d; an earlier log was lost with its "+
				"supervisor", end, q.After)}
	}
	user := r.Header.Get(api.HeaderUser)
	if err := h.readers.admit(user, h.kernel.OwnedBy); err != nil {
		return err
	}
	defer h.readers.dismiss(user)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(api.HeaderLog, name)
	w.Header().Set("Connection", "close") // the last deadline would hold for the next request
	if r.Method == http.MethodHead {
		return nil
	}
	if err := h.Source.Stream(r.Context(), w, q); err != nil {
		h.Logger.Debug("a reader of the log has gone", logkey.Err, err)
		// Otherwise the response would end as if it were complete.
		panic(http.ErrAbortHandler)
	}
	return nil
}

// logReaders bounds the concurrent readers of the log. The zero value is ready. It may be used concurrently.
type logReaders struct {
	mu     sync.Mutex
	byUser map[string]int // guarded by mu
}

// admit admits a reader, or returns why there is no place. The caller calls dismiss at the end.
func (l *logReaders) admit(user string, owns func(user string) bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	owners, others := 0, 0
	for name, n := range l.byUser {
		if owns(name) {
			owners += n
		} else {
			others += n
		}
	}
	full := l.byUser[user] >= logReadersOfUser || others >= logReadersOfOthers
	if owns(user) {
		full = owners >= logReadersOfOwner
	}
	if full {
		return Error{http.StatusServiceUnavailable, "too many readers of this kernel's log"}
	}
	if l.byUser == nil {
		l.byUser = map[string]int{}
	}
	l.byUser[user]++
	return nil
}

func (l *logReaders) dismiss(user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser[user]--; l.byUser[user] == 0 {
		delete(l.byUser, user)
	}
}
