package routes

import (
	"fmt"
	"testing"
)

// TestLogReaders: no other user takes the owner's places, or more than a user's share, and a place is free again when
// its reader has gone.
func TestLogReaders(t *testing.T) {
	var l logReaders
	owns := func(user string) bool { return user == "owner" }
	for range logReadersOfUser {
		if err := l.admit("ann", owns); err != nil {
			t.Fatal(err)
		}
	}
	if l.admit("ann", owns) == nil {
		t.Error("a user has more than a share")
	}
	for i := range logReadersOfOthers - logReadersOfUser {
		if err := l.admit(fmt.Sprint("user", i), owns); err != nil {
			t.Fatal(err)
		}
	}
	if l.admit("bob", owns) == nil {
		t.Error("the others have more than their places")
	}
	for range logReadersOfOwner {
		if err := l.admit("owner", owns); err != nil {
			t.Fatal(err)
		}
	}
	if l.admit("owner", owns) == nil {
		t.Error("the owner has more than all places")
	}
	l.dismiss("ann")
	if err := l.admit("bob", owns); err != nil {
		t.Error(err)
	}
}
