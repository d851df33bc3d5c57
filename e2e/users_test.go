//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hub is a JupyterHub with its own database. Only its API answers.
type hub struct {
	t     *testing.T
	api   string
	token string // of the service that creates users and tokens
	stop  func()
}

func startHub(t *testing.T) *hub {
	t.Helper()
	in := theInstallation(t)
	dir := t.TempDir()
	_, port, _ := strings.Cut(freeAddress(t, "127.0.0.1"), ":")
	h := &hub{t: t, api: "http://127.0.0.1:" + port + "/hub/api", token: "e2e-service-6c1f0a9b8d7e5f43"}
	log, err := os.Create(filepath.Join(in.artifacts, t.Name()+"-hub.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(in.dir, "jupyterhub/bin/python"), "-m", "jupyterhub",
		"-f", filepath.Join(in.repository, "e2e/testdata/python/jupyterhub_config.py"))
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + dir,
		"LANG=C.UTF-8",
		"HUB_PORT=" + port,
		"HUB_DIR=" + dir,
		"HUB_TOKEN=" + h.token,
		"PYTHONDONTWRITEBYTECODE=1",
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	h.stop = func() {
		if !stopped {
			stopped = true
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it may already have ended
			_ = cmd.Wait()                                      // it was killed
			_ = log.Close()                                     // the log's content is already written
		}
	}
	t.Cleanup(h.stop)
	eventually(t, 60*time.Second, "the hub answers", func() error { return answers200(h.api + "/") })
	return h
}

// ask sends a request of the hub's service. It decodes the answer into out unless out is nil.
func (h *hub) ask(method, path, body string, out any) {
	h.t.Helper()
	req, err := http.NewRequest(method, h.api+path, strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "token "+h.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 400 && resp.StatusCode != http.StatusConflict {
		h.t.Fatalf("%s %s: %s %s %v", method, path, resp.Status, b, err)
	}
	if out != nil {
		if err := json.Unmarshal(b, out); err != nil {
			h.t.Fatalf("%s %s: %v in %s", method, path, err, b)
		}
	}
}

// hubToken is a token that the hub has created.
type hubToken struct {
	ID, Token string
}

// makeToken creates a token for a user, and the user if there is none.
func (h *hub) makeToken(user, request string) hubToken {
	h.t.Helper()
	h.ask("POST", "/users/"+user, "", nil) // 409 if the user exists
	var created hubToken
	h.ask("POST", "/users/"+user+"/tokens", request, &created)
	return created
}

// TestE2E_Hub: users of a real hub have their own kernels and share them with groups of the hub. They lose access soon
// after the hub has revoked their token. They keep it while the hub does not answer.
func TestE2E_Hub(t *testing.T) {
	h := startHub(t)
	g := prepare(t, "", "--hub-api-url", h.api, "--hub-service", "ekg", "--auth-cache", "1s", "--admin-user", "root",
		"--authorized-user", "ann", "--authorized-user", "bob")
	g.token = ""
	g.start()
	as := func(token string) *gateway {
		user := *g
		user.token = token
		return &user
	}
	annToken := h.makeToken("ann", "{}")
	ann, bob, root := as(annToken.Token), as(h.makeToken("bob", "{}").Token), as(h.makeToken("root", "{}").Token)
	for what, token := range map[string]string{
		"no token":                            "",
		"a made-up token":                     "0123456789abcdef0123456789abcdef",
		"the service's own token":             h.token,
		"a token that may only name its user": h.makeToken("ann", `{"scopes": ["read:users:name!user"]}`).Token,
	} {
		if status, b := as(token).ask("GET", "/api/kernels", ""); status != http.StatusForbidden {
			t.Errorf("%s: got %d %s", what, status, b)
		}
	}
	// Only two users may start kernels.
	carl := as(h.makeToken("carl", "{}").Token)
	if status, b := carl.ask("POST", "/api/kernels", `{"name": "python3"}`); status != http.StatusForbidden ||
		!strings.Contains(string(b), "may not be started by user carl") {
		t.Errorf("carl's kernel: got %d %s", status, b)
	}
	var me struct{ Identity struct{ Username string } }
	ann.want(http.StatusOK, "GET", "/api/me", "", &me)
	if me.Identity.Username != "ann" {
		t.Errorf("ann is %+v", me)
	}
	id := bob.kernel("python3")
	route := "/api/kernels/" + id
	ann.want(http.StatusNotFound, "GET", route, "", nil)
	ann.want(http.StatusNotFound, "DELETE", route, "", nil)
	root.want(http.StatusOK, "GET", route, "", nil)
	// At the hub ann is a member of the group.
	bob.want(http.StatusOK, "PATCH", route, `{"shared_with": [{"group": "team", "right": "read"}]}`, nil)
	ann.want(http.StatusOK, "GET", route, "", nil)
	ann.want(http.StatusForbidden, "POST", route+"/interrupt", "", nil)

	ws := ann.open(t, id)
	h.ask("DELETE", "/users/ann/tokens/"+annToken.ID, "", nil)
	err := wantEnd(t, ws, 10*time.Second) // --auth-cache, and five seconds
	t.Logf("the websocket of the revoked token: %v", err)
	ann.want(http.StatusForbidden, "GET", route, "", nil)

	h.stop()
	g.eventually(10*time.Second, "the hub's last answer has expired", func() error {
		if status, b := bob.ask("GET", route, ""); status != http.StatusServiceUnavailable {
			return fmt.Errorf("got %d %s", status, b)
		}
		return nil
	})
	if b, err := os.ReadFile(g.log); err != nil || strings.Contains(string(b), annToken.Token) {
		t.Errorf("ann's token is in the log: %v", err)
	}
}
