package supervisor

import (
	"os"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// openFiles counts this process's descriptors of unlinked files in a folder.
func openFiles(t *testing.T, dir string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir+"/.log-") {
			n++
		}
	}
	return n
}

// TestSpill_ReturningClient: a returning client gets missed messages from disk as it would from memory. Memory holds no
// more than its share.
func TestSpill_ReturningClient(t *testing.T) {
	dir := t.TempDir()
	r := startSupervisor(t, func(c *api.Config) { c.LogLimit, c.SpillDir = 64<<20, dir }).ready()
	c := r.dial(dialOption{session: "ann", relay: true})
	begin := c.cursor
	cell := c.execute("flood 10000\nbig 20m\nbuffers 3m\necho end")
	r.until("busy", func(st api.Status) bool { return st.State == api.Busy })
	_ = c.ws.NetConn().Close()
	r.until("idle", func(st api.Status) bool { return st.State == api.Idle })
	eventually(t, "memory within its share", func() bool { return r.s.log.InMemory() <= messagelog.MemoryMost })
	if st, _ := r.s.Status(); st.LogBytes < messagelog.MemoryMost+1<<20 || openFiles(t, dir) == 0 {
		t.Fatalf("the log has %d bytes, in %d files", st.LogBytes, openFiles(t, dir))
	}
	if seen, err := os.ReadDir(dir); err != nil || len(seen) > 0 {
		t.Errorf("others can see %v, %v", seen, err)
	}
	c = r.dial(dialOption{session: "ann", relay: true, cursor: begin})
	all := c.result(cell)
	displays, bigs, buffers := 0, 0, 0
	for _, g := range all {
		switch {
		case g.msgType == "display_data" && len(g.Content) > 1<<20:
			bigs++
		case g.msgType == "display_data":
			displays++
		case len(g.Buffers) == 1 && len(g.Buffers[0]) == 3_000_000:
			buffers++
		}
	}
	if text := output(all, cell); displays != 10000 || bigs != 1 || buffers != 1 || text != "end\n" {
		t.Errorf("%d displays, %d large ones, %d with buffers, %q", displays, bigs, buffers, text)
	}
}
