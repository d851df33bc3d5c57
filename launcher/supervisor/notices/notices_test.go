package notices

import (
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// TestDisplays: each session gets one notice, which is changed in place, and another one after its end. A text that is
// shown already is not sent again.
func TestDisplays(t *testing.T) {
	log := messagelog.New(messagelog.Options{Limit: 1 << 20,
		Stamp: func([]byte) messagelog.Stamp { return messagelog.Stamp{} }})
	defer log.Close()
	n := New(log, "own")
	begin := log.Tail()
	sent := func(session uint64) (types []string) {
		entries, _, _ := log.Read(begin, session, 1<<20, nil)
		for _, e := range entries {
			types = append(types, jupyter.StringField(e.Message.Header, "msg_type")+" from "+
				jupyter.StringField(e.Message.Header, "session"))
		}
		return types
	}
	check := func(what string, session uint64, want ...string) {
		t.Helper()
		if got := sent(session); strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("%s: session %d got %q, want %q", what, session, got, want)
		}
	}
	const first, second = 1, 2
	n.Node.Add(first, []byte(`{"msg_id":"a"}`))
	n.Node.Add(first, []byte(`{"msg_id":"b"}`))
	n.Node.Add(second, nil)
	n.Node.Show("it ends")
	n.Node.Show("it ends")
	check("shown", first, "display_data from own")
	check("without a cell", second)
	n.Kernel = "kernel"
	n.Node.Show("it ends soon")
	n.Node.End("")
	check("ended", first, "display_data from own", "update_display_data from kernel", "update_display_data from kernel")
	n.Node.Show("nothing is left")
	n.Node.Add(first, []byte(`{"msg_id":"c"}`))
	n.Node.Show("again")
	check("again", first, "display_data from own", "update_display_data from kernel", "update_display_data from kernel",
		"display_data from kernel")
}
