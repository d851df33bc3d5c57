package requests

import (
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// TestTable_SameID: a message about one request does not end another one that has the same id.
func TestTable_SameID(t *testing.T) {
	tab := NewTable()
	cell := &Request{ID: "x", User: "ann", Type: "execute_request", Channel: jupyter.Shell}
	info := &Request{ID: "x", User: "ann", Type: "kernel_info_request", Channel: jupyter.Control}
	tab.Add(cell)
	tab.Add(info)
	about := func(msgType string) jupyter.Header { return jupyter.Header{MsgID: "x", MsgType: msgType} }
	if tab.AwaitingReply(about(info.Type), jupyter.Control) != info || tab.AwaitingIdle(about(info.Type)) != info {
		t.Error("the second request is taken for the first")
	}
	if r := tab.AwaitingReply(about(""), jupyter.Control); r != info {
		t.Errorf("a reply on control answers %v", r)
	}
	if r := tab.AwaitingReply(about(cell.Type), jupyter.Control); r != nil {
		t.Errorf("a reply on another channel answers %v", r)
	}
	if tab.AwaitingReply(about(cell.Type), jupyter.Stdin) != cell {
		t.Error("a prompt has no cell")
	}
	if tab.OfOther("x", "ann") || !tab.OfOther("x", "bob") || tab.OfOther("y", "bob") {
		t.Error("the users of an id are wrong")
	}
}

func TestTable_Lookups(t *testing.T) {
	tab := NewTable()
	a := &Request{ID: "x", Session: 1, Type: "execute_request", Channel: jupyter.Shell}
	b := &Request{ID: "x", Session: 2, Type: "execute_request", Channel: jupyter.Shell}
	c := &Request{ID: "y", Session: 1, Type: "kernel_info_request", Channel: jupyter.Shell}
	parent := func(id string) jupyter.Header { return jupyter.Header{MsgID: id} }
	for _, r := range []*Request{a, b, c} {
		tab.Add(r)
	}
	if tab.AwaitingReply(parent("x"), jupyter.Shell) != a || tab.AwaitingIdle(parent("y")) != c ||
		tab.AwaitingReply(parent("z"), jupyter.Shell) != nil || tab.OldestCell() != a {
		t.Error("requests are not found in order of arrival")
	}
	a.Replied = true
	if tab.AwaitingReply(parent("x"), jupyter.Shell) != b || tab.AwaitingIdle(parent("x")) != a {
		t.Error("a reply is awaited twice")
	}
	if got := tab.RunningCell(func(_, _ string) bool { return true }); got != a {
		t.Errorf("%v runs", got)
	}
	tab.Finish(a)
	if got := slices.Collect(tab.Open()); !slices.Equal(got, []*Request{b, c}) || tab.Len() != 2 || tab.Pending(1) != 1 {
		t.Errorf("%d are open, %d of session 1", len(got), tab.Pending(1))
	}
	tab.Finish(a) // again: nothing happens
	if tab.Len() != 2 || tab.Pending(1) != 1 {
		t.Errorf("%d are open, %d of session 1", tab.Len(), tab.Pending(1))
	}
}

func TestTable_OrphansAreKept(t *testing.T) {
	tab := NewTable()
	for _, session := range []uint64{1, 2, 1} {
		tab.Add(&Request{ID: "x", Session: session})
	}
	tab.Orphan(1)
	tab.Orphan(7)
	if tab.Len() != 3 || tab.Pending(0) != 2 || tab.Pending(1) != 0 || tab.Oldest(0) == nil {
		t.Errorf("%d open, %d orphans, %d of session 1", tab.Len(), tab.Pending(0), tab.Pending(1))
	}
	for r := tab.Oldest(0); r != nil; r = tab.Oldest(0) {
		tab.Finish(r)
	}
	if tab.Len() != 1 || tab.Pending(0) != 0 {
		t.Errorf("%d open, %d orphans", tab.Len(), tab.Pending(0))
	}
}

func TestTable_ForgetsFinishedRequests(t *testing.T) {
	tab := NewTable()
	first := &Request{ID: "first"}
	tab.Add(first)
	for range 1000 {
		r := &Request{ID: "x"}
		tab.Add(r)
		tab.Finish(r)
	}
	if len(tab.order) > 100 || tab.Len() != 1 || tab.OldestCell() != nil || tab.Oldest(0) != first {
		t.Errorf("%d are kept for %d open ones", len(tab.order), tab.Len())
	}
}
