package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// TestJobs_OwnerGone: queued jobs of an owner who was removed from the users file, or from the hub, fail when a gateway
// would start them. While the hub is away, they wait.
func TestJobs_OwnerGone(t *testing.T) {
	var state atomic.Value
	state.Store("up")
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const user = `{"kind": "user", "name": "cat", "scopes": ["access:services"]}`
		switch is := state.Load(); {
		case is == "away":
			w.WriteHeader(http.StatusServiceUnavailable)
		case is == "up" && r.Header.Get("Authorization") == "token canary-cat" && r.URL.Path == "/hub/api/user",
			is == "up" && r.Header.Get("Authorization") == "token service" && r.URL.Path == "/hub/api/users/cat":
			_, _ = fmt.Fprint(w, user)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprint(w, `{"status": 404, "message": "Not Found"}`)
		}
	}))
	defer hub.Close()
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeUsers(t, path, nil)
	f, err := identity.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	source, err := identity.NewJupyterHub(hub.URL+"/hub/api", "ekg", "service")
	if err != nil {
		t.Fatal(err)
	}
	users, err := identity.New(identity.Options{File: f, Sources: []identity.Source{source},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, func(o *Options) { o.Token, o.Users = "", users })
	paths := map[string]string{}
	for _, user := range []string{"ann", "bob", "cat"} {
		made := g.do("POST", "/api/jobs", `{"kernelspec":"python3","notebook":{"nbformat":4,"nbformat_minor":5,`+
			`"metadata":{},"cells":[]}}`, as(user)).want(t, 201, "queued")
		paths[user] = strings.TrimPrefix(made.Header.Get("Location"), g.base)
	}
	writeUsers(t, path, func(text string) string { return strings.Replace(text, "name: ann", "name: new", 1) })
	users.Refresh()
	state.Store("away")
	g.runJobs()
	has := func(user, want, reason string) {
		t.Helper()
		var job struct{ State, Reason string }
		poll.Until(t, fmt.Sprintf("the job of %s is %s %s", user, want, reason), func() bool {
			body := g.do("GET", paths[user], "", as("root")).want(t, 200, "").body
			return json.Unmarshal([]byte(body), &job) == nil && strings.Contains(want, job.State) &&
				strings.Contains(job.Reason, reason)
		})
	}
	const gone, undecided = "its owner is not a user of this gateway any more",
		"it waits until the gateway can find out whether its owner is still a user"
	has("bob", "starting running succeeded", "")
	has("cat", "queued", undecided)
	has("ann", "queued", undecided) // the hub may have her
	state.Store("removed")
	has("ann", "failed", gone)
	has("cat", "failed", gone)
}
