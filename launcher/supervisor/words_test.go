package supervisor

import (
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestLastWords: the reason of a kernel's end quotes what the kernel said since its last cell began, and nothing else.
func TestLastWords(t *testing.T) {
	t.Parallel() // it waits more than it works
	const died = "exit code 3"
	const warning = "0.00s - Debugger warning: It seems that frozen modules are being used, which may"
	for name, tt := range map[string]struct {
		before []string // cells, one after the other
		queued []string // cells that are sent at once; the last ends the kernel
		want   string   // behind died
	}{
		"of the last cell":            {nil, []string{"complain boom\nexit 3"}, ": boom"},
		"of an earlier cell":          {[]string{"complain old"}, []string{"exit 3"}, ""},
		"of an earlier cell, waiting": {nil, []string{"complain old\nsleep 500ms", "exit 3"}, ""},
		"of the last cell, waiting":   {nil, []string{"complain old\nsleep 500ms", "complain boom\nexit 3"}, ": boom"},
		"the debugger's":              {nil, []string{"complain " + warning + "\nexit 3"}, ""},
		"before the debugger's":       {nil, []string{"complain boom\ncomplain " + warning + "\nexit 3"}, ": boom"},
		"of the start":                {nil, []string{"exit 3"}, ""},
	} {
		for _, where := range []string{"own process", "another container"} {
			t.Run(name+" in "+where, func(t *testing.T) {
				var c *client
				change := func(cfg *api.Config) { cfg.Argv = fakeKernelArgv("--stderr", "start-up noise") }
				if where == "own process" {
					c = startSupervisor(t, change).ready().dial(dialOption{session: "ann", v1: true})
				} else {
					c = startPod(t, change).ready().attach("ann")
				}
				for _, code := range tt.before {
					c.result(c.execute(code))
					<-time.After(100 * time.Millisecond) // the kernel's output is read on its own
				}
				var ids []string
				for _, code := range tt.queued {
					ids = append(ids, c.execute(code))
				}
				last := ids[len(ids)-1]
				said := output(c.result(last), last)
				if !strings.HasSuffix(strings.TrimSpace(said), died+tt.want) {
					t.Errorf("the cell says %q, want the end %q", said, died+tt.want)
				}
			})
		}
	}
}
