package supervisor

import (
	"context"
	"net"
	"runtime"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/zeromq"
)

// lastWords is the iopub of a kernel that has sent some messages and has ended.
type lastWords struct {
	zeromq.Socket
	messages [][][]byte
}

func (s *lastWords) Recv() ([][]byte, error) {
	if len(s.messages) == 0 {
		return nil, net.ErrClosed
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

// TestBridge_DrainEndsWaits: what a kernel sent before its end is delivered, even if it waits for a slow disk.
func TestBridge_DrainEndsWaits(t *testing.T) {
	signer := jupyter.NewSigner([]byte("key"))
	m := jupyter.New(jupyter.IOPub, "stream", "session", nil, map[string]any{"name": "stdout", "text": "last"})
	waits, end := context.WithCancel(t.Context())
	delivered := 0
	b := &bridge{log: quiet(), signer: signer, endWaits: end, quiet: make(chan struct{}), failed: make(chan error, 1),
		deliver:   func(*bridge, jupyter.Message) { delivered++ },
		awaitDisk: func(ctx context.Context, _ int) { <-ctx.Done() }}
	b.sockets[jupyter.IOPub] = &lastWords{messages: [][][]byte{m.Frames(signer), m.Frames(signer)}}
	b.readers.Store(1)
	b.wg.Go(func() { b.read(waits, jupyter.IOPub) })
	b.drain(testLimit)
	b.wg.Wait()
	if delivered != 2 {
		t.Errorf("%d messages were delivered, want 2", delivered)
	}
}

// TestSupervisor_SecondProcessor: while a kernel puts out large messages, and only then, its supervisor uses a second
// processor.
func TestSupervisor_SecondProcessor(t *testing.T) {
	if runtime.NumCPU() == 1 {
		t.Skip("the machine has one processor")
	}
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann"})
	shows := func(code string) int {
		c.result(c.execute(code))
		return runtime.GOMAXPROCS(0)
	}
	if got := shows("flood 1000 of 10k"); got != 1 {
		t.Errorf("%d processors for small messages", got)
	}
	poll.Until(t, "a second processor", func() bool { return shows("big 300k") == 2 })
	poll.Until(t, "one processor again", func() bool { return runtime.GOMAXPROCS(0) == 1 })
}
