package supervisor

import (
	"fmt"
	"net/http"

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
func (s *Supervisor) getLog(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get(api.HeaderRight) == api.RightRead {
		return httpError{http.StatusForbidden, "you may only look at this kernel; its log is its owner's"}
	}
	q, err := logstream.ParseQuery(r.URL.Query())
	if err != nil {
		return httpError{http.StatusBadRequest, err.Error()}
	}
	name := s.log.Name()
	if q.Log != "" && q.Log != name {
		return httpError{http.StatusConflict,
			"log: the kernel was started again by another supervisor and has a new log; read it from its beginning"}
	}
	if end := s.log.Tail().Seq; q.After > end {
		// A client that waits for these messages would not get them.
		return httpError{http.StatusBadRequest,
			fmt.Sprintf("after: this log ends at number %d, so it cannot go on after %d; an earlier log was lost with its "+
				"supervisor", end, q.After)}
	}
	user := r.Header.Get(api.HeaderUser)
	if err := s.admitLogReader(user); err != nil {
		return err
	}
	defer s.dismissLogReader(user)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(api.HeaderLog, name)
	w.Header().Set("Connection", "close") // the last deadline would hold for the next request
	if r.Method == http.MethodHead {
		return nil
	}
	source := logstream.Source{Log: s.log, Over: s.over, Ended: s.ended, Patience: s.logPatience}
	if err := source.Stream(r.Context(), w, q); err != nil {
		s.logger.Debug("a reader of the log has gone", logkey.Err, err)
		// Otherwise the response would end as if it were complete.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (s *Supervisor) admitLogReader(user string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners, others := 0, 0
	for name, n := range s.logReaders {
		if s.ownedBy(name) {
			owners += n
		} else {
			others += n
		}
	}
	full := s.logReaders[user] >= logReadersOfUser || others >= logReadersOfOthers
	if s.ownedBy(user) {
		full = owners >= logReadersOfOwner
	}
	if full {
		return httpError{http.StatusServiceUnavailable, "too many readers of this kernel's log"}
	}
	s.logReaders[user]++
	return nil
}

func (s *Supervisor) dismissLogReader(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logReaders[user]--; s.logReaders[user] == 0 {
		delete(s.logReaders, user)
	}
}

// ended reports whether the kernel is dead, though it may still be started again, or gone for good.
func (s *Supervisor) ended() bool {
	select {
	case <-s.over:
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use.State() == api.Dead
}
