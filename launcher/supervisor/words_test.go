package supervisor

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
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
				why, _, _ := strings.Cut(said, ". That was at ")
				if !strings.HasSuffix(why, died+tt.want) {
					t.Errorf("the cell says %q, want the end %q", said, died+tt.want)
				}
			})
		}
	}
}

// TestWords_OnMachine: users of one machine do not read about containers. The child stands for the supervisor's parent.
func TestWords_OnMachine(t *testing.T) {
	start := func(t *testing.T) (p *pod, c *client, id string) {
		p = startPod(t, func(cfg *api.Config) {
			cfg.SameMachine, cfg.TerminationGrace = true, 0
			cfg.ConnectionFile = filepath.Join(filepath.Dir(cfg.SpillDir), "connection.json")
		}).ready()
		c = p.attach("ann")
		id = c.execute("sleep 1h")
		c.running(id)
		return p, c, id
	}
	check := func(t *testing.T, all []got, id, want string) {
		t.Helper()
		g, _ := find(all, "execute_reply", id)
		said := output(all, id) + jupyter.StringField(g.Content, "evalue")
		if !strings.Contains(said, want) || strings.Contains(said, "container") {
			t.Errorf("the cell says %q", said)
		}
	}
	t.Run("the parent is gone", func(t *testing.T) {
		p, c, id := start(t)
		p.child.kill()
		check(t, c.result(id), id, "The kernel died: the kernel's process ended without a known reason")
	})
	t.Run("both are gone", func(t *testing.T) {
		p, _, id := start(t)
		p.saved(id)
		p.supervisor.kill()
		p.child.kill()
		p.startSupervisor()
		p.startChild()
		check(t, p.attach("ann").result(id), id, "the kernel's process ended while its supervisor was away")
	})
}
