//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// hostileText would run if a page parsed it as HTML.
const hostileText = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

// TestE2E_Page uses the operator's page in Chromium with real kernels, below a base URL: the token, the list, actions,
// a gateway that is killed and comes back, texts that look like HTML, accessibility, and thousands of rows.
func TestE2E_Page(t *testing.T) {
	g := newPageGateway(t)
	// The script asks for what only this process can do.
	control := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error
		switch r.URL.Path {
		case "/kill":
			err = g.signal(syscall.SIGKILL)
		case "/start":
			err = g.tryStartWithUsers()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	t.Cleanup(control.Close)
	first, second := g.kernel("python3"), g.kernel("python3")
	g.dial(t, first, "page", true).says(fmt.Sprintf("print(%q)", hostileText), hostileText+"\n")
	g.script(5*time.Minute, []string{
		"EKG_CONTROL=" + control.URL, "EKG_FIRST=" + first, "EKG_SECOND=" + second, "EKG_HOSTILE=" + hostileText,
		"EKG_BUILT=" + filepath.Join(g.in.repository, "gateway/page/built"),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/page.mjs"))
}

// newPageGateway starts a gateway with users below a base URL. Its token is an admin's.
func newPageGateway(t *testing.T) *gateway {
	t.Helper()
	g := prepare(t, "")
	g.moveTo("127.0.0.2") // while the gateway is down, no other program takes its port
	file := filepath.Join(g.dir, "users.yaml")
	users := fmt.Sprintf("users:\n- {name: ann, tokens: [%q]}\n- {name: operator, admin: true, tokens: [%q]}\n",
		identity.Hash("token-ann"), identity.Hash(g.token))
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	g.args = append(g.args, "--users-file", file, "--base-url", "/gw", "--max-kernels-per-user", "7")
	g.url += "/gw"
	if err := g.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	return g
}

// tryStartWithUsers is tryStart for a gateway with a users file, which has no option for the token of its admin.
func (g *gateway) tryStartWithUsers() error {
	admin := g.token
	g.token = ""
	defer func() { g.token = admin }()
	return g.tryStart()
}
