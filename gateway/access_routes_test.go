package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// wantAccess holds the access of each route. It repeats the routes table, so that a new or changed route is noticed.
var wantAccess = map[string]kernels.Access{
	"GET /": public, "GET /page/{file}": public,
	"GET /healthz": public, "GET /readyz": public, "GET /api": public,
	"POST /api/security/csp-report": public,
	"GET /api/status":               anyUser, "GET /api/me": anyUser, "GET /api/spec.yaml": anyUser,
	"GET /api/flavors":     anyUser,
	"GET /api/gpus":        anyUser,
	"GET /api/usage":       anyUser,
	"GET /api/events":      anyUser,
	"GET /api/gateways":    anyUser,
	"GET /api/limits":      anyUser,
	"GET /api/kernelspecs": anyUser, "GET /api/kernelspecs/{name}": anyUser, "GET /kernelspecs/{name}/{file...}": anyUser,
	"GET /api/kernels": anyUser, "POST /api/kernels": anyUser,
	"GET /api/kernels/{id}": readKernel, "GET /api/kernels/{id}/channels": readKernel,
	"GET /api/kernels/{id}/log":        useKernel,
	"GET /api/kernels/{id}/timeline":   readKernel,
	"POST /api/kernels/{id}/interrupt": useKernel, "POST /api/kernels/{id}/wake": useKernel,
	"POST /api/kernels/{id}/restart": useKernel,
	"PATCH /api/kernels/{id}":        ownKernel, "DELETE /api/kernels/{id}": ownKernel,
	"GET /api/jobs": anyUser, "POST /api/jobs": anyUser, "GET /api/jobs/{job}": anyUser,
	"DELETE /api/jobs/{job}": anyUser, "POST /api/jobs/{job}/stop": anyUser, "GET /api/jobs/{job}/notebook": anyUser,
	"GET /api/jobs/definitions": anyUser, "POST /api/jobs/definitions": anyUser,
	"GET /api/jobs/definitions/{definition}": anyUser, "PATCH /api/jobs/definitions/{definition}": anyUser,
	"DELETE /api/jobs/definitions/{definition}": anyUser, "POST /api/jobs/definitions/{definition}/jobs": anyUser,
	"GET /api/sessions": anyUser, "POST /api/sessions": anyUser,
	"GET /api/sessions/{session}": readKernel, "PATCH /api/sessions/{session}": ownKernel,
	"DELETE /api/sessions/{session}": ownKernel,
}

// rightOf holds what each user may do with ann's kernel.
var rightOf = map[string]kernels.Access{
	"ann": ownKernel, "root": ownKernel, "uma": useKernel, "rita": readKernel, "bob": anyUser,
	"stranger": public, "": public,
}

// tokenPlaces put a token into each place of a request where one can be.
var tokenPlaces = map[string]func(*http.Request, string){
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
		for _, name := range []string{
			api.HeaderUser, "X-Forwarded-User", "X-Remote-User", "Remote-User", "KERNEL_USERNAME",
		} {
			r.Header.Set(name, "ann")
		}
		r.Header.Set(api.HeaderRight, api.RightOwn)
	},
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
	routes["/api/kernels?culled=1"] = routes["/api/kernels"]
	routes["/api/kernels?ended=1"] = routes["/api/kernels"]
	count := 0
	for pattern, of := range routes {
		pattern, query, hasQuery := strings.Cut(pattern, "?")
		a := accessRequest{pattern: pattern, path: of[0].path(), open: wantAccess[of[0].method+" "+pattern] == public}
		if hasQuery {
			a.path += "?" + query
		}
		for _, a.method = range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "ODD"} {
			a.need = undecided
			for _, rt := range of {
				if rt.method == a.method || rt.method == "GET" && a.method == "HEAD" {
					a.need = wantAccess[rt.method+" "+pattern]
				}
			}
			for a.user = range rightOf {
				for a.place = range tokenPlaces {
					if a.opensWebsocket() {
						continue // TestAccess_Websocket
					}
					a.check(t, g)
					count++
				}
			}
		}
	}
	if count < 5000 {
		t.Errorf("only %d requests were made", count)
	}
	checkNoUserShown(t, g, audit.String())
}

// accessRequest is one request of TestAccess_UserRouteMethod.
type accessRequest struct {
	method, pattern, path string
	need                  kernels.Access // undecided if the pattern has no such method
	open                  bool           // the pattern needs no token
	user, place           string         // whose token is in which of tokenPlaces
}

func (a accessRequest) String() string {
	return fmt.Sprintf("%s %s by %q with %s", a.method, a.pattern, a.user, a.place)
}

// right returns what the request's credential allows with ann's kernel. A cookie is no credential.
func (a accessRequest) right() kernels.Access {
	if a.place == "cookie" {
		return public
	}
	return rightOf[a.user]
}

func (a accessRequest) opensWebsocket() bool {
	return strings.HasPrefix(a.place, "upgrade") && strings.HasSuffix(a.pattern, "/channels") && a.method == "GET" &&
		a.right() >= readKernel
}

// refusal returns the status of the answer without the route's handler, or 0 if the handler answers.
func (a accessRequest) refusal() int {
	switch {
	case a.method == "OPTIONS":
		return 204
	case a.right() == public && !a.open:
		return 403
	case a.need == undecided:
		return 405
	case a.need.OfKernel() && a.right() < readKernel, a.ofJob() && a.right() < ownKernel:
		return 404 // the job and the definition are ann's, too
	case a.right() < a.need:
		return 403
	}
	return 0
}

// ofJob reports whether the path names a job or a definition.
func (a accessRequest) ofJob() bool {
	return strings.Contains(a.pattern, "{job}") || strings.Contains(a.pattern, "{definition}")
}

// send sends the request to a path. Its body would change something if the request were not refused.
func (a accessRequest) send(g *userGateway, path string) reply {
	body := map[string]string{
		"PATCH /api/kernels/{id}":                  `{"keep_until": null}`,
		"PATCH /api/sessions/{session}":            `{"name": "x"}`,
		"PATCH /api/jobs/definitions/{definition}": `{"active": false}`,
	}[a.method+" "+a.pattern]
	return g.do(a.method, path, body, func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Accept", "text/html") // or there is no page
		if a.user != "" {
			tokenPlaces[a.place](r, tokenOf(a.user))
		}
	})
}

// check sends the request and checks its answer. A refused request must have no effect.
func (a accessRequest) check(t *testing.T, g *userGateway) {
	t.Helper()
	if _, err := g.fake.Kernel(t.Context(), idA); err != nil {
		g.addShared()
	}
	if a.ofJob() {
		g.addJob(t)
	}
	var super *fakeSupervisor
	g.fake.change(func() { super = g.fake.kernels[idA].super })
	effects := func() [4]any {
		return [4]any{super.sent(), len(g.fake.stopped()), len(g.fake.requests()), g.fake.claimed(idA)}
	}
	before := effects()
	got, want := a.send(g, a.path), a.refusal()
	if want == 0 {
		if got.StatusCode == 403 || got.StatusCode == 404 || got.StatusCode == 401 ||
			got.StatusCode >= 500 && !strings.HasSuffix(a.pattern, "/log") && a.pattern != "/readyz" {
			t.Errorf("%s: got %d %s, which is a refusal", a, got.StatusCode, got.body)
		}
		return
	}
	if got.StatusCode != want {
		t.Errorf("%s: got %d %s, want %d", a, got.StatusCode, got.body, want)
	}
	if want == 404 {
		unknown := a.send(g, strings.NewReplacer(idA, idUnknown, "s1", "s2").Replace(a.path))
		if !sameAnswer(got, unknown) {
			t.Errorf("%s: the answer shows that the kernel exists:\n%v %s\n%v %s",
				a, got.Header, got.body, unknown.Header, unknown.body)
		}
	}
	if effects() != before {
		t.Errorf("%s: it was refused, but had an effect", a)
	}
}

// addJob replaces ann's job, which has ended, and her definition.
func (g *userGateway) addJob(t *testing.T) {
	t.Helper()
	for kind, data := range map[string]string{
		"jobs":          `{"form":2,"id":"` + idA + `","owner":"ann","name":"n","state":"failed","source":"` + idA + `"}`,
		"job-notebooks": `{"cells":[]}`,
		"job-definitions": `{"id":"` + idA + `","owner":"ann","name":"n","author":{"name":"ann"},"start":{},"source":"` +
			idA + `"}`,
		"job-definition-notebooks": `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}`,
	} {
		err := g.fake.RemoveRecord(t.Context(), kind, idA)
		if err == nil {
			_, err = g.fake.CreateRecord(t.Context(), launcher.Record{Kind: kind, ID: idA, Data: []byte(data)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkNoUserShown checks that no token is in the gateway's log, its audit log and its metrics, and that no label names
// a user. A label with a user would show users to the readers of metrics, and make a series for each of them.
func checkNoUserShown(t *testing.T, g *userGateway, audit string) {
	t.Helper()
	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for name, text := range map[string]string{
		"log": g.log.String(), "audit log": audit, "metrics": w.Body.String(),
	} {
		if len(text) < 1000 || strings.Contains(text, "canary") {
			t.Errorf("a token is in the %s, or nothing (%d bytes)", name, len(text))
		}
	}
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
	o := Options{Options: kernels.Options{Launcher: newFakeLauncher(t), Specs: testSpecs(t), Log: discard}, Token: "x",
		Users: awayUsers{}}
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "Token: contradicts Users") {
		t.Errorf("a token beside users: %v", err)
	}
}
