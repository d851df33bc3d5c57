package supervisor

import "testing"

// TestConn_AsksAtOnce: a ping follows at once after a message that ends a cell, or says that the kernel restarts. It
// does not wait for the answer to an earlier ping. A page that reconnects because of such a message must not get it
// again.
func TestConn_AsksAtOnce(t *testing.T) {
	r := startSupervisor(t, nil).ready()
	c := r.dial(dialOption{session: "ann", v1: true})
	pings := 0
	c.ws.SetPingHandler(func(string) error { pings++; return nil })
	const cells = 10
	for range cells {
		c.result(c.execute("echo x"))
	}
	if pings < cells-1 { // the last one's may still come
		t.Errorf("%d pings in %d cells", pings, cells)
	}
}
