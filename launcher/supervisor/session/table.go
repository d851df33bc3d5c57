package session

import (
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// Life is how long a session is kept after the end of its last connection.
const Life = 24 * time.Hour

// Bounds of what clients may make a supervisor remember. They hold for sessions, and again for websockets. The owner's
// places are the owner's alone.
const (
	ofOwner  = 64  // of the kernel's owner
	ofUser   = 16  // of each other user
	ofOthers = 128 // of all other users together
)

// ErrTooMany is returned if a user has as many sessions or connections of a kernel as the user can have.
var ErrTooMany = errors.New("too many sessions or connections on this kernel")

// Table holds a kernel's sessions. NewTable makes one.
type Table struct {
	sessions map[string]*Session // by key
	removed  func(*Session)
	number   uint64 // of the newest connection or restored session
	active   int    // connections whose clients use them
	counted  int    // connections that count; see Counted
}

// NewTable returns a table without sessions. It calls removed for each session that it removes.
func NewTable(removed func(*Session)) Table {
	return Table{sessions: map[string]*Session{}, removed: removed}
}

// Len returns the number of sessions.
func (t *Table) Len() int { return len(t.sessions) }

// All returns the sessions in no order.
func (t *Table) All() iter.Seq[*Session] { return maps.Values(t.sessions) }

// Find returns the session with a key, or nil.
func (t *Table) Find(key string) *Session { return t.sessions[key] }

// Newest returns the number of the newest connection or restored session.
func (t *Table) Newest() uint64 { return t.number }

// AllRead reports whether every client has everything up to p. A client that has never used its connections, also with
// an earlier supervisor, does not count.
func (t *Table) AllRead(p messagelog.Position) bool {
	for _, s := range t.sessions {
		if (s.used || s.restored) && s.resume.Seq < p.Seq {
			return false
		}
	}
	return true
}

// Active returns the number of connections whose clients use them.
func (t *Table) Active() int { return t.active }

// Counted returns the number of connections that models show. A connection counts until it has left two pings
// unanswered. After that it counts only if it is active.
func (t *Table) Counted() int { return t.counted }

// Options describe a connection that is attached.
type Options struct {
	Key      string              // of its session; "": a session of its own, which ends with the connection
	User     string              // whose client it is
	Owner    bool                // the user owns the kernel
	ReadOnly bool                // the client may not read what was logged before its session
	Tail     messagelog.Position // the log's present end, where a new session begins
	Floor    messagelog.Position // where the kernel's present life begins
}

// Attach attaches a connection to its session. It creates the session if there is none, and evicts an old one for it if
// it has to. See makeRoom. The error is ErrTooMany.
func (t *Table) Attach(o Options, now time.Time) (*Attachment, error) {
	t.Expire(now)
	if !t.hasRoom(o, func(s *Session) int { return s.connections }) {
		return nil, ErrTooMany
	}
	s := t.sessions[o.Key]
	created := o.Key == "" || s == nil
	if created && !t.makeRoom(o) {
		return nil, ErrTooMany
	}
	t.number++
	if created {
		s = &Session{Number: t.number, Key: o.Key, User: o.User, Owner: o.Owner, ReadOnly: o.ReadOnly, Lasting: o.Key != "",
			resume: o.Tail, floor: o.Floor}
		if o.ReadOnly {
			s.floor = s.resume // a cursor may be any position, and a reader may not see the log
		}
		if !s.Lasting {
			s.Key = "connection " + jupyter.NewID()
		}
		t.sessions[s.Key] = s
	}
	s.connections++
	a := &Attachment{Number: t.number, Session: s, Cursor: s.resume, acked: s.resume}
	t.count(a, true)
	return a, nil
}

// Activate notes that a client uses the connection.
func (t *Table) Activate(a *Attachment) {
	if a.active {
		return
	}
	a.active, a.Session.used = true, true
	t.active++
	t.count(a, true)
	a.Session.active = append(a.Session.active, a)
	a.Session.settle()
}

// Unanswered notes that a connection has left two pings unanswered.
func (t *Table) Unanswered(a *Attachment) { t.count(a, a.active) }

func (t *Table) count(a *Attachment, counts bool) {
	switch {
	case counts && !a.counts:
		t.counted++
	case !counts && a.counts:
		t.counted--
	}
	a.counts = counts
}

// Detach removes a connection that has ended from its session. It reports whether this was the last active connection
// of the kernel.
func (t *Table) Detach(a *Attachment, end End, now time.Time) (lastActive bool) {
	a.noteEnd(end)
	t.count(a, false)
	s := a.Session
	s.closed = end.Closed
	if a.active {
		t.active--
		lastActive = t.active == 0
		s.active = slices.DeleteFunc(s.active, func(o *Attachment) bool { return o == a })
		s.settle() // an older connection goes on with its own position
	}
	if s.connections--; s.connections > 0 {
		return lastActive
	}
	s.left = now
	if !s.Lasting {
		t.remove(s)
	}
	return lastActive
}

// Restore returns the session with a key. If there is none, it creates the session as one whose client is away. It
// evicts no other session: without room it returns nil.
func (t *Table) Restore(o Options, now time.Time) *Session {
	if s := t.sessions[o.Key]; s != nil {
		return s
	}
	if !t.hasRoom(o, one) {
		return nil
	}
	t.number++
	s := &Session{Number: t.number, Key: o.Key, User: o.User, Owner: o.Owner, ReadOnly: o.ReadOnly, Lasting: true,
		left: now, restored: true}
	t.sessions[o.Key] = s
	return s
}

func one(*Session) int { return 1 }

// hasRoom reports whether the user may have one more of what count counts in each session.
func (t *Table) hasRoom(o Options, count func(*Session) int) bool {
	owners, users, others := 0, 0, 0
	for _, s := range t.sessions {
		switch n := count(s); {
		case s.Owner:
			owners += n
		case s.User == o.User:
			users += n
			fallthrough
		default:
			others += n
		}
	}
	if o.Owner {
		return owners < ofOwner
	}
	return users < ofUser && others < ofOthers
}

// makeRoom evicts a session that a new one has no room beside, and reports whether there is room. The user's own
// session goes first. If that is not enough, it is a session of the user who has most, and more than this one. The
// owner's sessions make room only for the owner's.
func (t *Table) makeRoom(o Options) bool {
	for !t.hasRoom(o, one) {
		own := func(s *Session) bool { return s.Owner == o.Owner && (o.Owner || s.User == o.User) }
		if t.evict(own) {
			continue
		}
		if o.Owner {
			return false
		}
		count := map[string]int{}
		for _, s := range t.sessions {
			if !s.Owner {
				count[s.User]++
			}
		}
		most := 0
		for _, s := range t.sessions {
			if !s.Owner && !s.Connected() {
				most = max(most, count[s.User])
			}
		}
		if most <= count[o.User] ||
			!t.evict(func(s *Session) bool { return !s.Owner && count[s.User] == most }) {
			return false
		}
	}
	return true
}

// Expire removes the sessions whose clients have been away for longer than Life.
func (t *Table) Expire(now time.Time) {
	for _, s := range t.sessions {
		if !s.Connected() && now.Sub(s.left) > Life {
			t.remove(s)
		}
	}
}

// evict removes the session that left first among those that may go. It reports false if each of them has a connection.
func (t *Table) evict(mayGo func(*Session) bool) bool {
	var oldest *Session
	for _, s := range t.sessions {
		if !s.Connected() && mayGo(s) && (oldest == nil || s.left.Before(oldest.left)) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	t.remove(oldest)
	return true
}

func (t *Table) remove(s *Session) {
	delete(t.sessions, s.Key)
	t.removed(s)
}
