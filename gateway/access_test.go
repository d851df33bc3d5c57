package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestAccess_Websocket(t *testing.T) {
	g := startUserGateway(t, nil)
	super := g.addShared()
	for user, right := range map[string]string{"ann": "own", "root": "own", "uma": "use", "rita": "read"} {
		conn, _ := g.dialChannels(idA, "?session_id=of-"+user, as(user), func(r *http.Request) {
			r.Header.Set(api.HeaderUser, "root")
			r.Header.Set(api.HeaderRight, api.RightOwn)
			r.Header.Set("Sec-WebSocket-Protocol", "v1.kernel.websocket.jupyter.org, token."+tokenOf(user))
		})
		_ = conn.Close()
		i := strings.Index(super.sent(), "session_id=of-"+user)
		if i < 0 {
			t.Fatalf("%s did not get through", user)
		}
		head := super.sent()[i:]
		for _, line := range []string{api.HeaderUser + ": " + user + "\r\n", api.HeaderRight + ": " + right + "\r\n"} {
			if !strings.Contains(head, line) {
				t.Errorf("%q is missing in %s", line, head)
			}
		}
		if strings.Contains(super.sent(), "canary") {
			t.Errorf("a token has reached the supervisor: %s", super.sent())
		}
	}
	for user, status := range map[string]int{"bob": 404, "stranger": 403} {
		_, resp, _ := g.tryChannels(idA, "", as(user))
		if resp.StatusCode != status {
			t.Errorf("%s: got %d, want %d", user, resp.StatusCode, status)
		}
	}
	t.Run("a kernel without a supervisor", func(t *testing.T) {
		g.fake.addStarting(idB, "")
		g.fake.change(func() { g.fake.kernels[idB].Owner = "ann" })
		if _, resp, _ := g.tryChannels(idB, "", as("bob")); resp.StatusCode != 404 {
			t.Errorf("bob: got %d", resp.StatusCode)
		}
		conn, _ := g.dialChannels(idB, "", as("ann"))
		_ = conn.Close()
	})
}

func TestAccess_ListsShowWhatIsOnesOwnOrShared(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	g.fake.add(idB, "python3", api.Idle) // of the time when there was one owner
	for user, want := range map[string][]string{"ann": {idA}, "rita": {idA}, "uma": {idA}, "bob": {}, "root": {idA, idB}} {
		models := decode[[]kernelModel](t, g.do("GET", "/api/kernels", "", as(user)).want(t, 200, ""))
		ids := []string{}
		for _, m := range models {
			ids = append(ids, m.ID)
			if shown := m.SharedWith != nil; shown != (user == "ann" || user == "root") {
				t.Errorf("%s sees shared_with: %v", user, shown)
			}
		}
		if !slices.Equal(ids, want) {
			t.Errorf("kernels of %s: got %v, want %v", user, ids, want)
		}
		sessions := decode[[]sessionModel](t, g.do("GET", "/api/sessions", "", as(user)).want(t, 200, ""))
		if (len(sessions) == 1) != slices.Contains(want, idA) || len(sessions) > 1 {
			t.Errorf("sessions of %s: %+v", user, sessions)
		}
		g.do("GET", "/api/status", "", as(user)).want(t, 200, fmt.Sprintf(`"kernels":%d`, len(want)))
		g.do("GET", "/api/me", "", as(user)).want(t, 200, `"username":"`+user+`"`)
	}
	// A supervisor stands beside user code and has no say in whose the kernel is.
	g.fake.kernels[idA].super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
			`"execution_state":"busy","owner":"root","shared_with":[{"user":"x","right":"use"}],`+
			`"shared_to_use":true}`, idA)
	})
	g.do("GET", "/api/kernels/"+idA, "", as("ann")).want(t, 200,
		`"owner":"ann","shared_with":[{"user":"rita","right":"read"},{"group":"team","right":"use"}]`)
	r := g.do("GET", "/api/kernels/"+idA, "", as("rita")).want(t, 200, `"owner":"ann"`)
	if strings.Contains(r.body, "shared_") {
		t.Errorf("rita sees %s", r.body)
	}
}

func TestAccess_KernelsBelongToWhoStartsThem(t *testing.T) {
	g := startUserGateway(t, nil)
	for _, body := range []string{`{}`, `{"env": {"KERNEL_USERNAME": "ann"}}`, `{"env": null}`} {
		g.do("POST", "/api/kernels", body, as("bob")).want(t, 201, `"owner":"bob"`)
	}
	g.do("POST", "/api/sessions", `{"path": "x", "type": "notebook"}`, as("bob")).want(t, 201, `"owner":"bob"`)
	for _, req := range g.fake.requests() {
		if req.Owner != "bob" || req.Env["KERNEL_USERNAME"] != "bob" {
			t.Errorf("started for %q as %v", req.Owner, req.Env)
		}
	}
	g.addShared()
	g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`, as("ann")).want(t, 201, idA)
	for _, user := range []string{"bob", "uma", "rita", "root"} {
		g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`, as(user)).want(t, 409,
			`"message":"The kernel id is in use by another kernel."`)
	}
	t.Run("with one owner the name is a label", func(t *testing.T) {
		g := startGateway(t, nil)
		g.do("POST", "/api/kernels", `{"env": {"KERNEL_USERNAME": "ann"}}`).want(t, 201, "")
		if req := g.fake.requests()[0]; req.Owner != "" || req.Env["KERNEL_USERNAME"] != "ann" {
			t.Errorf("started %+v", req)
		}
	})
}

// TestAccess_Sessions: ids in bodies are checked like ids in paths.
func TestAccess_Sessions(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	create := `{"path": "a.ipynb", "type": "notebook", "kernel": {"id": "` + idA + `"}}`
	t.Run("another user's kernel is treated like one that does not exist", func(t *testing.T) {
		m := decode[sessionModel](t, g.do("POST", "/api/sessions", create, as("bob")).want(t, 201, ""))
		if m.Kernel.ID == idA || m.ID == "s1" || m.Kernel.Owner != "bob" {
			t.Errorf("bob got %+v", m)
		}
		own := "/api/sessions/" + m.ID
		g.do("PATCH", own, `{"kernel": {"id": "`+idA+`"}}`, as("bob")).want(t, 400, "No such kernel: "+idA)
		if len(g.fake.stopped()) > 0 {
			t.Errorf("stopped %v", g.fake.stopped())
		}
		again := decode[sessionModel](t, g.do("POST", "/api/sessions", create, as("bob")).want(t, 201, ""))
		if again.ID != m.ID {
			t.Errorf("bob's own path is another session: %+v", again)
		}
	})
	t.Run("a reader stores nothing with a kernel", func(t *testing.T) {
		g.do("POST", "/api/sessions", create, as("rita")).want(t, 403, "only look")
	})
	t.Run("a user with the right to use shares its owner's session", func(t *testing.T) {
		g.do("POST", "/api/sessions", create, as("uma")).want(t, 201, `"id":"s1"`)
		m := decode[sessionModel](t,
			g.do("POST", "/api/sessions", `{"path": "a.ipynb", "type": "notebook"}`, as("uma")).want(t, 201, ""))
		if m.Kernel.ID == idA {
			t.Error("by the path alone, uma got ann's kernel")
		}
	})
	g.do("POST", "/api/sessions", create, as("ann")).want(t, 201, `"id":"s1"`)
}

// TestAccess_KernelsThatAreGone: only the owner and admins see why a kernel is gone.
func TestAccess_KernelsThatAreGone(t *testing.T) {
	g := startUserGateway(t, nil)
	g.fake.gone[idA] = &launcher.GoneError{ID: idA, Owner: "ann", Reason: "secret of ann", At: time.Now()}
	g.fake.gone[idB] = &launcher.GoneError{ID: idB, Reason: "secret of an unknown user", At: time.Now()}
	for user, knows := range map[string]bool{"ann": true, "root": true, "bob": false} {
		for _, route := range []string{"", "/channels", "/log"} {
			r := g.do("GET", "/api/kernels/"+idA+route, "", as(user), asUpgrade).want(t, 404, "")
			if strings.Contains(r.body, "secret") != knows {
				t.Errorf("%s%s: %s", user, route, r.body)
			}
		}
		r := g.do("GET", "/api/kernels/"+idB, "", as(user)).want(t, 404, "")
		if strings.Contains(r.body, "secret") != (user == "root") {
			t.Errorf("%s of one without an owner: %s", user, r.body)
		}
	}
}

// TestAccess_Claims: only requests of users who may read the kernel claim it.
func TestAccess_Claims(t *testing.T) {
	path := "/api/kernels/" + idA
	requests := [][3]string{
		{"GET", path, ""}, {"GET", path + "/channels", ""}, {"GET", path + "/log", ""},
		{"PATCH", path, `{"shared_with": []}`},
		{"POST", path + "/interrupt", ""}, {"POST", path + "/restart", ""},
		{"POST", "/api/kernels", `{"kernel_id": "` + idA + `"}`},
		{"POST", "/api/sessions", `{"path": "x", "type": "notebook", "kernel": {"id": "` + idA + `"}}`},
		{"PATCH", "/api/sessions/s9", `{"kernel": {"id": "` + idA + `"}}`},
		{"GET", "/api/kernels", ""}, {"GET", "/api/sessions", ""},
		{"DELETE", path, ""},
	}
	for user, claims := range map[string]int{"bob": 0, "stranger": 0, "rita": 2, "ann": 10} {
		g := startUserGateway(t, nil)
		g.addShared()
		g.fake.add(idB, "python3", api.Idle)
		g.fake.change(func() {
			g.fake.kernels[idB].Owner = user
			g.fake.kernels[idB].Sessions = []launcher.Session{{ID: "s9", User: user, Path: "b.ipynb"}}
		})
		for _, r := range requests {
			g.do(r[0], r[1], r[2], as(user))
		}
		// The last claim may follow its answer.
		poll.Until(t, user+" has claimed it", func() bool { return g.fake.claimed(idA) >= claims })
		if n := g.fake.claimed(idA); n != claims {
			t.Errorf("%s has claimed ann's kernel %d times, want %d", user, n, claims)
		}
	}
}

// TestAccess_Ended: each user sees which of their own kernels were culled or died.
func TestAccess_Ended(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	g.fake.ended = []launcher.EndedKernel{
		// shared with rita and uma, and still shown as dead
		{ID: idA, SpecName: "python3", Owner: "ann", Reason: "it was idle for 1h0m0s", Culled: true, At: time.Now()},
		{ID: idB, SpecName: "r", Owner: "bob", Reason: "it was busy for 9h0m0s", Culled: true, At: time.Now()},
		// of the time when there was one owner
		{ID: idUnknown, SpecName: "r", Reason: "it was there for 72h0m0s", Culled: true, At: time.Now()},
	}
	const died = "8b7c1bd5-0c4c-4f5e-9a51-0d5b8a2f7e11"
	g.fake.ended = append(g.fake.ended, launcher.EndedKernel{ID: died, Owner: "bob", Reason: "it died", At: time.Now()})
	for user, want := range map[string][]string{
		"ann": {idA}, "bob": {idB}, "rita": {}, "uma": {}, "root": {idA, idB, idUnknown},
	} {
		for _, query := range []string{"?culled=1", "?culled=true", "?culled=1&culled=0&x=y"} {
			ids := []string{}
			for _, m := range decode[[]kernels.Ended](t, g.do("GET", "/api/kernels"+query, "", as(user)).want(t, 200, "")) {
				ids = append(ids, m.ID)
			}
			if !slices.Equal(ids, want) {
				t.Errorf("%s of %s: got %v, want %v", query, user, ids, want)
			}
		}
	}
	for user, want := range map[string]int{"ann": 1, "bob": 2, "rita": 0, "root": 4} {
		all := decode[[]kernels.Ended](t, g.do("GET", "/api/kernels?ended=1", "", as(user)).want(t, 200, ""))
		wrong := func(m kernels.Ended) bool { return (m.ID == died) != (m.CulledAt == "") }
		if len(all) != want || slices.ContainsFunc(all, wrong) {
			t.Errorf("ended kernels of %s: %+v", user, all)
		}
	}
	g.do("GET", "/api/kernels?ended=1", "", as("stranger")).want(t, 403, "no valid token")
	g.do("GET", "/api/kernels?culled=1", "", as("stranger")).want(t, 403, "no valid token")
}

func TestAccess_SourceUnavailable(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.Users = awayUsers{o.Users} })
	g.addShared()
	for _, path := range []string{
		"/api/kernels", "/api/kernels/" + idA, "/api/kernels/" + idA + "/channels", "/api/kernels/" + idUnknown,
	} {
		g.do("GET", path, "", as("ann"), asUpgrade).want(t, 503, "Try again")
	}
	g.do("GET", "/api", "").want(t, 200, "")
}
