package supervisor

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/framing"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// modelConn is a connection, and what the test knows of it without looking into the supervisor.
type modelConn struct {
	c       *clientConn
	from    messagelog.Position // where it reads on
	session *modelSession
	at      uint64 // it has read all its messages up to here
	acked   uint64
	pings   []modelPing
	pongs   int
	active  bool
	reads   bool   // it has sent something, or acknowledged more than one message
	count   int    // messages that it has read
	cursor  string // of the last message, for relays
}

// modelPing is what an answer to a ping would prove.
type modelPing struct {
	at       messagelog.Position
	messages int
}

// modelSession is a session as its clients see it. The client of the youngest connection that is read has all messages
// up to acked, so a new connection must not begin behind it. It must not begin before it either, or messages are
// repeated. When no connection is read, the client is away and has what it had.
type modelSession struct {
	id     string
	s      *session.Session
	resume uint64
	floor  uint64 // where the kernel's present life begins
	conns  []*modelConn
	left   time.Time
}

// settle follows a change of the connections or of what they have acknowledged.
func (s *modelSession) settle() {
	used := slices.DeleteFunc(slices.Clone(s.conns), func(m *modelConn) bool { return !m.active || !m.reads })
	if len(used) > 0 {
		s.resume = max(used[len(used)-1].acked, s.floor) // connections are in the order of their beginning
	}
}

// TestSession_Model checks sessions, cursors and acknowledgements against that description. Clients connect, read,
// answer, send and leave in any order. Meanwhile the kernel sends messages, is restarted, and time passes.
func TestSession_Model(t *testing.T) {
	cfg := api.Config{Protocol: api.ProtocolVersion, KernelID: testKernelID, LogLimit: 64 << 20}
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		s := New(cfg, "test", slog.New(slog.DiscardHandler))
		s.now = func() time.Time { return now }
		s.use.Ready()
		type entry struct {
			to *session.Session
			n  int
		}
		var all []entry // by seq-1
		tail := func() uint64 { return uint64(len(all)) }
		sessions := map[string]*modelSession{}
		var conns []*modelConn
		anonymous := 0

		send := func(to *session.Session) {
			s.mu.Lock()
			defer s.mu.Unlock()
			number := uint64(allSessions)
			if to != nil {
				number = to.Number
			}
			s.log.Append(number, numbered(len(all), 0), false)
			all = append(all, entry{to, len(all)})
		}
		pick := func(t *rapid.T) *modelConn {
			if len(conns) == 0 {
				t.Skip("no client is connected")
			}
			return conns[rapid.IntRange(0, len(conns)-1).Draw(t, "connection")]
		}
		activate := func(m *modelConn) {
			if m.active {
				return
			}
			m.active = true
			m.session.settle()
		}
		rarely := func(t *rapid.T) { // for actions that make everything before them irrelevant
			if rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
				t.Skip("not now")
			}
		}
		leave := func(m *modelConn) {
			s.leave(m.c)
			conns = slices.DeleteFunc(conns, func(o *modelConn) bool { return o == m })
			sess := m.session
			sess.conns = slices.DeleteFunc(sess.conns, func(o *modelConn) bool { return o == m })
			sess.settle()
			if sess.left = now; len(sess.conns) == 0 && !m.c.session.Lasting {
				delete(sessions, sess.id)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for _, sess := range sessions {
					if got := sess.s.Resume().Seq; got != sess.resume {
						t.Fatalf("session %s resumes behind %d, want %d", sess.id, got, sess.resume)
					}
				}
				if n, want := s.clients.sessions.Active(),
					len(slices.DeleteFunc(slices.Clone(conns), func(m *modelConn) bool { return !m.active })); n != want {
					t.Fatalf("%d connections are active, want %d", n, want)
				}
			},
			"connect": func(t *rapid.T) {
				if len(conns) >= 4 {
					t.Skip("enough")
				}
				id := rapid.SampledFrom([]string{"a", "a", "a", "b", ""}).Draw(t, "session")
				m := &modelConn{c: &clientConn{s: s, framing: framing.V1}}
				key := id
				if id == "" {
					anonymous++
					key = fmt.Sprint("anonymous ", anonymous)
				}
				for key, sess := range sessions {
					if len(sess.conns) == 0 && now.Sub(sess.left) > session.Life {
						delete(sessions, key)
					}
				}
				sess := sessions[key]
				cursor := ""
				if sess != nil && rapid.Bool().Draw(t, "as a relay that goes on") {
					for _, other := range conns {
						if other.session == sess && other.cursor != "" && other.at >= sess.floor {
							m.c.relay, cursor, m.at = true, other.cursor, other.at
						}
					}
				}
				if err := s.join(m.c, id, cursor); err != nil {
					t.Fatal(err)
				}
				if sess == nil {
					sess = &modelSession{id: key, s: m.c.session, resume: tail()}
					sessions[key] = sess
				}
				m.session, m.from = sess, m.c.attachment.Cursor
				m.acked = sess.resume
				if cursor == "" {
					m.at = sess.resume
				}
				m.acked = min(m.acked, m.at)
				sess.conns = append(sess.conns, m)
				conns = append(conns, m)
			},
			"the kernel says": func(t *rapid.T) { send(nil) },
			"the kernel answers": func(t *rapid.T) {
				send(pick(t).session.s)
			},
			"read": func(t *rapid.T) {
				m := pick(t)
				got, at, lost := s.log.Read(m.from, m.c.session.Number, rapid.Int64Range(1, 5000).Draw(t, "bytes"), nil)
				if lost.Total() > 0 {
					t.Fatalf("%d lost of a log that has room", lost)
				}
				m.count += len(got)
				for _, e := range got {
					for m.at++; all[m.at-1].to != nil && all[m.at-1].to != m.session.s; m.at++ {
					}
					if e.At.Seq != m.at {
						t.Fatalf("got entry %d, want %d", e.At.Seq, m.at)
					}
					if want := all[m.at-1].n; number(t, &e.Message) != want {
						t.Fatalf("entry %d is %s", m.at, e.Message.Content)
					}
					b := s.log.Cursor(e.At)
					m.cursor = fmt.Sprintf("%x", b[:])
				}
				for ; m.at < at.Seq; m.at++ {
					if to := all[m.at].to; to == nil || to == m.session.s {
						t.Fatalf("entry %d was skipped", m.at+1)
					}
				}
				m.from = at
				if len(got) > 0 || m.cursor != "" {
					b := s.log.Cursor(at)
					m.cursor = fmt.Sprintf("%x", b[:])
				}
			},
			"ping": func(t *rapid.T) {
				m := pick(t)
				m.pings = append(m.pings, modelPing{m.from, m.count})
			},
			"pong": func(t *rapid.T) { // to any outstanding ping; it answers the earlier ones too
				m := pick(t)
				if len(m.pings) == 0 {
					t.Skip("no ping to answer")
				}
				i := rapid.IntRange(0, len(m.pings)-1).Draw(t, "ping")
				p := m.pings[i]
				m.c.Acknowledge(p.at, p.messages)
				m.reads = m.reads || p.messages > 1
				if m.pongs++; m.pongs > 1 {
					activate(m)
				}
				m.acked = max(m.acked, p.at.Seq)
				m.session.settle()
				m.pings = m.pings[i+1:]
			},
			"activate": func(t *rapid.T) {
				m := pick(t)
				s.mu.Lock()
				s.clients.sessions.Activate(m.c.attachment)
				m.c.attachment.NoteInput()
				s.mu.Unlock()
				m.reads = true
				activate(m)
				m.session.settle()
			},
			"a requested restart": func(t *rapid.T) {
				rarely(t)
				s.beginLife(nil, &operation{})
				s.mu.Lock()
				s.use.Ready()
				s.mu.Unlock()
				for _, sess := range sessions {
					sess.floor, sess.resume = tail(), tail()
				}
			},
			"cut": func(t *rapid.T) { leave(pick(t)) },
			"time passes": func(t *rapid.T) {
				rarely(t)
				now = now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "hours")) * time.Hour)
			},
			"requests": func(t *rapid.T) { // some get no answer before their session ends
				m := pick(t)
				h := jupyter.Header{MsgID: jupyter.NewID(), MsgType: "execute_request"}
				s.mu.Lock()
				defer s.mu.Unlock()
				raw := &jupyter.Message{Channel: jupyter.Shell, Header: []byte(`{"msg_id":"` + h.MsgID + `"}`)}
				r := s.clients.register(m.c.session, raw, h)
				if rapid.Bool().Draw(t, "answered") {
					s.clients.finish(r)
				}
			},
		})
		for len(conns) > 0 {
			leave(conns[0])
		}
		// Some time after all clients have left, nothing is remembered.
		now = now.Add(session.Life + time.Hour)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients.sessions.Expire(now)
		for _, r := range slices.Collect(s.clients.requests.Open()) {
			if !r.Finished() {
				s.clients.finish(r)
			}
		}
		if s.clients.sessions.Len() > 0 || s.clients.requests.Len() != 0 || s.clients.requests.Pending(noSession) != 0 {
			t.Fatalf("left: %d sessions, %d requests, %d orphans", s.clients.sessions.Len(), s.clients.requests.Len(),
				s.clients.requests.Pending(noSession))
		}
	})
}
