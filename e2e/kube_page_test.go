//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"
	"time"
)

// TestE2E_KubePage uses the operator's page with kernels in pods: one that runs, and one that no node can take.
func TestE2E_KubePage(t *testing.T) {
	t.Parallel()
	g := newKubeGateway(t, "--start-wait", "1s")
	g.podSpec("huge", map[string]any{"image": "localhost/kernel-py:dev",
		"resources": map[string]any{"requests": map[string]any{"cpu": "1000"}}})
	g.start()
	waits := g.startWith("huge", "5ec2e700-0000-4000-8000-0000000000b1", nil)
	runs := g.kernel("pod")
	g.dial(t, runs, "page", true).says("print('from a pod')", "from a pod\n")
	g.script(2*time.Minute, []string{"EKG_FIRST=" + runs, "EKG_SECOND=" + waits, "EKG_CLUSTER=1",
		"EKG_ARTIFACTS=" + filepath.Join(g.gateway.in.artifacts, t.Name())},
		"node", filepath.Join(g.gateway.in.repository, "e2e/testdata/browser/page.mjs"))
	g.deleteAll()
}
