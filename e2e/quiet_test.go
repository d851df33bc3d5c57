//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/vanish"
)

// TestE2E_Quiet: a program that reads nothing between two cells keeps its connection. A client whose host is gone loses
// it.
func TestE2E_Quiet(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	id := g.kernel("python3")
	ws := g.open(t, id)
	c := &client{t: t, ws: ws, session: "x"}
	cell := c.begin("1")
	readUntil(t, ws, 30*time.Second, func(m message) bool {
		return m.Parent.MsgID == cell && m.Header.MsgType == "execute_reply"
	})
	vanish.Host(t, ws.NetConn().(*net.TCPConn))
	gone := time.Now()
	g.python("quiet.py") // takes longer than a connection without a host may last
	g.eventually(time.Minute, "the connection has ended", func() error {
		if m := g.state(id, "idle", 10*time.Second); m.Connections != 0 {
			return fmt.Errorf("after %v it has %d connections", time.Since(gone), m.Connections)
		}
		return nil
	})
}

// TestE2E_NextCell: a cell that is sent when its program has read an error runs. Cells that were sent before it do not.
func TestE2E_NextCell(t *testing.T) { newGateway(t).python("next_cell.py") }
