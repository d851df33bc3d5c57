package connection

import (
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// TestInput: other users never take the owner's room, and one of them never takes all of the others'.
func TestInput(t *testing.T) {
	var in Input
	ann, bob, cat, dan := in.Of("ann", true), in.Of("bob", false), in.Of("cat", false), in.Of("dan", false)
	const step = 1 << 20
	fill := func(s InputShare) (n int64) {
		for s.reserve(step) {
			n += step
		}
		return n
	}
	if n := fill(bob); n != inputOfOther {
		t.Errorf("bob has %d bytes, want %d", n, inputOfOther)
	}
	if n := fill(cat); n != inputOthers-inputOfOther {
		t.Errorf("cat has %d bytes, want %d", n, inputOthers-inputOfOther)
	}
	if n := fill(dan); n != 0 {
		t.Errorf("dan has %d bytes", n)
	}
	if n := fill(ann); n != inputTotal-inputOthers || n < MaxMessage {
		t.Errorf("the owner has %d bytes", n)
	}
	bob.release(inputOfOther)
	if n := fill(dan); n != inputOfOther {
		t.Errorf("dan has %d bytes, want %d", n, inputOfOther)
	}
	dan.release(inputOfOther)
	cat.release(inputOthers - inputOfOther)
	ann.release(inputTotal - inputOthers)
	if in.owner != 0 || in.others != 0 || len(in.byUser) != 0 {
		t.Errorf("%d and %d bytes of %d users are left", in.owner, in.others, len(in.byUser))
	}
}

// TestConn_NoRoomForInput: without room a large message ends its connection, and a small one passes. The room of an
// unfinished message is free again when its connection ends.
func TestConn_NoRoomForInput(t *testing.T) {
	var in Input
	if !in.Of("bob", false).reserve(inputOfOther - 512<<10) {
		t.Fatal("an empty Input has no room")
	}
	before := in.others
	limit := func(o *Options) { o.MaxMessage, o.Input = MaxSharedMessage, in.Of("bob", false) }
	message := func(size int) []byte {
		return []byte(`{"channel":"shell","header":{"msg_id":"1","msg_type":"x"},"parent_header":{},"metadata":{},` +
			`"content":{"x":"` + strings.Repeat("x", size) + `"}}`)
	}
	s := serve(t, limit)
	for _, size := range []int{200 << 10, 600 << 10, 200 << 10} { // the second has room
		if err := s.peer.WriteMessage(websocket.TextMessage, message(size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.peer.WriteMessage(websocket.TextMessage, message(4<<20)); err != nil {
		t.Log(err) // it may be closed already
	}
	if _, _, err := s.peer.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseTryAgainLater) {
		t.Errorf("ended with %v", err)
	}
	_ = s.peer.Close()
	s.ended(t)
	if in.others != before {
		t.Errorf("%d bytes are held", in.others-before)
	}

	s = serve(t, limit)
	w, err := s.peer.NextWriter(websocket.TextMessage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(message(400 << 10)); err != nil {
		t.Fatal(err)
	}
	_ = s.peer.Close() // the message never ends
	s.ended(t)
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.others != before {
		t.Errorf("%d bytes are held", in.others-before)
	}
}
