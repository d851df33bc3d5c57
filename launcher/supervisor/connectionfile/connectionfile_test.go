package connectionfile

import (
	"net"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestNew_TCP: a kernel gets five different ports on which it can listen.
func TestNew_TCP(t *testing.T) {
	c, err := New(&api.Config{Transport: "tcp", SpecName: "x"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, channel := range []jupyter.Channel{Heartbeat, jupyter.Shell, jupyter.Control, jupyter.Stdin, jupyter.IOPub} {
		address, tcp := strings.CutPrefix(c.Endpoints[channel], "tcp://127.0.0.1:")
		if !tcp || seen[address] {
			t.Errorf("%s listens on %s", channel, c.Endpoints[channel])
		}
		seen[address] = true
		l, err := net.Listen("tcp", "127.0.0.1:"+address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nothing was sent on it
	}
}
