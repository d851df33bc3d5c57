package notebook

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
)

// TestRelay_Panic: a panic of the relay's goroutine reaches the job that has the relay, and ends nothing else.
func TestRelay_Panic(t *testing.T) {
	r := OpenRelay(RelayOptions{Dial: func(context.Context, url.Values) (*websocket.Conn, error) {
		panic("a frame that a kernel has forged")
	}})
	defer r.Close()
	_, _, err := r.Receive(t.Context())
	var caught *goroutines.PanicError
	if !errors.As(err, &caught) || errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}
