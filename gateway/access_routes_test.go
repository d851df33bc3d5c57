package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// wantAccess holds the access of each route. It repeats the routes table, so that a new or changed route is noticed.
var wantAccess = map[string]access{
	"GET /healthz": public, "GET /readyz": public, "GET /api": public,
	"GET /api/status": anyUser, "GET /api/me": anyUser, "GET /api/spec.yaml": anyUser,
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

// rightOf holds what each user may do with ann's kernel.
var rightOf = map[string]access{
	"ann": ownKernel, "root": ownKernel, "uma": useKernel, "rita": readKernel, "bob": anyUser,
	"nobody": public, "": public,
}

// TestAccess_UserRouteMethod sends requests of every user to every route by every method, with the token in each place
// where a token can be.
func TestAccess_UserRouteMethod(t *testing.T) {
	audit := &transcript.Buffer{}
	g := startUserGateway(t, func(o *Options) { o.Audit = audit })
	routes := map[string][]route{}
	for _, rt := range g.routes() {
		switch need, ok := wantAccess[rt.method+" "+rt.pattern]; {
		case !ok:
			t.Errorf("%s %s is new: add its access to wantAccess", rt.method, rt.pattern)
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
		"identity headers": func(r *http.Request, t string) { // none of them counts
			r.Header.Set("Authorization", "token "+t)
			for _, name := range []string{api.HeaderUser, "X-Forwarded-User", "X-Remote-User", "Remote-User",
				"KERNEL_USERNAME"} {
				r.Header.Set(name, "ann")
			}
			r.Header.Set(api.HeaderRight, api.RightUse)
		},
	}
	// These requests would change something if they were not refused.
	bodies := map[string]string{"PATCH /api/kernels/{id}": `{"keep_until": null}`,
		"PATCH /api/sessions/{session}": `{"name": "x"}`}
	var super *fakeSupervisor
	count := 0
	routes["/api/kernels?culled=1"] = routes["/api/kernels"]
	for pattern, of := range routes {
		path := of[0].path()
		pattern, query, hasQuery := strings.Cut(pattern, "?")
		if hasQuery {
			path += "?" + query
		}
		unknown := strings.NewReplacer(idA, idUnknown, "s1", "s2").Replace(path)
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"} {
			need := undecided // no such method
			for _, rt := range of {
				if rt.method == method || rt.method == "GET" && method == "HEAD" {
					need = wantAccess[rt.method+" "+pattern]
				}
			}
			for user := range rightOf {
				for name, carry := range carriers {
					level := rightOf[user]
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
					open := wantAccess[of[0].method+" "+pattern] == public
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
							t.Errorf("%s: the answer shows that the kernel exists:\n%v %s\n%v %s", where, theirs.Header, theirs.body,
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
	// A label with a user would show users to the readers of metrics, and make a series for each of them.
	for line := range strings.Lines(w.Body.String()) {
		for user := range rightOf {
			if user != "" && strings.Contains(line, `="`+user+`"`) {
				t.Errorf("a label names a user: %s", line)
			}
		}
	}
}

// sameAnswer reports whether two answers are equal except for the id of the request.
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
