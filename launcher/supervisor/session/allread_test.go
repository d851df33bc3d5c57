package session

import (
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

func TestTable_AllRead(t *testing.T) {
	table := NewTable(func(*Session) {})
	attach := func(key string) *Attachment {
		t.Helper()
		a, err := table.Attach(Options{Key: key, Owner: true}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	check := func(what string, seq uint64, want bool) {
		t.Helper()
		if got := table.AllRead(messagelog.Position{Seq: seq}); got != want {
			t.Errorf("%s: everything is read up to %d: %v", what, seq, got)
		}
	}
	check("without clients", 9, true)
	first := attach("a")
	check("with a client that has not used its connection", 9, true)
	table.Activate(first)
	check("with a client that has read nothing", 9, false)
	first.Acknowledge(messagelog.Position{Seq: 9}, 3)
	check("with a client that has everything", 9, true)
	check("with a client that has everything", 10, false)
	second := attach("b")
	table.Activate(second)
	second.Acknowledge(messagelog.Position{Seq: 8}, 3)
	table.Detach(second, End{}, time.Now())
	check("with a client that is away", 9, false)
	check("with a client that is away", 8, true)
}
