//go:build e2e

package e2e

import (
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestE2E_KubePage uses the operator's page and its actions with kernels in pods: one whose image is pulled, and one
// that no node can take. A second gateway is killed and comes back.
func TestE2E_KubePage(t *testing.T) {
	t.Parallel()
	g := newKubeGateway(t, "--start-wait", "1s")
	g.podSpec("huge", map[string]any{"image": "localhost/kernel-py:dev",
		"resources": map[string]any{"requests": map[string]any{"cpu": "1000"}}})
	fresh := g.cluster.newRegistry(t, "kernel-py") // the image of the first kernel is pulled
	fresh.answer(http.StatusOK)
	g.podSpec("fresh", map[string]any{"image": fresh.image})
	g.users("{name: ann, tokens: [%q]}", "token-ann", "{name: operator, admin: true, tokens: [%q]}", g.token)
	if err := g.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	other := *g.gateway // a second gateway for the same namespace
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr
	if err := other.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.signal(syscall.SIGKILL) }) // an error says that it has ended
	waits := g.startWith("huge", "5ec2e700-0000-4000-8000-0000000000b1", nil)
	runs := g.kernel("fresh")
	g.dial(t, runs, "page", true).says("print('from a pod')", "from a pod\n")
	g.script(3*time.Minute, []string{"EKG_FIRST=" + runs, "EKG_SECOND=" + waits,
		"EKG_OTHER=" + other.url, "EKG_OTHER_CONTROL=" + other.controlWithUsers(),
		"EKG_ARTIFACTS=" + filepath.Join(g.gateway.in.artifacts, t.Name())},
		"node", filepath.Join(g.gateway.in.repository, "e2e/testdata/browser/page-cluster.mjs"))
	g.deleteAll()
}
