package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// fuzzed is a gateway to be fuzzed. What it has written is looked at after each request.
type fuzzed struct {
	*testGateway
	log, audit *transcript.Buffer
}

// started are the kernels that requests have started; the oldest goes when there are many.
const startedAtMost = 20

// startFuzzed starts a gateway with a kernel of ann's that others use and read, and one that is starting. Start does no
// more than note the kernel.
func startFuzzed(f *testing.F) *fuzzed {
	x := &fuzzed{log: &transcript.Buffer{}, audit: &transcript.Buffer{}}
	x.testGateway = startUserGateway(f, func(o *Options) {
		o.Log = slog.New(slog.NewTextHandler(x.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Audit, o.ClientEnv, o.StartWait = x.audit, []string{"EXTRA"}, 0
		o.CheckHost, o.AllowHosts, o.AllowOrigins = true, []string{"hub.example"}, []string{"https://lab.example"}
	}).testGateway
	x.fake.start = x.note
	x.restore()
	return x
}

// note is the launcher's Start.
func (x *fuzzed) note(_ context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	fake := x.fake
	if k, err := fake.Kernel(context.Background(), req.ID); err == nil {
		if k.Owner != req.Owner || k.SpecName != req.Spec.Name {
			return launcher.Kernel{}, false, launcher.ErrConflict
		}
		return k, false, nil
	}
	fake.change(func() {
		fake.reqs = append(fake.reqs, req)
		fake.kernels[req.ID] = &fakeKernel{Kernel: launcher.Kernel{ID: req.ID, SpecName: req.Spec.Name, State: api.Idle,
			Owner: req.Owner}}
		if len(fake.reqs) > startedAtMost {
			delete(fake.kernels, fake.reqs[0].ID)
			fake.reqs = slices.Clone(fake.reqs[1:])
		}
	})
	k, err := fake.Kernel(context.Background(), req.ID)
	return k, true, err
}

// restore brings back what requests may have ended or changed.
func (x *fuzzed) restore() {
	if _, err := x.fake.Kernel(context.Background(), idA); err != nil {
		x.fake.add(idA, "python3", api.Idle)
	}
	if _, err := x.fake.Kernel(context.Background(), idB); err != nil {
		x.fake.addStarting(idB, "no node")
	}
	x.fake.change(func() {
		x.fake.stops, x.fake.claims = map[string]string{}, nil
		k := x.fake.kernels[idA]
		k.Owner, k.SharedWith = "ann",
			[]launcher.Grant{{User: "rita", Right: launcher.Read}, {Group: "team", Right: launcher.Use}}
		k.Sessions = []launcher.Session{{ID: "s1", User: "ann", Path: "a.ipynb", Type: "notebook"}}
		x.fake.kernels[idB].Owner = "ann"
		if k.super != nil {
			k.super.mu.Lock()
			k.super.seen = nil
			k.super.mu.Unlock()
		}
	})
}

// gone is a client that leaves once it was answered: whatever takes over its connection finds it ended.
type gone struct {
	*httptest.ResponseRecorder
	hijacked bool
}

func (g *gone) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	g.hijacked = true
	server, client := net.Pipe()
	return server, bufio.NewReadWriter(bufio.NewReader(server), bufio.NewWriter(server)), client.Close()
}

// ask sends a request and checks what holds for every answer.
func (x *fuzzed) ask(t *testing.T, r *http.Request) {
	x.restore()
	r.RemoteAddr = "192.0.2.1:1234"
	w := &gone{ResponseRecorder: httptest.NewRecorder()}
	x.Handler().ServeHTTP(w, r)
	body := w.Body.Bytes()
	switch code := w.Code; {
	case w.hijacked:
	// as Jupyter Server says it of a session
	case code == http.StatusNotImplemented && strings.Contains(w.Body.String(), "Kernel spec"):
	case code >= 500 && code != http.StatusServiceUnavailable:
		t.Errorf("got %d %s", code, body)
	case code >= 400 && r.Method != http.MethodHead:
		var e errorBody
		if err := json.Unmarshal(body, &e); err != nil || e.Reason == "" || e.Message == "" || len(body) > 16<<10 {
			t.Errorf("got %d %s, which is not {reason, message}: %v", code, body, err)
		}
	case len(body) > 0 && w.Header().Get("Content-Type") == "application/json" && !json.Valid(body):
		t.Errorf("got %d %s, which is no JSON", code, body)
	}
	for name, values := range w.Header() {
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("header %s: %q", name, v)
			}
		}
		if name == "Access-Control-Allow-Origin" && !strings.EqualFold(values[0], "https://lab.example") {
			t.Errorf("header %s: %q", name, values)
		}
	}
	x.logged(t)
	x.stored(t)
	x.sent(t)
}

// logged holds that no line of a log has more in it than its writer meant.
func (x *fuzzed) logged(t *testing.T) {
	for line := range strings.Lines(x.log.Take()) {
		line = strings.TrimSuffix(line, "\n")
		if !strings.HasPrefix(line, "time=") || !utf8.ValidString(line) ||
			strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("log line %q", line)
		}
	}
	for line := range strings.Lines(x.audit.Take()) {
		var e kernels.Entry
		d := json.NewDecoder(strings.NewReader(line))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil || e.Action == "" || e.Outcome == "" {
			t.Errorf("audit log: %q: %v", line, err)
		}
	}
}

var validName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// stored checks that the launcher got only what a client may request, and that all it keeps is bounded.
func (x *fuzzed) stored(t *testing.T) {
	for _, req := range x.fake.requests() {
		if !launcher.ValidID(req.ID) || req.Spec.Name == "" || req.Env["KERNEL_USERNAME"] != req.Owner || req.Owner == "" {
			t.Errorf("the launcher got %+v", req)
		}
		for name, value := range req.Env {
			own := strings.HasPrefix(name, "KERNEL_") || name == "EXTRA" || name == kernels.SessionVariable
			if !validName.MatchString(name) || !own ||
				strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
				t.Errorf("variable %q is %q", name, value)
			}
		}
	}
	kernels, err := x.fake.Kernels(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		if len(k.Sessions) > maxSessions || len(k.SharedWith) > maxGrants {
			t.Errorf("%d sessions, %d grants", len(k.Sessions), len(k.SharedWith))
		}
		for _, s := range k.Sessions {
			if len(s.Path+s.Name+s.Type) > 3*maxSessionText {
				t.Errorf("a session of %d bytes", len(s.Path+s.Name+s.Type))
			}
		}
		for _, grant := range k.SharedWith {
			if identity.CheckName(grant.User+grant.Group) != nil || grant.Right != launcher.Read && grant.Right != launcher.Use {
				t.Errorf("grant %+v", grant)
			}
		}
	}
}

// sent holds that a supervisor gets requests for its own kernel only, and no token.
func (x *fuzzed) sent(t *testing.T) {
	x.fake.mu.Lock()
	k := x.fake.kernels[idA]
	x.fake.mu.Unlock()
	if k == nil || k.super == nil {
		return
	}
	for _, text := range k.super.requests() {
		head, _, _ := strings.Cut(text, "\n")
		if _, path, _ := strings.Cut(head, " "); !strings.HasPrefix(path, "http://") &&
			!strings.HasPrefix(path, "/api/kernels/"+idA) || strings.Contains(text, "canary-") {
			t.Errorf("the supervisor was sent %q", text)
		}
	}
}

// bodied are the routes that read a body.
var bodied = []struct{ method, path string }{
	{"POST", "/api/kernels"}, {"PATCH", "/api/kernels/" + idA}, {"POST", "/api/sessions"}, {"PATCH", "/api/sessions/s1"},
	{"POST", "/api/kernels/" + idA + "/interrupt"}, {"POST", "/api/kernels/" + idA + "/restart"},
	{"DELETE", "/api/kernels/" + idA}, {"POST", "/api/kernels/" + idA + "/wake"},
	{"PATCH", "/api/kernels/" + idB}, {"POST", "/api/kernels/" + idB + "/restart"},
}

// Whatever is in a body, the answer says what is wrong with it, and nothing that is not allowed is started or stored.
func FuzzBody(f *testing.F) {
	x := startFuzzed(f)
	for _, text := range []string{
		"", "{", "null", "[]", "{}", `"x"`, "{}{}", "\xff", "\xef\xbb\xbf{}", `{"name":"python3"}`, `{"name":"none"}`,
		`{"name":null,"env":null}`, `{"name":5}`,
		`{"name":"` + strings.Repeat("<", 5000) + `"}`, `{"name":"python3","kernel_id":"` + idUnknown + `"}`,
		`{"kernel_id":"../../x"}`, `{"kernel_id":"` + idA + `"}`,
		`{"name":"\ud800","path":"\u0000"}`, `{"env":{"KERNEL_X":"$(A) $$ {{.}} ;rm\n'\"\\ \u2028"}}`,
		`{"env":{"KERNEL_X":"\u0000"}}`, `{"env":{"KERNEL_X":[[]]}}`, `{"env":{"KERNEL_X":null}}`,
		`{"env":{"KERNEL_A B":"x"}}`, `{"env":{"KERNEL_X=Y":"x"}}`, `{"env":{"KERNEL_\n":"x"}}`,
		`{"env":{"LD_PRELOAD":"/x","EKG_TOKEN":"x","EXTRA":"y"}}`,
		`{"env":{"KERNEL_ID":"` + idUnknown +
			`","KERNEL_USERNAME":"root\nadmin","KERNEL_WORKING_DIR":"/../etc","KERNEL_LAUNCH_TIMEOUT":"1e9"}}`,
		`{"env":{"KERNEL_LAUNCH_TIMEOUT":"NaN"}}`,
		`{"shared_with":[{"user":"bob","right":"use"},{"group":"g","right":"read"}]}`,
		`{"shared_with":[{"user":"a\nb","right":"use"}]}`, `{"shared_with":[{"user":"bob","right":"own"}]}`,
		`{"shared_with":[{"user":"bob","group":"g","right":"use"}]}`, `{"shared_with":{}}`, `{"shared_with":null}`,
		`{"shared_with":[{"user":"bob","right":"use","x":1}]}`,
		`{"keep_until":"2030-01-01T00:00:00Z"}`, `{"keep_until":null}`, `{"keep_until":"9999999-01-01T00:00:00Z"}`,
		`{"keep_until":-1}`, `{"shared_with":[],"keep_until":null,"x":1}`,
		`{"path":"b.ipynb","type":"notebook","name":"","kernel":{"name":"python3"}}`,
		`{"path":"b","type":"x","kernel":{"id":"` + idA + `"}}`, `{"path":"","type":"","kernel":{}}`,
		`{"notebook":{"path":"b","name":"\u001b[31m"},"kernel":{"name":"none"}}`, `{"path":"` +
			strings.Repeat("p", maxSessionText+1) + `","type":"x"}`, `{"kernel":{"id":"` + idUnknown + `"}}`,
		`{"path":"a.ipynb","type":"notebook","kernel":{"id":null,"name":null}}`, strings.Repeat(`{"x":`, 20000) + "1" +
			strings.Repeat("}", 20000),
	} {
		for i := range bodied {
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, route uint8, body string) {
		to := bodied[int(route)%len(bodied)]
		for _, user := range []string{"ann", "uma"} {
			r := httptest.NewRequest(to.method, "http://127.0.0.1"+to.path, strings.NewReader(body))
			r.Header.Set("Authorization", "token "+tokenOf(user))
			x.ask(t, r)
		}
	})
}

// Whatever stands in a request's line and headers, and is taken by net/http, the answer is one that was meant.
func FuzzRequest(f *testing.F) {
	x := startFuzzed(f)
	const host = "Host: 127.0.0.1:8888\r\n"
	auth := host + "Authorization: token " + tokenOf("ann") + "\r\n"
	upgrade := auth + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
		"dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, rt := range x.routes() {
		f.Add(rt.method, rt.path(), auth)
		f.Add(rt.method, rt.path()+"?token="+tokenOf("bob"), host)
	}
	for _, headers := range []string{
		"", "Host: evil.com\r\n", "Host: 127.0.0.1.evil.com\r\n", "Host: [::1]:1\r\n", "Host: localhost.\r\n", host +
			"Origin: null\r\n", auth + "Origin: https://lab.example\r\n", auth + "Origin: https://lab.example@evil.com\r\n",
		auth + "Origin: https://LAB.example.\r\n", auth + "Origin: https://lab.example:443\r\n", auth +
			"Origin: http://127.0.0.1:8888\r\nOrigin: https://evil.com\r\n", auth + "Origin: https://\u212Aab.example\r\n",
		host + "Authorization: Bearer\r\n", host + "Authorization: Basic eDp5\r\n", host +
			"Authorization: token \xff\x00\r\n", host + "Cookie: token=" + tokenOf("ann") + "\r\n", auth + "Cookie: a=\x01\r\n",
		auth + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", auth + "Transfer-Encoding: chunked\r\n", auth +
			"Content-Length: 99999999999999999999\r\n", auth + "Content-Length: -1\r\n", auth +
			"Expect: 100-continue\r\nContent-Length: 5\r\n",
		auth + "X-Forwarded-For: \x1b[31m\r\nX-Forwarded-Host: evil.com\r\nX-Forwarded-Proto: x\r\nForwarded: for=\"\r\n",
		auth + "X-Request-Id: a\r\n b\r\n", auth + "User-Agent: \x7f\u202e\r\nAccept: " + strings.Repeat("x", 5000) + "\r\n",
		auth + "Range: bytes=0-0,1-1,2-,-1\r\nIf-Modified-Since: x\r\nIf-Range: \"\r\n", upgrade, upgrade +
			"Sec-WebSocket-Protocol: v1.kernel.websocket.jupyter.org, ,\x00\r\nSec-WebSocket-Extensions: permessage-deflate; " +
			"x=\"\r\n",
		auth + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 12\r\nSec-WebSocket-Key: x\r\n", upgrade +
			"Sec-WebSocket-Key: y\r\nContent-Length: 3\r\n",
	} {
		for _, target := range []string{
			"/api/kernels", "/api/kernels/" + idA + "/channels?session_id=x", "/kernelspecs/python3/logo-svg.svg",
			"/api/kernels/" + idB + "/channels",
		} {
			f.Add("GET", target, headers)
		}
	}
	for _, target := range []string{
		"*", "//", "http://evil.com/api", "/api/kernels/%00", "/api/kernels/..%2f..", "/api/kernels/%2e%2e", "/api/kernels/" +
			strings.ToUpper(idA), "/api/kernels/" + idA + "%2fchannels", "/api/kernels/" + idA + "/", "/api/kernels/" + idA +
			";x",
		"/kernelspecs/python3/../secret.txt", "/kernelspecs/python3/%2e%2e/secret.txt",
		"/kernelspecs/python3/..%2fsecret.txt", "/kernelspecs/..%2f/secret.txt", "/kernelspecs/python3/%2fetc%2fpasswd",
		"/kernelspecs/python3/..%5csecret.txt",
		"/kernelspecs/python3/a%00.svg", "/kernelspecs/python3/%ff", "/kernelspecs/python3/%0d%0aX:%20y.svg",
		"/api/sessions/%22%0a", "/api/me?permissions=%7B%22kernels%22:[%22execute%22]%7D", "/api/me?permissions={",
		"/api/me?permissions=null",
		"/api/kernels?culled=1", "/api/kernels?culled=%0a", "/api/kernels?token=&token=x;token=y",
		"/api/kernels?%zz&token=%zz", "/api/kernelspecs?user=a/../python3", "/api/kernelspecs?user=a/%0a", "/api/kernels/" +
			idA + "/log?after=-1&limit=%00&follow=x&parent=%0d",
		"/api/kernels/" + idA + "/channels?session_id=" + strings.Repeat("s", 3000) + "&cursor=zz",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "BREW", "CONNECT", "OPTIONS"} {
			f.Add(method, target, auth)
		}
	}
	f.Fuzz(func(t *testing.T, method, target, headers string) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\n" + headers +
			"\r\n")))
		if err != nil || len(r.Header) > 1000 {
			return // net/http answers it
		}
		// Also refused by net/http's server, by a look of its own after reading.
		for name, values := range r.Header {
			if slices.ContainsFunc(append(slices.Clone(values), name),
				func(v string) bool { return strings.ContainsFunc(v, unicode.IsControl) }) {
				return
			}
		}
		x.ask(t, r)
	})
}

// Whatever an Origin header is, it lets in no page but those of the gateway's own address and of the origins that are
// listed.
func FuzzOrigin(f *testing.F) {
	g := startGateway(f, func(o *Options) {
		o.AllowOrigins = []string{"https://kernels.example:8443",
			"http://[2001:db8::1]"}
	})
	for _, origin := range slices.Concat(slices.Collect(maps.Keys(lookalikes)),
		[]string{"https://kernels.example:8443", "HTTPS://Kernels.Example:8443", "http://gw.example:8888",
			"http://[2001:db8::1]"}) {
		f.Add(origin, "gw.example:8888")
	}
	f.Add("//gw.example:8888", "gw.example:8888")
	f.Add("http://x@gw.example:8888", "gw.example:8888")
	f.Fuzz(func(t *testing.T, origin, host string) {
		r := httptest.NewRequest("GET", "http://gw.example:8888/api/kernels", nil)
		r.Host = host
		r.Header["Origin"] = []string{origin}
		r.Header.Set("Authorization", "token "+testToken)
		w := httptest.NewRecorder()
		g.Handler().ServeHTTP(w, r)
		scheme, after, _ := strings.Cut(asciiLower.Replace(origin), "://")
		same := (scheme == "http" || scheme == "https") && after == asciiLower.Replace(host)
		listed := asciiLower.Replace(origin) == "https://kernels.example:8443" ||
			asciiLower.Replace(origin) == "http://[2001:db8::1]"
		if w.Code == http.StatusOK && !same && !listed {
			t.Errorf("a page of %q may use the gateway %q", origin, host)
		}
		if allowed := w.Header().Get("Access-Control-Allow-Origin"); allowed != "" && !listed {
			t.Errorf("a page of %q may read: %q", origin, allowed)
		}
	})
}

// asciiLower is what browsers do with the letters of an origin, and no more.
var asciiLower = strings.NewReplacer(strings.Split("AaBbCcDdEeFfGgHhIiJjKkLlMmNnOoPpQqRrSsTtUuVvWwXxYyZz", "")...)

// lookalikes are origins that resemble https://kernels.example:8443, with what is wrong with each.
var lookalikes = map[string]string{
	"null":                                    "a page without an origin",
	"":                                        "empty",
	"https://kernels.example":                 "another port",
	"https://kernels.example:443":             "another port",
	"http://kernels.example:8443":             "another scheme",
	"https://kernels.example:8443.evil.com":   "a longer port",
	"https://kernels.example.evil.com:8443":   "a longer name",
	"https://evilkernels.example:8443":        "a longer beginning",
	"https://evil.com:8443":                   "another host",
	"https://kernels.example:8443@evil.com":   "a user of another host",
	"https://kernels.example@evil.com:8443":   "the same",
	"https://kernels.example.:8443":           "a dot at the end",
	"https://kernels.example:8443/":           "a path",
	"https://kernels.example:8443,https://x":  "a list",
	"https://kernels.example:08443":           "a zero",
	"https://kernels.example:8443#":           "a fragment",
	"https://kernels.example\\:8443":          "a backslash",
	"https://xn--kernels-.example:8443":       "a name in punycode",
	"https://\u212Aernels.example:8443":       "the sign for Kelvin, which is a k in lower case",
	"https://kernel\u017F.example:8443":       "a long s, which is an S in upper case",
	"https://kernels\u3002example:8443":       "an ideographic full stop",
	"//kernels.example:8443":                  "no scheme",
	"file://kernels.example:8443":             "a file",
	"chrome-extension://kernels.example:8443": "an extension",
}

// Pages whose origin resembles an allowed one are refused, by REST and as websockets, and are told nothing that they
// could read.
func TestOrigin_Lookalikes(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.AllowOrigins = []string{"https://kernels.example:8443"} })
	super := g.fake.add(idA, "python3", launcherIdle)
	for origin, what := range lookalikes {
		set := func(r *http.Request) { r.Header["Origin"] = []string{origin} }
		for path, more := range map[string]func(*http.Request){
			"/api/kernels": func(*http.Request) {},
			"/api/kernels/" + idA +
				"/channels": asUpgrade,
		} {
			got := g.do("GET", path, "", set, more).want(t, http.StatusForbidden, "origin")
			for name := range got.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s (%s): %s is %q", origin, what, name, got.Header[name])
				}
			}
		}
	}
	if sent := super.sent(); sent != "" {
		t.Errorf("the supervisor was reached: %s", sent)
	}
	both := func(r *http.Request) {
		r.Header["Origin"] = []string{"https://kernels.example:8443", "https://evil.com"}
	}
	g.do("GET", "/api/kernels", "", both).want(t, http.StatusForbidden, "origin")
	// Neither is the gateway's own address one that only resembles it.
	own := fmt.Sprintf("http://%s", strings.Replace(g.http.Listener.Addr().String(), "127.0.0.1", "\u212A.example", 1))
	g.do("GET", "/api/kernels", "", func(r *http.Request) {
		r.Host = strings.Replace(strings.TrimPrefix(own, "http://"), "\u212A", "k", 1)
		r.Header.Set("Origin", own)
	}).want(t, http.StatusForbidden, "origin")
}
