package zeromq

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestHeartbeat_Run: a peer that answers once and then falls silent is missed. The end of the context ends the wait for
// its answer.
func TestHeartbeat_Run(t *testing.T) {
	zmqGoroutines(t)
	question := append(zmqFrame(flagMore, nil), zmqFrame(0, []byte("ping"))...)
	endpoint := zmqPeer(t, func(c net.Conn) {
		zmqShake(c, "REP")
		got := make([]byte, len(question))
		if _, err := c.Read(got); err != nil || string(got) != string(question) {
			t.Errorf("the question is %q, %v", got, err)
		}
		c.Write(question)         //nolint:errcheck // seen by the test
		c.Read(got)               //nolint:errcheck // the second question, which gets no answer
		c.Read(make([]byte, 100)) //nolint:errcheck // until our side closes it
	})
	answered, missed := 0, make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	h := Heartbeat{Endpoint: endpoint, Interval: 10 * time.Millisecond,
		Answered: func(time.Time) func() {
			answered++
			return func() { close(missed); cancel() }
		},
		Failed: func(err error) { t.Errorf("no connection: %v", err) }}
	h.Run(ctx)
	select {
	case <-missed:
	default:
		t.Error("the missing answer was not noticed")
	}
	if answered != 1 {
		t.Errorf("%d answers, want 1", answered)
	}
}
