package requests

import (
	"slices"
	"testing"
)

func TestTable_Lookups(t *testing.T) {
	tab := NewTable()
	a := &Request{ID: "x", Session: 1, Type: "execute_request"}
	b := &Request{ID: "x", Session: 2, Type: "execute_request"}
	c := &Request{ID: "y", Session: 1, Type: "kernel_info_request"}
	for _, r := range []*Request{a, b, c} {
		tab.Add(r)
	}
	if tab.AwaitingReply("x") != a || tab.AwaitingIdle("y") != c || tab.AwaitingReply("z") != nil ||
		tab.OldestCell() != a {
		t.Error("requests are not found in order of arrival")
	}
	a.Replied = true
	if tab.AwaitingReply("x") != b || tab.AwaitingIdle("x") != a {
		t.Error("a reply is awaited twice")
	}
	if got := tab.RunningCell(func(string) bool { return true }); got != a {
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
