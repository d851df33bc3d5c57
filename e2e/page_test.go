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
	other := *g // a second gateway with the same state
	other.addr = freeAddress(t, "127.0.0.1")
	other.url = "http://" + other.addr + "/gw"
	if err := other.tryStartWithUsers(); err != nil {
		t.Fatal(err)
	}
	control, otherControl := g.controlWithUsers(), other.controlWithUsers()
	first, second := g.kernel("python3"), g.kernel("python3")
	g.dial(t, first, "page", true).says(fmt.Sprintf("print(%q)", hostileText), hostileText+"\n")
	g.dial(t, second, "page", true).says("import itertools, threading, time\n"+
		"def ticks():\n    for i in itertools.count():\n        print(f'tick {i}', flush=True)\n        time.sleep(0.5)\n"+
		"threading.Thread(target=ticks, daemon=True).start()", "tick 0\n")
	g.script(5*time.Minute, []string{
		"EKG_CONTROL=" + control, "EKG_FIRST=" + first, "EKG_SECOND=" + second, "EKG_HOSTILE=" + hostileText,
		"EKG_OTHER=" + other.url, "EKG_OTHER_CONTROL=" + otherControl,
		"EKG_BUILT=" + filepath.Join(g.in.repository, "gateway/page/built"),
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/page.mjs"))
}

// newPageGateway starts a gateway with users below a base URL. Its token is an admin's.
func newPageGateway(t *testing.T) *gateway {
	t.Helper()
	g := prepare(t, "")
	g.moveTo("127.0.0.2") // while the gateway is down, no other program takes its port
	g.users("{name: ann, tokens: [%q]}", "token-ann", "{name: operator, admin: true, tokens: [%q]}", g.token)
	g.args = append(g.args, "--base-url", "/gw", "--max-kernels-per-user", "7")
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

// users writes the gateway's file of users: pairs of an entry with a place for the hash of a token, and that token.
func (g *gateway) users(entries ...string) {
	g.t.Helper()
	text := "users:\n"
	for i := 0; i < len(entries); i += 2 {
		text += "- " + fmt.Sprintf(entries[i], identity.Hash(entries[i+1])) + "\n"
	}
	file := filepath.Join(g.dir, "users.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
	g.args = append(g.args, "--users-file", file)
}

// controlWithUsers lets a script kill the gateway and start it again: it asks for what only this process can do.
func (g *gateway) controlWithUsers() string {
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
	g.t.Cleanup(control.Close)
	return control.URL
}
