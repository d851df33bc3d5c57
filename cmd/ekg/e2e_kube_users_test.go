//go:build e2e

package main_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// TestE2E_KubeUsers: users are those that the cluster knows by their tokens. A kernel's owner and with whom it is shared is stored with its pod,
// so that a gateway that comes later knows it, and a service account that is deleted loses what it has open.
func TestE2E_KubeUsers(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	ns := c.newNamespace(t)
	name := func(account string) string { return "system:serviceaccount:" + ns + ":" + account }
	g := c.newGateway(t, ns, c.kubeconfig, "--auth-token-review", "--auth-token-audience", "ekg", "--auth-cache", "1s", "--admin-user", name("root"))
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
	for what, token := range map[string]string{"no token": "", "a made-up token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.", "a token for the API server": elsewhere} {
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
	ann.want(http.StatusOK, "PATCH", route, fmt.Sprintf(`{"shared_with": [{"user": %q, "right": "read"}]}`, name("bob")), nil)
	g.kill()
	g.start() // it knows only what is stored with the pod
	bob.want(http.StatusOK, "GET", route, "", nil)
	bob.want(http.StatusForbidden, "POST", route+"/interrupt", "", nil)

	ws, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(g.url, "http")+route+"/channels?session_id=x", http.Header{"Authorization": {"token " + tokens["bob"]}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	c.kubectl(t, "", "-n", ns, "delete", "serviceaccount", "bob")
	deleted := time.Now()
	if err := ws.SetReadDeadline(time.Now().Add(40 * time.Second)); err != nil { // what the API server remembers, --auth-cache, and five seconds
		t.Fatal(err)
	}
	for err == nil {
		_, _, err = ws.ReadMessage()
	}
	if strings.Contains(err.Error(), "timeout") {
		t.Error("the websocket of a service account that is gone lives on")
	}
	t.Logf("it ended after %v: %v", time.Since(deleted).Round(100*time.Millisecond), err)
	bob.want(http.StatusForbidden, "GET", route, "", nil)
	root.want(http.StatusNoContent, "DELETE", route, "", nil)
}
