package session_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

var now = time.Unix(1e9, 0)

func at(seq uint64) messagelog.Position { return messagelog.Position{Seq: seq} }

// attach attaches a connection to the session with a key.
func attach(t *testing.T, table *session.Table, o session.Options) *session.Attachment {
	t.Helper()
	a, err := table.Attach(o, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newTable() *session.Table {
	t := session.NewTable(func(*session.Session) {})
	return &t
}

// TestSession_Youngest: a connection that becomes active after a younger one does not move the session back.
func TestSession_Youngest(t *testing.T) {
	table := newTable()
	older := attach(t, table, session.Options{Key: "ann", Tail: at(1)})
	younger := attach(t, table, session.Options{Key: "ann", Tail: at(2)})
	ann := older.Session
	if younger.Session != ann || younger.Cursor != at(1) {
		t.Fatalf("the second connection reads from %d", younger.Cursor.Seq)
	}
	table.Activate(younger)
	younger.Acknowledge(at(5), 3)
	table.Activate(older)
	older.Acknowledge(at(3), 2)
	if got := ann.Resume(); got != at(5) {
		t.Errorf("the session resumes behind %d, want 5", got.Seq)
	}
	// The younger connection leaves, and the older goes on: what only the younger had is not lost to it.
	table.Detach(younger, session.End{}, now)
	if got := ann.Resume(); got != at(3) {
		t.Errorf("the session resumes behind %d, want 3", got.Seq)
	}
	older.Acknowledge(at(9), 8)
	table.Detach(older, session.End{}, now)
	if got := ann.Resume(); got != at(9) {
		t.Errorf("the session resumes behind %d, want 9", got.Seq)
	}
}

// TestSession_Abandoned: a connection that a jupyter server has abandoned answers pings behind one message. It never
// moves the session, although it is the youngest, or is left alone.
func TestSession_Abandoned(t *testing.T) {
	table := newTable()
	used := attach(t, table, session.Options{Key: "ann", Tail: at(1)})
	abandoned := attach(t, table, session.Options{Key: "ann"})
	table.Activate(used)
	used.NoteInput()
	used.NotePong()
	table.Activate(abandoned)
	abandoned.Acknowledge(at(2), 1)
	used.Acknowledge(at(7), 6)
	if got := used.Session.Resume(); got != at(7) {
		t.Errorf("beside an abandoned connection the session resumes behind %d, want 7", got.Seq)
	}
	table.Detach(used, session.End{}, now)
	if got := used.Session.Resume(); got != at(7) {
		t.Errorf("with an abandoned connection the session resumes behind %d, want 7", got.Seq)
	}
	next := attach(t, table, session.Options{Key: "ann"})
	if next.Cursor != at(7) {
		t.Errorf("the next connection reads from %d, want 7", next.Cursor.Seq)
	}
}

// TestAttachment_ResumeAt: a relay that resumes from an earlier position moves back what counts as acknowledged, since
// its browser may have less. It never resumes before the floor.
func TestAttachment_ResumeAt(t *testing.T) {
	table := newTable()
	first := attach(t, table, session.Options{Key: "ann", Tail: at(4), Floor: at(2)})
	table.Activate(first)
	first.Acknowledge(at(9), 5)
	relay := attach(t, table, session.Options{Key: "ann"})
	relay.ResumeAt(at(1))
	if relay.Cursor != at(9) {
		t.Errorf("it reads from %d, which is before the floor", relay.Cursor.Seq)
	}
	relay.ResumeAt(at(4))
	if relay.Cursor != at(4) || first.Session.Resume() != at(9) {
		t.Errorf("it reads from %d, and the session resumes behind %d", relay.Cursor.Seq, first.Session.Resume().Seq)
	}
	table.Activate(relay)
	relay.NoteInput()
	if got := first.Session.Resume(); got != at(4) {
		t.Errorf("the session of an active relay resumes behind %d, want 4", got.Seq)
	}
}

// TestTable_Attach: a full table evicts the session that left first, and never one with a connection.
func TestTable_Attach(t *testing.T) {
	const most = 64
	var removed []string
	table := session.NewTable(func(s *session.Session) { removed = append(removed, s.Key) })
	key := func(n int) string { return string(rune('A' + n)) }
	var all []*session.Attachment
	for n := range most {
		all = append(all, attach(t, &table, session.Options{Key: key(n), Owner: true}))
	}
	if _, err := table.Attach(session.Options{Key: "another", Owner: true}, now); !errors.Is(err, session.ErrTooMany) {
		t.Errorf("one more connection: got %v", err)
	}
	for n, a := range all[:2] {
		table.Detach(a, session.End{}, now.Add(time.Duration(n)*time.Second))
	}
	attach(t, &table, session.Options{Key: "another", Owner: true})
	if len(removed) != 1 || removed[0] != key(0) || table.Len() != most {
		t.Errorf("removed %q, and %d are left", removed, table.Len())
	}
	table.Expire(now.Add(session.Life + time.Minute))
	if len(removed) != 2 || removed[1] != key(1) || table.Len() != most-1 {
		t.Errorf("removed %q, and %d are left", removed, table.Len())
	}
	restore := func(key string) *session.Session {
		return table.Restore(session.Options{Key: key, Owner: true}, now)
	}
	if restore("B") == nil || restore("C") != all[2].Session {
		t.Error("restored sessions are not those of the table")
	}
	if restore("no room") != nil {
		t.Error("a session was restored into a full table")
	}
}

// TestTable_Users: no user's connections and sessions evict or exclude those of the owner, nor those of a user who has
// fewer.
func TestTable_Users(t *testing.T) {
	const ofUser, ofOthers, ofOwner = 16, 128, 64
	table := newTable()
	n := 0
	options := func(user string) session.Options {
		n++
		return session.Options{Key: fmt.Sprint(user, n), User: user, Owner: user == "ann"}
	}
	away := func(user string) string {
		n++ // a later time
		a := attach(t, table, options(user))
		table.Detach(a, session.End{}, now.Add(time.Duration(n)*time.Second))
		return a.Session.Key
	}
	has := func(user string) (n int) {
		for s := range table.All() {
			if s.User == user {
				n++
			}
		}
		return n
	}
	owners := away("ann")
	cat := away("cat")
	for range 2 * ofOthers {
		away("bob")
	}
	if has("bob") != ofUser {
		t.Errorf("bob has %d sessions, want %d", has("bob"), ofUser)
	}
	for user := range ofOthers / ofUser { // these fill all places
		for range ofUser {
			away(fmt.Sprint("user ", user))
		}
	}
	if table.Find(owners) == nil || table.Find(cat) == nil {
		t.Error("a session of the owner, or the only one of a user, was evicted")
	}
	if table.Len() != 1+ofOthers {
		t.Errorf("there are %d sessions, want %d", table.Len(), 1+ofOthers)
	}
	away("dan")
	if has("dan") != 1 || table.Len() != 1+ofOthers {
		t.Errorf("dan has %d of %d sessions", has("dan"), table.Len())
	}

	for range ofUser {
		attach(t, table, options("bob"))
	}
	if _, err := table.Attach(options("bob"), now); !errors.Is(err, session.ErrTooMany) {
		t.Errorf("bob's connection after %d: %v", ofUser, err)
	}
	attach(t, table, options("cat"))
	for range ofOwner {
		attach(t, table, options("ann"))
	}
	if _, err := table.Attach(options("ann"), now); !errors.Is(err, session.ErrTooMany) {
		t.Errorf("the owner's connection after %d: %v", ofOwner, err)
	}
}

// TestTable_Active: the table counts connections whose clients use them.
func TestTable_Active(t *testing.T) {
	table := newTable()
	a, b := attach(t, table, session.Options{}), attach(t, table, session.Options{})
	if a.Session == b.Session {
		t.Fatal("two connections without a session id share a session")
	}
	if a.NotePong() || !a.NotePong() {
		t.Error("the second pong, and not the first, shows a client")
	}
	table.Activate(a)
	table.Activate(a)
	if table.Active() != 1 {
		t.Errorf("%d are active, want 1", table.Active())
	}
	if table.Detach(b, session.End{}, now) || !table.Detach(a, session.End{}, now) || table.Active() != 0 {
		t.Errorf("%d are active, want 0", table.Active())
	}
	if table.Len() != 0 {
		t.Errorf("%d sessions outlive their connections", table.Len())
	}
}

// TestTable_Counted: a connection counts until it has left two pings unanswered, and again when its client uses it.
func TestTable_Counted(t *testing.T) {
	table := newTable()
	counted := func(what string, want int) {
		t.Helper()
		if got := table.Counted(); got != want {
			t.Errorf("%s: %d connections count, want %d", what, got, want)
		}
	}
	a, b := attach(t, table, session.Options{}), attach(t, table, session.Options{})
	counted("new", 2)
	table.Unanswered(a)
	table.Unanswered(a)
	counted("two pings are unanswered", 1)
	table.Activate(a)
	table.Activate(b)
	counted("used", 2)
	table.Unanswered(b)
	counted("used, and two pings are unanswered", 2)
	table.Detach(a, session.End{}, now)
	counted("one has ended", 1)
	c := attach(t, table, session.Options{})
	table.Unanswered(c)
	table.Detach(c, session.End{}, now)
	table.Detach(b, session.End{}, now)
	counted("all have ended", 0)
}

// TestTable_Detach: a message is replaced after three connections have broken with it, or one that names its size.
func TestTable_Detach(t *testing.T) {
	for name, test := range map[string]struct {
		acknowledges bool
		end          session.End
		want         int // connections that break; 0: the message is not replaced
	}{
		"cut":                        {true, session.End{Unacknowledged: 7}, 3},
		"too big":                    {true, session.End{Unacknowledged: 7, TooBig: true}, 1},
		"too big, no pong ever":      {false, session.End{Unacknowledged: 7, TooBig: true}, 1},
		"no pong ever":               {false, session.End{Unacknowledged: 7}, 0},
		"closed by the supervisor":   {true, session.End{Unacknowledged: 7, Local: true}, 0},
		"acknowledged before":        {true, session.End{Unacknowledged: 2}, 0},
		"nothing was unacknowledged": {true, session.End{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable()
			for n := 1; n <= 6; n++ {
				a := attach(t, table, session.Options{Key: "ann", Tail: at(3)})
				if n > 1 && n-1 == test.want {
					if why := a.Replaced()[test.end.Unacknowledged]; why == "" {
						t.Errorf("not replaced after %d connections", n-1)
					}
					return
				}
				if len(a.Replaced()) > 0 {
					t.Fatalf("replaced after %d connections", n-1)
				}
				table.Activate(a)
				a.NoteInput()
				if test.acknowledges {
					a.NotePong()
				}
				table.Detach(a, test.end, now)
			}
			if test.want != 0 {
				t.Error("never replaced")
			}
		})
	}
}

// TestSession_Accept: accepted messages are remembered, up to a bound.
func TestSession_Accept(t *testing.T) {
	ann := attach(t, newTable(), session.Options{Key: "ann"}).Session
	has := func(id string) bool { accepted, _ := ann.HasAccepted(id); return accepted }
	if has("1") || ann.Accepted() != 0 {
		t.Error("a new session has accepted something")
	}
	ann.Accept("1", false)
	ann.Accept("", false)
	if !has("1") || has("2") || has("") || ann.Accepted() != 1 {
		t.Errorf("%d messages are remembered", ann.Accepted())
	}
	ann.Accept("2", true)
	if _, rejected := ann.HasAccepted("1"); rejected {
		t.Error("an accepted message is remembered as rejected")
	}
	if accepted, rejected := ann.HasAccepted("2"); !accepted || !rejected {
		t.Error("a rejected message is not remembered as rejected")
	}
}
