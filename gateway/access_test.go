package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The users of these tests, each with a token of the form canary-NAME. Ann owns idA, of which rita may read and the
// group team may use; bob has nothing to do with it.
const testUsers = `users:
- {name: ann, tokens: ["%s"]}
- {name: bob, tokens: ["%s"]}
- {name: rita, tokens: ["%s"]}
- {name: uma, tokens: ["%s"], groups: [team]}
- {name: root, tokens: ["%s"], admin: true}
`

func tokenOf(user string) string { return "canary-" + user }

// writeUsers writes the file, with what change makes of it.
func writeUsers(t testing.TB, path string, change func(string) string) {
	t.Helper()
	hash := func(name string) any { return identity.Hash(tokenOf(name)) }
	text := fmt.Sprintf(testUsers, hash("ann"), hash("bob"), hash("rita"), hash("uma"), hash("root"))
	if change != nil {
		text = change(text)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// userGateway is a gateway with users.
type userGateway struct {
	*testGateway
	file string
}

func startUserGateway(t testing.TB, change func(*Options)) *userGateway {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.yaml")
	writeUsers(t, path, nil)
	f, err := identity.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	users, err := identity.New(identity.Options{File: f, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, func(o *Options) {
		o.Token, o.Users = "", users
		if change != nil {
			change(o)
		}
	})
	return &userGateway{g, path}
}

// addShared adds idA as ann's, shared as testUsers says, with the session s1.
func (g *userGateway) addShared() *fakeSupervisor {
	super := g.fake.add(idA, "python3", api.Idle)
	g.fake.change(func() {
		k := g.fake.kernels[idA]
		k.Owner = "ann"
		k.SharedWith = []launcher.Grant{{User: "rita", Right: launcher.Read}, {Group: "team", Right: launcher.Use}}
		k.Sessions = []launcher.Session{{ID: "s1", Path: "a.ipynb", Name: "a", Type: "notebook"}}
	})
	return super
}

// as makes a request one of a user.
func as(user string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "token "+tokenOf(user)) }
}

// mayAsk says of each route who may ask for it. It is written down once more, so that a route whose rule is changed, or
// that is new, has to be thought of twice.
var mayAsk = map[string]access{
	"GET /healthz": public, "GET /readyz": public, "GET /api": public,
	"POST /api/security/csp-report": public,
	"GET /api/status":               anyUser, "GET /api/me": anyUser, "GET /api/spec.yaml": anyUser,
	"GET /api/kernelspecs": anyUser, "GET /api/kernelspecs/{name}": anyUser, "GET /kernelspecs/{name}/{file...}": anyUser,
	"GET /api/kernels": anyUser, "POST /api/kernels": anyUser,
	"GET /api/kernels/{id}": readKernel, "GET /api/kernels/{id}/channels": readKernel,
	"GET /api/kernels/{id}/log":        useKernel,
	"POST /api/kernels/{id}/interrupt": useKernel, "POST /api/kernels/{id}/restart": useKernel,
	"PATCH /api/kernels/{id}": ownKernel, "DELETE /api/kernels/{id}": ownKernel,
	"GET /api/sessions": anyUser, "POST /api/sessions": anyUser,
	"GET /api/sessions/{session}": readKernel, "PATCH /api/sessions/{session}": ownKernel,
	"DELETE /api/sessions/{session}": ownKernel,
}

// has says what each user may do with ann's kernel.
var has = map[string]access{"ann": ownKernel, "root": ownKernel, "uma": useKernel, "rita": readKernel, "bob": anyUser,
	"nobody": public, "": public}

// Every user asks for every route of the router by every method, with the token in each place where one can be.
func TestAccess_UserRouteMethod(t *testing.T) {
	audit := &transcript.Buffer{}
	g := startUserGateway(t, func(o *Options) { o.Audit = audit })
	routes := map[string][]route{}
	for _, rt := range g.routes() {
		switch need, ok := mayAsk[rt.method+" "+rt.pattern]; {
		case !ok:
			t.Errorf("%s %s is new: say in mayAsk who may ask for it", rt.method, rt.pattern)
		case need != rt.access:
			t.Errorf("%s %s: its access is %d, want %d", rt.method, rt.pattern, rt.access, need)
		}
		routes[rt.pattern] = append(routes[rt.pattern], rt)
	}
	carriers := map[string]func(*http.Request, string){
		"token":  func(r *http.Request, t string) { r.Header.Set("Authorization", "token "+t) },
		"bearer": func(r *http.Request, t string) { r.Header.Set("Authorization", "Bearer "+t) },
		"query":  func(r *http.Request, t string) { r.URL.RawQuery += "&token=" + t },
		"cookie": func(r *http.Request, t string) { r.AddCookie(&http.Cookie{Name: "token", Value: t}) },
		"upgrade": func(r *http.Request, t string) {
			r.Header.Set("Authorization", "token "+t)
			asUpgrade(r)
		},
		"upgrade, query": func(r *http.Request, t string) {
			r.URL.RawQuery += "&token=" + t
			asUpgrade(r)
		},
		"identity headers": func(r *http.Request, t string) { // of which none counts
			r.Header.Set("Authorization", "token "+t)
			for _, name := range []string{api.HeaderUser, "X-Forwarded-User", "X-Remote-User", "Remote-User",
				"KERNEL_USERNAME"} {
				r.Header.Set(name, "ann")
			}
			r.Header.Set(api.HeaderRight, api.RightUse)
		},
	}
	// What would be done if nothing refused it.
	bodies := map[string]string{"PATCH /api/kernels/{id}": `{"keep_until": null}`,
		"PATCH /api/sessions/{session}": `{"name": "x"}`}
	var super *fakeSupervisor
	count := 0
	routes["/api/kernels?culled=1"] = routes["/api/kernels"]
	for pattern, of := range routes {
		path := of[0].path()
		pattern, query, asked := strings.Cut(pattern, "?")
		if asked {
			path += "?" + query
		}
		unknown := strings.NewReplacer(idA, idUnknown, "s1", "s2").Replace(path)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"} {
			need := undecided // no such method
			for _, rt := range of {
				if rt.method == method || rt.method == "GET" && method == "HEAD" {
					need = mayAsk[rt.method+" "+pattern]
				}
			}
			for user := range has {
				for name, carry := range carriers {
					level := has[user]
					if name == "cookie" {
						level = public
					}
					if _, err := g.fake.Kernel(t.Context(), idA); err != nil {
						super = g.addShared()
					}
					before, stopped, started, claims := super.sent(), len(g.fake.stopped()), len(g.fake.requests()),
						g.fake.claimed(idA)
					ask := func(path string) reply {
						return g.do(method, path, bodies[method+" "+pattern], func(r *http.Request) {
							r.Header.Del("Authorization")
							if user != "" {
								carry(r, tokenOf(user))
							}
						})
					}
					upgrades := strings.HasPrefix(name, "upgrade") && strings.HasSuffix(pattern, "/channels") && method == "GET" &&
						level >= readKernel
					if upgrades {
						continue // TestAccess_Websocket
					}
					got := ask(path)
					count++
					where := fmt.Sprintf("%s %s by %q with %s", method, pattern, user, name)
					open := mayAsk[of[0].method+" "+pattern] == public
					want := 0 // whatever its handler says, but no refusal
					switch {
					case method == "OPTIONS":
						want = 204
					case level == public && !open:
						want = 403
					case need == undecided:
						want = 405
					case need.ofKernel() && level < readKernel:
						want = 404
						theirs, none := got, ask(unknown)
						if !sameAnswer(theirs, none) {
							t.Errorf("%s: the answer tells that the kernel exists:\n%v %s\n%v %s", where, theirs.Header, theirs.body,
								none.Header, none.body)
						}
					case level < need:
						want = 403
					}
					refused := want != 0
					switch {
					case refused && got.StatusCode != want:
						t.Errorf("%s: got %d %s, want %d", where, got.StatusCode, got.body, want)
					case !refused && (got.StatusCode == 403 || got.StatusCode == 404 || got.StatusCode == 401 ||
						got.StatusCode >= 500 && !strings.HasSuffix(pattern, "/log") && pattern != "/readyz"):
						t.Errorf("%s: got %d %s, which is a refusal", where, got.StatusCode, got.body)
					}
					if refused && (super.sent() != before || len(g.fake.stopped()) != stopped || len(g.fake.requests()) != started ||
						g.fake.claimed(idA) != claims) {
						t.Errorf("%s: it was refused, but something was done", where)
					}
				}
			}
		}
	}
	if count < 5000 {
		t.Errorf("only %d requests were made", count)
	}
	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for name, text := range map[string]string{"log": g.log.String(), "audit log": audit.String(),
		"metrics": w.Body.String()} {
		if len(text) < 1000 || strings.Contains(text, "canary") {
			t.Errorf("a token is in the %s, or nothing (%d bytes)", name, len(text))
		}
	}
	// Whoever may read metrics need not know who there is, and nobody knows how many there will be.
	for line := range strings.Lines(w.Body.String()) {
		for user := range has {
			if user != "" && strings.Contains(line, `="`+user+`"`) {
				t.Errorf("a label names a user: %s", line)
			}
		}
	}
}

// sameAnswer reports whether two answers differ in nothing but the id that was asked for.
func sameAnswer(a, b reply) bool {
	same := strings.NewReplacer(idUnknown, idA, `\"s2\"`, `\"s1\"`)
	ha, hb := a.Header.Clone(), b.Header.Clone()
	for _, h := range []http.Header{ha, hb} {
		h.Del("X-Request-Id")
		h.Del("Date")
	}
	return a.StatusCode == b.StatusCode && a.body == same.Replace(b.body) &&
		maps.EqualFunc(ha, hb, func(x, y []string) bool { return slices.Equal(x, y) })
}

func TestAccess_Websocket(t *testing.T) {
	g := startUserGateway(t, nil)
	super := g.addShared()
	for user, right := range map[string]string{"ann": "use", "root": "use", "uma": "use", "rita": "read"} {
		conn, _ := g.dialChannels(idA, "?session_id=of-"+user, as(user), func(r *http.Request) {
			r.Header.Set(api.HeaderUser, "root")
			r.Header.Set(api.HeaderRight, api.RightUse)
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
	for user, status := range map[string]int{"bob": 404, "nobody": 403} {
		_, resp, _ := g.tryChannels(idA, "", as(user))
		if resp.StatusCode != status {
			t.Errorf("%s: got %d, want %d", user, resp.StatusCode, status)
		}
	}
	t.Run("also of a kernel that has no supervisor yet", func(t *testing.T) {
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
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"busy","owner":"root","shared_with":[{"user":"x","right":"use"}]}`, idA)
	})
	g.do("GET", "/api/kernels/"+idA, "", as("ann")).want(t, 200,
		`"owner":"ann","shared_with":[{"user":"rita","right":"read"},{"group":"team","right":"use"}]`)
	if r := g.do("GET", "/api/kernels/"+idA, "", as("rita")).want(t, 200, `"owner":"ann"`); strings.Contains(r.body,
		"shared_with") {
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

// Ids in bodies are checked as those in paths are.
func TestAccess_Sessions(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	create := `{"path": "a.ipynb", "type": "notebook", "kernel": {"id": "` + idA + `"}}`
	t.Run("of somebody else's kernel none is made, as of one that does not exist", func(t *testing.T) {
		m := decode[sessionModel](t, g.do("POST", "/api/sessions", create, as("bob")).want(t, 201, ""))
		if m.Kernel.ID == idA || m.ID == "s1" || m.Kernel.Owner != "bob" {
			t.Errorf("bob got %+v", m)
		}
		own := "/api/sessions/" + m.ID
		g.do("PATCH", own, `{"kernel": {"id": "`+idA+`"}}`, as("bob")).want(t, 400, "No such kernel: "+idA)
		if len(g.fake.stopped()) > 0 {
			t.Errorf("stopped %v", g.fake.stopped())
		}
		if again := decode[sessionModel](t,
			g.do("POST", "/api/sessions", create, as("bob")).want(t, 201, "")); again.ID != m.ID {
			t.Errorf("bob's own path is another session: %+v", again)
		}
	})
	t.Run("a reader stores nothing with a kernel", func(t *testing.T) {
		g.do("POST", "/api/sessions", create, as("rita")).want(t, 403, "only look")
	})
	t.Run("who may use it shares its owner's session", func(t *testing.T) {
		g.do("POST", "/api/sessions", create, as("uma")).want(t, 201, `"id":"s1"`)
		m := decode[sessionModel](t,
			g.do("POST", "/api/sessions", `{"path": "a.ipynb", "type": "notebook"}`, as("uma")).want(t, 201, ""))
		if m.Kernel.ID == idA {
			t.Error("by the path alone, uma got ann's kernel")
		}
	})
	g.do("POST", "/api/sessions", create, as("ann")).want(t, 201, `"id":"s1"`)
}

// Why a kernel is gone is for those who had it.
func TestAccess_KernelsThatAreGone(t *testing.T) {
	g := startUserGateway(t, nil)
	g.fake.gone[idA] = &launcher.GoneError{ID: idA, Owner: "ann", Reason: "secret of ann", At: time.Now()}
	g.fake.gone[idB] = &launcher.GoneError{ID: idB, Reason: "secret of somebody", At: time.Now()}
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

// A kernel is claimed by those who may have it, and by nobody else.
func TestAccess_Claims(t *testing.T) {
	path := "/api/kernels/" + idA
	asks := [][3]string{{"GET", path, ""}, {"GET", path + "/channels", ""}, {"GET", path + "/log", ""},
		{"PATCH", path, `{"shared_with": []}`},
		{"POST", path + "/interrupt", ""}, {"POST", path + "/restart", ""},
		{"POST", "/api/kernels", `{"kernel_id": "` + idA + `"}`},
		{"POST", "/api/sessions", `{"path": "x", "type": "notebook", "kernel": {"id": "` + idA + `"}}`},
		{"PATCH", "/api/sessions/s9", `{"kernel": {"id": "` + idA + `"}}`}, {"GET", "/api/kernels", ""},
		{"GET", "/api/sessions", ""},
		{"DELETE", path, ""}}
	for user, claims := range map[string]int{"bob": 0, "nobody": 0, "rita": 2, "ann": 10} {
		g := startUserGateway(t, nil)
		g.addShared()
		g.fake.add(idB, "python3", api.Idle)
		g.fake.change(func() {
			g.fake.kernels[idB].Owner = user
			g.fake.kernels[idB].Sessions = []launcher.Session{{ID: "s9", Path: "b.ipynb"}}
		})
		for _, ask := range asks {
			g.do(ask[0], ask[1], ask[2], as(user))
		}
		// the last one behind its answer
		eventually(t, user+" has claimed it", func() bool { return g.fake.claimed(idA) >= claims })
		if n := g.fake.claimed(idA); n != claims {
			t.Errorf("%s has claimed ann's kernel %d times, want %d", user, n, claims)
		}
	}
}

// What was culled is shown to those whose it was.
func TestAccess_Culled(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	g.fake.culled = []launcher.CulledKernel{
		// shared with rita and uma, and still shown as dead
		{ID: idA, SpecName: "python3", Owner: "ann", Reason: "it was idle for 1h0m0s", At: time.Now()},
		{ID: idB, SpecName: "r", Owner: "bob", Reason: "it was busy for 9h0m0s", At: time.Now()},
		// of the time when there was one owner
		{ID: idUnknown, SpecName: "r", Reason: "it was there for 72h0m0s", At: time.Now()},
	}
	for user, want := range map[string][]string{"ann": {idA}, "bob": {idB}, "rita": {}, "uma": {},
		"root": {idA, idB, idUnknown}} {
		for _, query := range []string{"?culled=1", "?culled=true", "?culled=1&culled=0&x=y"} {
			ids := []string{}
			for _, m := range decode[[]culledModel](t, g.do("GET", "/api/kernels"+query, "", as(user)).want(t, 200, "")) {
				ids = append(ids, m.ID)
			}
			if !slices.Equal(ids, want) {
				t.Errorf("%s of %s: got %v, want %v", query, user, ids, want)
			}
		}
	}
	g.do("GET", "/api/kernels?culled=1", "", as("nobody")).want(t, 403, "no valid token")
}

// keep_until is its owner's to say, within what the supervisor allows, and what the supervisor refuses changes nothing
// else.
func TestPatchKernel_Keep(t *testing.T) {
	g := startUserGateway(t, nil)
	super := g.addShared()
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"idle","keep_until":"2026-11-22T05:53:26Z","owner":"root","shared_with":[{"user":"x","right":"use"}]}`, idA)
	})
	path, keep := "/api/kernels/"+idA, `{"keep_until": "2026-11-22T05:53:26Z"}`
	for user, status := range map[string]int{"uma": 403, "rita": 403, "bob": 404, "nobody": 403} {
		g.do("PATCH", path, keep, as(user)).want(t, status, "")
	}
	for _, body := range []string{`{"keep_until": "2026-11-22T05:53:26Z", "shared_with": "x"}`,
		`{"keep_until": "2026-11-22T05:53:26Z", "x": 1}`,
		`{"keep_until": "tomorrow", "shared_with": []}`} {
		g.do("PATCH", path, body, as("ann")).want(t, 400, "")
	}
	if sent := super.sent(); sent != "" {
		t.Fatalf("the supervisor got %s", sent)
	}
	for _, user := range []string{"ann", "root"} {
		g.do("PATCH", path, keep, as(user)).want(t, 200,
			`"keep_until":"2026-11-22T05:53:26.000000Z","owner":"ann","shared_with":[{"user":"rita",`)
		if sent := super.sent(); !strings.Contains(sent, "PATCH /api/kernels/"+idA) ||
			!strings.Contains(sent, api.HeaderUser+": "+user+"\r\n") || strings.Contains(sent, "canary") {
			t.Errorf("the supervisor got %s", sent)
		}
	}
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "read"}], "keep_until": null}`, as("ann")).want(t, 200,
		`"owner":"ann","shared_with":[{"user":"bob","right":"read"}]`)
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"reason": "Forbidden", "message": "keep_until can be at most 1h0m0s from now"}`)
	})
	g.do("PATCH", path, `{"shared_with": [], "keep_until": "2027-11-22T05:53:26Z"}`, as("ann")).want(t, 403,
		"at most 1h0m0s")
	g.do("GET", path, "", as("bob")).want(t, 200, "") // it is still shared
}

func TestPatchKernel(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	path := "/api/kernels/" + idA
	for body, want := range map[string]string{
		``: "nothing", `{}`: "nothing", `[]`: "object", `{"name": "x"}`: "a member that cannot be changed",
		`{"shared_with": [], "x": 1}`:                                                      "a member that cannot be changed",
		`{"shared_with": null}`:                                                            "not a list",
		`{"shared_with": "bob"}`:                                                           "not a list",
		`{"shared_with": [{"user": "bob", "right": "use", "x": 1}]}`:                       "not a list",
		`{"shared_with": [{"right": "use"}]}`:                                              "shared_with[0] does not name",
		`{"shared_with": [{"user": "b", "group": "c", "right": "use"}]}`:                   "shared_with[0] does not name",
		`{"shared_with": [{"user": "b", "right": "own"}]}`:                                 "right is neither",
		`{"shared_with": [{"user": "b"}]}`:                                                 "right is neither",
		`{"shared_with": [{"user": "b\n", "right": "use"}]}`:                               "cannot be printed",
		`{"shared_with": [{"user": "b", "right": "use"}, {"user": "b", "right": "read"}]}`: "shared_with[1] names",
		`{"shared_with": [` + strings.Repeat(`{"user": "b", "right": "use"},`, 64) +
			`{"user": "b", "right": "use"}]}`: "more than 64",
	} {
		g.do("PATCH", path, body, as("ann")).want(t, 400, want)
	}
	g.do("GET", path, "", as("rita")).want(t, 200, "") // nothing was changed
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "use"}]}`, as("uma")).want(t, 403, "owner")
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "use"}]}`, as("ann")).want(t, 200,
		`"shared_with":[{"user":"bob","right":"use"}]`)
	g.do("GET", path, "", as("rita")).want(t, 404, "")
	g.do("POST", path+"/interrupt", "", as("bob")).want(t, 204, "")
	g.do("PATCH", path, `{"shared_with": []}`, as("root")).want(t, 200, `"shared_with":[]`)
	g.do("GET", path, "", as("bob")).want(t, 404, "")

	one := startGateway(t, nil)
	one.fake.add(idA, "python3", api.Idle)
	one.do("PATCH", path, `{"shared_with": []}`).want(t, 400, "no users")
}

// awayUsers can tell of nobody.
type awayUsers struct{ Users }

func (awayUsers) Identify(context.Context, string) (identity.User, error) {
	return identity.User{}, identity.ErrUnavailable
}

func TestAccess_SourceUnavailable(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.Users = awayUsers{o.Users} })
	g.addShared()
	for _, path := range []string{"/api/kernels", "/api/kernels/" + idA, "/api/kernels/" + idA + "/channels",
		"/api/kernels/" + idUnknown} {
		g.do("GET", path, "", as("ann"), asUpgrade).want(t, 503, "Try again")
	}
	g.do("GET", "/api", "").want(t, 200, "")
}

func TestNew_RoutesSayWhoMayAsk(t *testing.T) {
	serve := func(http.ResponseWriter, *call) error { return nil }
	for _, rt := range []route{
		{method: "GET", pattern: "/api/x", serve: serve},
		{method: "GET", pattern: "/api/kernels/{id}/x", serve: serve, access: anyUser},
		{method: "GET", pattern: "/api/sessions/{session}/x", serve: serve, access: public},
		{method: "GET", pattern: "/api/x", serve: serve, access: readKernel},
	} {
		if _, err := compile([]route{rt}); err == nil {
			t.Errorf("%s with %d is served", rt.pattern, rt.access)
		}
	}
	o := Options{Launcher: newFakeLauncher(t), Specs: testSpecs(t), Log: discard, Token: "x", Users: awayUsers{}}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "Token: contradicts Users") {
		t.Errorf("a token beside users: %v", err)
	}
}
