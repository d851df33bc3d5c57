package prompts_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/prompts"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/session"
)

// attach returns the session of a new connection.
func attach(t *testing.T, table *session.Table, key, user string, readOnly bool) *session.Session {
	t.Helper()
	a, err := table.Attach(session.Options{Key: key, User: user, ReadOnly: readOnly}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a.Session
}

func ask(id string) jupyter.Message {
	return jupyter.Message{Channel: jupyter.Stdin, Header: fmt.Appendf(nil, `{"msg_id":%q}`, id)}
}

func at(seq uint64) messagelog.Position { return messagelog.Position{Seq: seq} }

// TestPrompt_Offer: a prompt is for the session of its request and for later sessions of its user, once each.
func TestPrompt_Offer(t *testing.T) {
	sessions := session.NewTable(func(*session.Session) {})
	older := attach(t, &sessions, "older", "ann", false)
	own := attach(t, &sessions, "own", "ann", false)
	r := &requests.Request{ID: "1", Session: own.Number, User: "ann", After: sessions.Newest()}
	page := attach(t, &sessions, "page", "ann", false)
	reader := attach(t, &sessions, "reader", "ann", true)
	bob := attach(t, &sessions, "bob", "bob", false)
	var table prompts.Table
	p := table.Add(r, ask("a"))
	for s, want := range map[*session.Session]bool{older: false, own: true, page: true, reader: false, bob: false} {
		if got := p.Offer(s); got != want {
			t.Errorf("%s: %v", s.Key, got)
		}
	}
	p.Offered(page, at(7))
	if p.Offer(page) || p.Acknowledged(page, at(6)) || !p.Acknowledged(page, at(7)) || p.Acknowledged(own, at(9)) {
		t.Error("the page that got the prompt at 7 is not the one that has acknowledged it there")
	}
	r.Session = 0 // its session has ended
	if p.Offer(own) || table.Of(r) != p {
		t.Error("a session that ended is offered the prompt")
	}
	r.Replied = true
	if len(table.Waiting()) != 0 || table.Of(r) != nil {
		t.Error("the prompt of a request with a reply waits")
	}
}

// TestTable_Match: an answer is for the prompt that it names, else for the newest of its user.
func TestTable_Match(t *testing.T) {
	sessions := session.NewTable(func(*session.Session) {})
	ann, page := attach(t, &sessions, "ann", "ann", false), attach(t, &sessions, "page", "ann", false)
	bob := attach(t, &sessions, "bob", "bob", false)
	var table prompts.Table
	match := func(parent string, s *session.Session) string {
		switch p, refusal := table.Match(parent, s); {
		case p != nil:
			return p.ID
		case refusal != nil:
			return refusal.Reason[strings.Index(refusal.Reason, ": ")+2:]
		}
		return ""
	}
	expect := func(parent string, s *session.Session, want string) {
		t.Helper()
		if got := match(parent, s); got != want {
			t.Errorf("%q of %s: got %q, want %q", parent, s.Key, got, want)
		}
	}
	expect("", ann, "")
	expect("unknown", ann, "")
	one := &requests.Request{ID: "1", Session: ann.Number, User: "ann"}
	a := table.Add(one, ask("a"))
	table.Add(&requests.Request{ID: "2", Session: page.Number, User: "ann"}, ask("b"))
	expect("a", page, "a")
	expect("", ann, "a")
	expect("", page, "b")
	for _, parent := range []string{"a", "", "unknown"} {
		expect(parent, bob, "the kernel has not asked for it")
	}
	a.Offered(ann, at(1))
	a.Offered(page, at(1))
	table.Answered(a, page)
	expect("a", ann, "it was answered in another page")
	expect("a", page, "it was answered before")
	c := table.Add(one, ask("c"))
	expect("", ann, "c")
	table.Add(one, ask("d"))
	expect("c", ann, "the kernel waits for it no more")
	if c.Message.Header != nil {
		t.Error("the table holds a message that no one waits for")
	}
	for n := range 1000 {
		table.Add(&requests.Request{ID: "n"}, ask(fmt.Sprint(n)))
	}
	if n := len(table.Waiting()); n != 64 {
		t.Errorf("%d prompts wait", n)
	}
	expect("a", ann, "the kernel has not asked for it") // it is forgotten
}
