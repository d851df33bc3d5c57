//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestE2E_KubeUsers: the cluster identifies users by their tokens. The pod stores the kernel's owner and the users that
// it is shared with, so a later gateway knows them. A deleted service account loses its open connections.
func TestE2E_KubeUsers(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	ns := c.newNamespace(t)
	name := func(account string) string { return "system:serviceaccount:" + ns + ":" + account }
	g := c.newGateway(t, ns, c.kubeconfig, "--auth-token-review", "--auth-token-audience", "ekg", "--auth-cache", "1s",
		"--admin-user", name("root"))
	g.token = ""
	g.start()
	as := func(token string) *inCluster {
		user := g.in(t)
		user.token = token
		return user
	}
	tokens := map[string]string{}
	for _, account := range []string{"ann", "bob", "root"} {
		c.kubectl(t, "", "-n", ns, "create", "serviceaccount", account)
		tokens[account] = strings.TrimSpace(c.kubectl(t, "", "-n", ns, "create", "token", account, "--audience", "ekg"))
	}
	ann, bob, root := as(tokens["ann"]), as(tokens["bob"]), as(tokens["root"])
	elsewhere := strings.TrimSpace(c.kubectl(t, "", "-n", ns, "create", "token", "ann"))
	for what, token := range map[string]string{
		"no token":                   "",
		"a made-up token":            "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.",
		"a token for the API server": elsewhere,
	} {
		if status, b := as(token).ask("GET", "/api/kernels", ""); status != http.StatusForbidden {
			t.Errorf("%s: got %d %s", what, status, b)
		}
	}
	id := ann.startWith("pod", "5ec2e700-0000-4000-8000-0000000000aa", map[string]string{"KERNEL_USERNAME": "root"})
	route := "/api/kernels/" + id
	ann.dial(t, id, "s", true).finds(map[string]string{"KERNEL_USERNAME": name("ann")})
	bob.want(http.StatusNotFound, "GET", route, "", nil)
	bob.want(http.StatusNotFound, "DELETE", route, "", nil)
	if _, err := bob.tryDial(t, id, "s2", true); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("bob's websocket: %v", err)
	}
	ann.want(http.StatusOK, "PATCH", route, fmt.Sprintf(`{"shared_with": [{"user": %q, "right": "read"}]}`, name("bob")),
		nil)
	g.kill()
	g.start() // it knows only what the pod stores
	bob.want(http.StatusOK, "GET", route, "", nil)
	bob.want(http.StatusForbidden, "POST", route+"/interrupt", "", nil)

	ws := bob.open(t, id)
	c.kubectl(t, "", "-n", ns, "delete", "serviceaccount", "bob")
	deleted := time.Now()
	err := wantEnd(t, ws, 40*time.Second) // the API server's cache, --auth-cache, and five seconds
	t.Logf("it ended after %v: %v", time.Since(deleted).Round(100*time.Millisecond), err)
	bob.want(http.StatusForbidden, "GET", route, "", nil)
	root.want(http.StatusNoContent, "DELETE", route, "", nil)
}
