//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"
)

// TestE2E_Relay: programs that know only kernelspecs and ZeroMQ use a kernel of the gateway, by a kernelspec on their
// machine. The token is stored by `ekg login`.
func TestE2E_Relay(t *testing.T) {
	t.Parallel()
	g, control := killable(t)
	g.finds = []string{"JUPYTER_DATA_DIR=" + filepath.Join(g.dir, "jupyter")}
	login := g.command("login", g.url+"/?token="+g.token)
	if out, err := login.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if code, _, errs := g.prints("kernelspec", "add", "python3", "--name", "far", "--gateway-url", g.url); code != 0 {
		t.Fatal(errs)
	}
	g.script(10*time.Minute, append(control, g.finds...), filepath.Join(g.in.dir, "lab/bin/python"),
		filepath.Join(g.in.repository, "e2e/testdata/python/relays.py"), "far")
}
