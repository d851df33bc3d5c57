package gateway

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// audited starts a gateway whose audit log can be read.
func audited(t *testing.T, change func(*Options)) (*testGateway, func() []map[string]any) {
	t.Helper()
	log := &transcript.Buffer{}
	g := startGateway(t, func(o *Options) {
		o.Audit = log
		if change != nil {
			change(o)
		}
	})
	return g, func() (all []map[string]any) {
		for line := range strings.Lines(log.String()) {
			var e map[string]any
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			all = append(all, e)
		}
		return all
	}
}

// brief is what matters of an entry, in a line.
func brief(e map[string]any) string {
	text := ""
	for _, key := range []string{"action", "outcome", "check", "user", "claims", "kernel", "spec"} {
		if v, ok := e[key].(string); ok {
			text += " " + v
		}
	}
	return strings.TrimSpace(text)
}

// Each start, stop, interrupt, restart, connection and refusal is in the audit log, once; a request that only looks
// is not.
func TestAudit(t *testing.T) {
	g, entries := audited(t, func(o *Options) { o.AllowOrigins = []string{"https://lab.example"} })
	body := `{"name":"python3","kernel_id":"` + idA + `","env":{"KERNEL_USERNAME":"ann@lab"}}`
	noToken := func(r *http.Request) { r.Header.Del("Authorization") }
	steps := []struct {
		do   func()
		want string
	}{
		{func() { g.do("GET", "/api/kernels", "") }, ""},
		{func() { g.do("GET", "/healthz", "", noToken) }, ""},
		{func() { g.do("POST", "/api/kernels", body).want(t, 201, "") }, "start done anonymous ann@lab " + idA + " python3"},
		{func() { g.do("POST", "/api/kernels", `{"name":"nothing"}`).want(t, 404, "") }, "start failed anonymous"},
		{func() { g.do("POST", "/api/kernels/"+idA+"/interrupt", "").want(t, 204, "") }, "interrupt done anonymous " + idA},
		{func() { g.do("POST", "/api/kernels/"+idA+"/restart", "").want(t, 200, "") }, "restart done anonymous " + idA},
		{func() { g.do("GET", "/api/kernels/"+idA+"/channels", "").want(t, 400, "") }, "connect failed anonymous " + idA},
		{func() {
			g.do("POST", "/api/sessions", `{"path":"secret/path.ipynb","type":"notebook","kernel":{"id":"`+idA+`"}}`).want(t,
				201, "")
		}, "open session done anonymous " + idA},
		{func() { g.do("GET", "/api/kernels", "", noToken).want(t, 403, "") }, "look refused token"},
		{func() { g.do("DELETE", "/api/kernels/"+idA, "", noToken).want(t, 403, "") }, "stop refused token " + idA},
		{func() {
			g.do("POST", "/api/kernels", body, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }).want(t,
				403, "")
		}, "start refused origin"},
		{func() { g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "") }, "stop done anonymous " + idA},
		{func() { g.do("DELETE", "/api/kernels/"+idA, "").want(t, 404, "") }, "stop failed anonymous " + idA},
	}
	for _, s := range steps {
		before := len(entries())
		s.do()
		// The entry is written behind the answer.
		if s.want != "" {
			poll.Until(t, s.want, func() bool { return len(entries()) > before })
		}
		var got []string
		for _, e := range entries()[before:] {
			got = append(got, brief(e))
			if e["time"] == "" || e["remote"] != "127.0.0.1" || len(e["request"].(string)) != 16 || e["route"] == "" ||
				e["status"] == nil {
				t.Errorf("entry %v", e)
			}
		}
		if text := strings.Join(got, "; "); text != s.want {
			t.Errorf("got  %q\nwant %q", text, s.want)
		}
	}
	if n := len(entries()); n != len(steps)-2 {
		t.Errorf("%d entries in the end", n)
	}
}

// TestAudit_Users: each entry names the user of the request, and each refusal names the check that refused. This holds
// also for kernels that the client is not allowed to see.
func TestAudit_Users(t *testing.T) {
	log := &transcript.Buffer{}
	g := startUserGateway(t, func(o *Options) { o.Audit, o.StartsPerMinute, o.ConnectionsPerUser = log, 1, 1 })
	super := g.addShared()
	g.fake.add(idB, "python3", api.Idle)
	g.fake.change(func() {
		g.fake.kernels[idB].Owner = "bob"
		g.fake.kernels[idB].Sessions = []launcher.Session{{ID: "s9", User: "bob", Path: "b.ipynb"}}
	})
	path := "/api/kernels/" + idA
	claim := `{"name": "python3", "env": {"KERNEL_USERNAME": "root"}}`
	for _, s := range []struct {
		user, method, path, body string
		status                   int
		want, check              string
	}{
		{"bob", "POST", "/api/kernels", claim, 201, "start done bob root * python3", ""},
		{"bob", "POST", "/api/kernels", claim, 429, "start refused limit bob root * python3", "limit"},
		{"bob", "POST", "/api/sessions", `{"path": "x", "type": "y"}`, 429, "open session refused limit bob * python3",
			"limit"},
		{"uma", "POST", path + "/interrupt", "", 204, "interrupt done uma " + idA, ""},
		{"ann", "PATCH", path, `{"keep_until": null}`, 200, "change done ann " + idA, ""},
		{"root", "POST", path + "/restart", "", 200, "restart done root " + idA, ""},
		{"bob", "GET", path, "", 404, "look refused access bob " + idA, "access"},
		{"bob", "DELETE", path, "", 404, "stop refused access bob " + idA, "access"},
		{"bob", "PATCH", path, `{"keep_until": null}`, 404, "change refused access bob " + idA, "access"},
		{"bob", "GET", path + "/channels", "", 404, "connect refused access bob " + idA, "access"},
		{"bob", "GET", path + "/log", "", 404, "read log refused access bob " + idA, "access"},
		{"bob", "DELETE", "/api/sessions/s1", "", 404, "close session refused access bob", "access"},
		{"bob", "PATCH", "/api/sessions/s9", `{"kernel": {"id": "` + idA + `"}}`, 400, "change session refused access bob " +
			idB, "access"},
		{"uma", "DELETE", path, "", 403, "stop refused access uma " + idA, "access"},
		{"rita", "POST", path + "/interrupt", "", 403, "interrupt refused access rita " + idA, "access"},
		{"rita", "POST", "/api/sessions", `{"path": "x", "type": "y", "kernel": {"id": "` + idA + `"}}`, 403,
			"open session refused access rita", "access"},
		{"bob", "DELETE", "/api/kernels/" + idUnknown, "", 404, "stop failed bob " + idUnknown, ""},
		{"bob", "DELETE", "/api/sessions/s2", "", 404, "close session failed bob", ""},
		{"stranger", "DELETE", path, "", 403, "stop refused token " + idA, "token"},
		{"stranger", "GET", "/api/kernels?culled=1", "", 403, "look refused token", "token"},
		{"ann", "GET", "/api/kernels?culled=1", "", 200, "", ""},
	} {
		before := log.String()
		resp := g.do(s.method, s.path, s.body, as(s.user)).want(t, s.status, "")
		id := resp.Header.Get(api.HeaderRequestID)
		var line string
		poll.Until(t, "the request is logged", func() bool {
			for l := range strings.Lines(g.log.String()) {
				if strings.Contains(l, "msg=request") && strings.Contains(l, "request="+id) {
					line = l
				}
			}
			return line != ""
		})
		if named := strings.Contains(line, " user="+s.user+" "); named != (s.user != "stranger") ||
			strings.Contains(line, "user=") != named {
			t.Errorf("%s %s: the user of the request is not in %s", s.method, s.path, line)
		}
		added, got := strings.TrimPrefix(log.String(), before), ""
		if added != "" {
			var e map[string]any
			if err := json.Unmarshal([]byte(added), &e); err != nil {
				t.Fatalf("%v in %q", err, added)
			}
			if k, _ := e["kernel"].(string); strings.Contains(s.want, "*") && launcher.ValidID(k) {
				e["kernel"] = "*"
			}
			got = brief(e)
			if check, _ := e["check"].(string); check != s.check || e["status"] != float64(s.status) || e["request"] != id {
				t.Errorf("entry %v", e)
			}
		}
		if got != s.want {
			t.Errorf("%s %s by %s:\ngot  %q\nwant %q", s.method, s.path, s.user, got, s.want)
		}
	}
	conn, _ := g.dialChannels(idA, "", as("rita"))
	g.do("GET", path+"/channels", "", as("rita"), asUpgrade).want(t, 429, "")
	_ = conn.Close()
	for _, want := range []string{
		`"connect","outcome":"done","status":101,"user":"rita"`,
		`"connect","outcome":"refused","status":429,"check":"limit","user":"rita"`,
		`"disconnect","outcome":"done","user":"rita"`,
	} {
		poll.Until(t, want, func() bool { return strings.Contains(log.String(), want) })
	}
	poll.Until(t, "both lines of the websocket name who has it", func() bool {
		n := 0
		for line := range strings.Lines(g.log.String()) {
			if strings.Contains(line, `msg="websocket `) && strings.Contains(line, "user=rita") {
				n++
			}
		}
		return n == 2
	})
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"reason": "Forbidden", "message": "keep_until can be at most 1h0m0s from now"}`))
	})
	g.do("PATCH", path, `{"keep_until": null}`, as("ann")).want(t, 403, "")
	poll.Until(t, "the supervisor's refusal", func() bool {
		return strings.Contains(log.String(), `"change","outcome":"refused","status":403,"check":"supervisor","user":"ann"`)
	})
}

// A websocket has one id in the audit log, in the log and in the supervisor's requests. It is logged when it opens, and
// when it ends with what passed.
func TestAudit_Websocket(t *testing.T) {
	g, entries := audited(t, nil)
	s := g.fake.add(idA, "python3", api.Idle)
	conn, answers := g.dialChannels(idA, "")
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := answers.Peek(5); err != nil {
		t.Fatal(err)
	}
	opened := entries()
	if len(opened) != 1 || brief(opened[0]) != "connect done anonymous "+idA || opened[0]["status"] != 101.0 {
		t.Fatalf("opened: %v", opened)
	}
	_ = conn.Close()
	poll.Until(t, "the end is known", func() bool { return len(entries()) == 2 })
	closed := entries()[1]
	if brief(closed) != "disconnect done anonymous "+idA || closed["bytes_in"] != 5.0 || closed["bytes_out"] != 5.0 ||
		closed["seconds"].(float64) <= 0 {
		t.Errorf("closed: %v", closed)
	}
	id := opened[0]["request"].(string)
	if closed["request"] != id || !strings.Contains(s.sent(), "X-Request-Id: "+id) {
		t.Errorf("request %s is %s in the end, and the supervisor was sent\n%s", id, closed["request"], s.sent())
	}
	for _, text := range []string{"websocket opened", "websocket closed"} {
		n := 0
		for line := range strings.Lines(g.log.String()) {
			if strings.Contains(line, text) && strings.Contains(line, "request="+id) && strings.Contains(line, "level=INFO") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d lines say %s:\n%s", n, text, g.log)
		}
	}
}

// Each request is one line of the log. Reading requests are logged at debug level, changing and rejected ones at info.
func TestLogRequest(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	for _, tt := range []struct {
		method, path, want string
		token              bool
	}{
		{"GET", "/api/kernels", "level=DEBUG", true},
		{"GET", "/api/kernels/" + idUnknown, "level=DEBUG", true},
		{"POST", "/api/kernels/" + idA + "/interrupt", "level=INFO", true},
		{"GET", "/api/kernels", "level=INFO", false},
	} {
		resp := g.do(tt.method, tt.path, "", func(r *http.Request) {
			if !tt.token {
				r.Header.Del("Authorization")
			}
		})
		id := resp.Header.Get(api.HeaderRequestID)
		var lines []string
		poll.Until(t, "the line is written", func() bool {
			lines = nil
			for line := range strings.Lines(g.log.String()) {
				if strings.Contains(line, "request="+id) && strings.Contains(line, "msg=request") {
					lines = append(lines, line)
				}
			}
			return len(lines) > 0
		})
		if len(lines) != 1 || !strings.Contains(lines[0], tt.want) {
			t.Errorf("%s %s: %q, want one line with %s", tt.method, tt.path, lines, tt.want)
		}
	}
}

// The supervisor that ends its kernel gets the id of the request.
func TestRequestID_Stop(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	resp := g.do("DELETE", "/api/kernels/"+idA, "")
	resp.want(t, 204, "")
	g.fake.change(func() {
		if got, want := g.fake.stopRequests[idA], resp.Header.Get(api.HeaderRequestID); got != want || got == "" {
			t.Errorf("the launcher has request id %q, the client %q", got, want)
		}
	})
}

// flaky is a disk that is full for some time.
type flaky struct {
	mu    sync.Mutex
	full  bool
	lines int
}

func (f *flaky) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return 0, errors.New("no space left on device")
	}
	f.lines++
	return len(b), nil
}

// A failure of the audit log is logged once and counted each time. Requests are served all the same.
func TestAudit_Broken(t *testing.T) {
	disk, log := &flaky{full: true}, &transcript.Buffer{}
	counted := metrics.New("1")
	o := kernels.Options{Audit: disk, Metrics: counted, Log: slog.New(slog.NewTextHandler(log, nil))}
	a := kernels.New(o, nil).Audit()
	for range 3 {
		a.Write(kernels.Entry{Action: "stop"})
	}
	disk.full = false
	for range 2 {
		a.Write(kernels.Entry{Action: "stop"})
	}
	wantSeries(t, scrape(t, counted), map[string]string{"ekg_audit_failures_total": "3"})
	if text := log.String(); strings.Count(text, "cannot be written") != 1 ||
		strings.Count(text, "is written again") != 1 || disk.lines != 2 {
		t.Errorf("%d lines were written, and said\n%s", disk.lines, text)
	}
}

// Requests without a valid token write a bounded number of lines. Each request without a line is counted once.
func TestAudit_Flood(t *testing.T) {
	audit := &transcript.Buffer{}
	g := startGateway(t, func(o *Options) { o.Audit = audit })
	const requests = 1000
	for range requests {
		r := httptest.NewRequest("GET", "http://gateway/api/kernels?token=x", nil)
		g.Handler().ServeHTTP(httptest.NewRecorder(), r)
	}
	g.reportHeld()
	lines, others := 0, 0
	for line := range strings.Lines(audit.String()) {
		var e kernels.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		lines++
		others += e.Others
	}
	if lines > requests/2 || others == 0 {
		t.Errorf("%d lines for %d requests", lines, requests)
	}
	if counted := lines + others; counted != requests && counted != requests+1 { // the last line may be of no request
		t.Errorf("%d lines and %d others, want %d", lines, others, requests)
	}
	if n := strings.Count(g.log.String(), "msg=request"); n != lines && n != lines-1 {
		t.Errorf("%d lines in the log, %d in the audit log", n, lines)
	}
}

// TestAudit_Flavor: the entry of a start names its flavor. A name that no flavor has is in no entry.
func TestAudit_Flavor(t *testing.T) {
	g, entries := audited(t, withFlavors)
	g.do("POST", "/api/kernels", `{"name": "python3", "flavor": "t4"}`).want(t, 201, "")
	g.do("POST", "/api/kernels", `{"name": "python3", "flavor": "none-of-them"}`).want(t, 400, "")
	var flavors []any
	poll.Until(t, "both starts are in the log", func() bool { // an entry is written behind the answer
		flavors = nil
		for _, e := range entries() {
			if e["action"] == "start" {
				flavors = append(flavors, e["flavor"])
			}
		}
		return len(flavors) == 2
	})
	if flavors[0] != "t4" || flavors[1] != nil {
		t.Errorf("%v", flavors)
	}
}
