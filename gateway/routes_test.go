package gateway

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// paths returns the table's paths with every value filled in.
func (rt route) path() string {
	return strings.NewReplacer("{id}", idA, "{name}", "python3", "{file...}", "logo-svg.svg", "{file}", "page.js",
		"{session}", "s1", "{job}", idA, "{definition}", idA).Replace(rt.pattern)
}

// A route that is added without a check, or a check that looks at some methods only, would let one of these through.
func TestRoutes_NoneAnswersWithoutToken(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/gw" })
	super := g.fake.add(idA, "python3", launcherIdle)
	credentials := map[string]func(*http.Request){
		"none":          func(r *http.Request) { r.Header.Del("Authorization") },
		"wrong":         func(r *http.Request) { r.Header.Set("Authorization", "token wrong") },
		"empty":         func(r *http.Request) { r.Header.Set("Authorization", "token ") },
		"bare":          func(r *http.Request) { r.Header.Set("Authorization", testToken) },
		"basic":         func(r *http.Request) { r.Header.Del("Authorization"); r.SetBasicAuth("u", testToken) },
		"prefix":        func(r *http.Request) { r.Header.Set("Authorization", "token "+testToken[:5]) },
		"longer":        func(r *http.Request) { r.Header.Set("Authorization", "token "+testToken+"x") },
		"query wrong":   func(r *http.Request) { r.URL.RawQuery = "token=wrong" }, // counts before the right header
		"query escaped": func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=%2e%zz" },
		"cookie":        func(r *http.Request) { r.Header.Del("Authorization"); r.Header.Set("Cookie", "token="+testToken) },
		"websocket upgrade": func(r *http.Request) {
			r.Header.Del("Authorization")
			asUpgrade(r)
		},
	}
	for _, rt := range g.routes() {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "ODD"} {
			for name, credential := range credentials {
				got := g.do(method, "/gw"+rt.path(), "", credential)
				if rt.access == public {
					if got.StatusCode == http.StatusForbidden {
						t.Errorf("%s %s, %s: got 403 on an open route", method, rt.pattern, name)
					}
					continue
				}
				got.want(t, http.StatusForbidden, "")
			}
		}
	}
	if sent := super.sent(); sent != "" {
		t.Errorf("the supervisor was reached: %s", sent)
	}
	if len(g.fake.stopped()) > 0 || len(g.fake.requests()) > 0 {
		t.Error("a kernel was started or stopped")
	}
	if strings.Contains(g.log.String(), testToken) {
		t.Errorf("the token is in the log: %s", g.log)
	}
}

func TestRoutes_Authentication(t *testing.T) {
	g := startGateway(t, nil)
	for name, credential := range map[string]func(*http.Request){
		"token":  func(*http.Request) {},
		"TOKEN":  func(r *http.Request) { r.Header.Set("Authorization", "TOKEN "+testToken) },
		"bearer": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+testToken) },
		"spaces": func(r *http.Request) { r.Header.Set("Authorization", "bearer   "+testToken+" ") },
		"query":  func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + testToken },
		"last query": func(r *http.Request) {
			r.Header.Del("Authorization")
			r.URL.RawQuery = "token=x&1732&token=" + testToken
		},
		"beside an empty query": func(r *http.Request) {
			r.URL.RawQuery = "token="
		},
	} {
		t.Run(name, func(t *testing.T) { g.do("GET", "/api/kernels", "", credential).want(t, 200, "[]") })
	}
	t.Run("switched off, anything is taken", func(t *testing.T) {
		g := startGateway(t, func(o *Options) { o.Token = "" })
		for _, header := range []string{"", "token ", "token x", "None T", "Basic eDp5"} {
			g.do("GET", "/api/kernels", "", func(r *http.Request) { r.Header.Set("Authorization", header) }).want(t, 200, "[]")
		}
	})
}

func TestRoutes_Paths(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "Team/gw/" })
	for path, status := range map[string]int{
		"/Team/gw/api/kernels":      200,
		"/team/GW/api/kernels":      200, // Jupyter Server lower-cases its gateway's URL for websockets
		"/Team/gw/api/kernels?1732": 200,
		"/Team/gw/API/kernels":      404,
		"/Team/gw/api/kernels/":     302,
		"/Team/gw//api/kernels":     404,
		"/Team/gw/x/../api/kernels": 404,
		"/Team/gw/api%2fkernels":    404,
		"/api/kernels":              404,
		"/Team/gwx/api/kernels":     404,
		"/Team/gw":                  404,
		"/":                         404,
		"/healthz":                  200,
		"/Team/gw/healthz":          200,
	} {
		g.do("GET", path, "").want(t, status, "")
	}
	r := g.do("PUT", "/Team/gw/api/kernels", "{}").want(t, 405, "")
	if got, want := r.Header.Get("Allow"), "GET, HEAD, OPTIONS, POST"; got != want {
		t.Errorf("Allow: got %q, want %q", got, want)
	}
	for _, rt := range g.routes() {
		if rt.method == "GET" && !strings.HasSuffix(rt.pattern, "/channels") {
			get, head := g.do("GET", "/Team/gw"+rt.path(), ""), g.do("HEAD", "/Team/gw"+rt.path(), "")
			if get.StatusCode != head.StatusCode || head.body != "" {
				t.Errorf("HEAD %s: got %d %q, GET gives %d", rt.pattern, head.StatusCode, head.body, get.StatusCode)
			}
		}
		g.do("OPTIONS", "/Team/gw"+rt.path(), "", func(r *http.Request) { r.Header.Del("Authorization") }).want(t, 204, "")
	}
}

// TestRoutes_Scheduler: a client of jupyter-scheduler's API reads where jobs are. No other path has that answer.
func TestRoutes_Scheduler(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/base" })
	for _, path := range []string{"/base/scheduler", "/base/scheduler/jobs", "/base/scheduler/job_definitions/x/jobs"} {
		for _, method := range []string{"GET", "POST", "PATCH", "DELETE"} {
			g.do(method, path, "").want(t, http.StatusNotFound, `Its jobs are at /base/api/jobs.`).
				want(t, http.StatusNotFound, `"reason":"Not Found"`)
		}
	}
	for _, path := range []string{"/scheduler/jobs", "/base/schedulers", "/base/x/scheduler/jobs"} {
		g.do("GET", path, "").want(t, http.StatusNotFound, "There is no such route.")
	}
}

// TestRoutes_Slash: a path with slashes too many leads to its route, as in Jupyter Server. No other page can be meant.
func TestRoutes_Slash(t *testing.T) {
	for _, base := range []string{"", "/base"} {
		g := startGateway(t, func(o *Options) { o.BaseURL = base })
		noToken := func(r *http.Request) { r.Header.Del("Authorization") }
		for path, to := range map[string]string{
			"/api/": "/api", "/api/kernels//": "/api/kernels", "/api/kernels/a/?a=%2F&b": "/api/kernels/a?a=%2F&b",
			"/api/kernels/%20/": "/api/kernels/%20",
		} {
			for _, method := range []string{"GET", "HEAD"} {
				r := g.do(method, base+path, "", noToken)
				if r.want(t, http.StatusFound, ""); r.Header.Get("Location") != base+to {
					t.Errorf("%s %s leads to %q, want %q", method, path, r.Header.Get("Location"), base+to)
				}
			}
			g.do("POST", base+path, "").want(t, http.StatusNotFound, "There is no such route.")
		}
		for _, path := range []string{"//other.example/", "//api/", "/api//kernels/", "/x/", "/api/jobs/x/stop/"} {
			g.do("GET", base+path, "").want(t, http.StatusNotFound, "There is no such route.")
		}
	}
}

// TestRoutes_Elsewhere: a client of another part of Jupyter's API reads what this is.
func TestRoutes_Elsewhere(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/base" })
	for _, path := range []string{"/api/contents", "/api/contents/a/b.ipynb", "/api/terminals/", "/api/config/notebook",
		"/lab", "/lab/tree/a.ipynb", "/tree"} {
		g.do("GET", "/base"+path, "").want(t, http.StatusNotFound, "jupyter lab --gateway-url URL")
	}
	for _, path := range []string{"/lab", "/base/laboratory", "/base/api/content", "/base/x/lab", "/base/api"} {
		if r := g.do("POST", path, ""); strings.Contains(r.body, "gateway-url") {
			t.Errorf("%s: %s", path, r.body)
		}
	}
}

func TestRoutes_SecurityHeaders(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/gw" })
	// A browser sends its report without a token, and from a page of another site.
	g.do("POST", "/gw/api/security/csp-report", `{"csp-report": {}}`, func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Origin", "https://other.example")
	}).want(t, 204, "")
	const csp = "frame-ancestors 'self'; report-uri /gw/api/security/csp-report; default-src 'none'"
	for _, path := range []string{"/api", "/api/kernels", "/nothing", "/kernelspecs/python3/logo-svg.svg"} {
		h := g.do("GET", "/gw"+path, "").Header
		if h.Get("Content-Security-Policy") != csp ||
			h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
}

// With *, pages of every origin may use the gateway, and need a token as before.
func TestRoutes_AnyOrigin(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.AllowOrigins = []string{"*", "https://lab.example"} })
	for _, origin := range []string{"https://lab.example", "http://other.example:8080", "null"} {
		from := func(r *http.Request) { r.Header.Set("Origin", origin) }
		r := g.do("GET", "/api/kernels", "", from).want(t, 200, "")
		if got := r.Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("origin %s: Access-Control-Allow-Origin is %q", origin, got)
		}
		g.do("GET", "/api/kernels", "", from, func(r *http.Request) { r.Header.Del("Authorization") }).want(t, 403, "")
	}
	if got := g.do("GET", "/api/kernels", "").Header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("without an origin: Access-Control-Allow-Origin is %q", got)
	}
}

func TestRoutes_OriginAndHost(t *testing.T) {
	g := startGateway(t, func(o *Options) {
		o.AllowOrigins = []string{"https://lab.example"}
		o.CheckHost, o.AllowHosts = true, []string{"hub.example"}
	})
	g.fake.add(idA, "python3", launcherIdle)
	upgrade := "/api/kernels/" + idA + "/channels"
	for origin, ok := range map[string]bool{
		"":                                   true,
		"https://lab.example":                true,
		"HTTPS://LAB.example":                true,
		g.http.URL:                           true,
		"https://lab.example.evil.com":       false,
		"https://evil.com/lab.example":       false,
		"http://lab.example":                 false,
		"https://lab.example:8443":           false,
		"https://xlab.example":               false,
		"null":                               false,
		"http://" + testToken + "@" + "evil": false,
	} {
		set := func(r *http.Request) {
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
		}
		status := 200
		if !ok {
			status = 403
		}
		g.do("GET", "/api/kernels", "", set).want(t, status, "")
		r := g.do("OPTIONS", "/api/kernels", "", set)
		if got := r.Header.Get("Access-Control-Allow-Origin"); (got == origin && origin != "") != (ok &&
			strings.EqualFold(origin, "https://lab.example")) {
			t.Errorf("origin %q: Access-Control-Allow-Origin is %q", origin, got)
		}
		// What Jupyter Server allows. @jupyterlab/services sends the last one if the page's host has an _xsrf cookie.
		const headers = "accept, content-type, authorization, x-xsrftoken"
		if got := r.Header.Get("Access-Control-Allow-Headers"); got != headers && got != "" || got == "" &&
			strings.EqualFold(origin, "https://lab.example") {
			t.Errorf("origin %q: Access-Control-Allow-Headers is %q", origin, got)
		}
		if !ok {
			g.do("GET", upgrade, "", set, asUpgrade).want(t, 403, "")
		}
	}
	for host, ok := range map[string]bool{
		"127.0.0.1:1": true, "localhost": true, "LOCALHOST:8888": true, "[::1]:8888": true, "127.8.8.8": true,
		"hub.example:80": true,
		"evil.com":       false, "localhost.evil.com": false, "192.168.0.1": false, "8.8.8.8:8888": false, "0.0.0.0": false,
	} {
		status := 200
		if !ok {
			status = 403
		}
		g.do("GET", "/api/kernels", "", func(r *http.Request) { r.Host = host }).want(t, status, "")
		if !ok {
			g.do("GET", "/nothing", "", func(r *http.Request) { r.Host = host }).want(t, status, "")
			g.do("GET", upgrade, "", asUpgrade, func(r *http.Request) { r.Host = host }).want(t, status, "")
		}
	}
}

// The description lists every route that is served, and no other.
func TestRoutes_OpenAPI(t *testing.T) {
	g := startGateway(t, nil)
	doc, err := openapi3.NewLoader().LoadFromData([]byte(g.do("GET", "/api/spec.yaml", "").body))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			described[method+" "+path] = op.Security != nil && len(*op.Security) == 0
		}
	}
	for _, rt := range g.routes() {
		key := rt.method + " " + strings.ReplaceAll(rt.pattern, "...}", "}")
		open, there := described[key]
		if !there || open != (rt.access == public) {
			t.Errorf("%s: described %v, as open %v, is open %v", key, there, open, rt.access == public)
		}
		delete(described, key)
	}
	for key := range described {
		t.Errorf("%s is described but not served", key)
	}
}

func TestNew_NamesTheBadOption(t *testing.T) {
	good := Options{Options: kernels.Options{Launcher: newFakeLauncher(t), Specs: testSpecs(t), Log: discard}}
	if _, err := New(good); err != nil {
		t.Fatalf("the smallest options: %v", err)
	}
	for want, change := range map[string]func(*Options){
		"Launcher":     func(o *Options) { o.Launcher = nil },
		"Specs":        func(o *Options) { o.Specs = nil },
		"Log":          func(o *Options) { o.Log = nil },
		"StartWait":    func(o *Options) { o.StartWait = -1 },
		"MaxBody":      func(o *Options) { o.MaxBody = -1 },
		"Token":        func(o *Options) { o.Token = "x " },
		"BaseURL":      func(o *Options) { o.BaseURL = "/a/../b" },
		"AllowOrigins": func(o *Options) { o.AllowOrigins = []string{"*"} },
		"AllowHosts":   func(o *Options) { o.AllowHosts = []string{"a:1"} },
		"ClientEnv":    func(o *Options) { o.ClientEnv = []string{"EKG_KERNEL_ID"} },

		"StartsPerMinute":      func(o *Options) { o.StartsPerMinute = -1 },
		"ConnectionsPerKernel": func(o *Options) { o.ConnectionsPerKernel = -1 },
		"ConnectionsPerUser":   func(o *Options) { o.ConnectionsPerUser = -1 },
	} {
		o := good
		change(&o)
		_, err := New(o)
		var wrong *kernels.OptionError
		if !errors.As(err, &wrong) || wrong.Option != want || !strings.HasPrefix(wrong.Error(), "gateway: "+want+": ") {
			t.Errorf("%s: got %v", want, err)
		}
	}
}
