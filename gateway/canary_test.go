package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A secret that stands in any input, the right token included, is in no log at any level, not in the audit log, in no
// metric, in no error and in nothing that a supervisor gets. What a client calls itself in KERNEL_USERNAME, the names
// of kernelspecs, and the ids of kernels and sessions are no secrets.
func TestCanary(t *testing.T) {
	const (
		canary     = "CANARY5f1d"
		idStarting = "0a1b2c3d-0000-4000-8000-00000000000c"
	)
	audit := &transcript.Buffer{}
	g := startGateway(t, func(o *Options) {
		o.Audit, o.Token, o.ClientEnv, o.AllowOrigins = audit, canary, []string{"MY_TOKEN"}, []string{"https://lab.example"}
		o.Specs = &specDir{specs: append(slices.Clone(testSpecs(t).List()),
			kernelspecs.Spec{Name: "secretive", Argv: []string{"x", canary},
				DisplayName: "S", Language: "x", Env: map[string]string{"API_KEY": canary}})}
	})
	s := g.fake.add(idA, "python3", api.Busy)
	g.fake.add(idB, "python3", api.Busy).answerWith(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
	})
	g.fake.addStarting(idStarting, "")

	places := map[string]func(*http.Request){
		"right token": func(r *http.Request) { r.Header.Set("Authorization", "token "+canary) },
		"wrong token": func(r *http.Request) { r.Header.Set("Authorization", "token x"+canary) },
		"odd header":  func(r *http.Request) { r.Header.Set("Authorization", canary) },
		"everywhere": func(r *http.Request) {
			r.Header.Set("Authorization", "token "+canary)
			for _, name := range []string{
				"Cookie", "User-Agent", "X-Request-Id", "X-Forwarded-For", "Referer", "Accept", "X-" + canary,
			} {
				r.Header.Set(name, canary)
			}
			r.URL.RawQuery = "token=" + canary + "&session_id=" + canary + "&after=" + canary + "&" + canary + "=" + canary
		},
		"origin": func(r *http.Request) { r.Header.Set("Origin", "https://"+canary+".example") },
		"host":   func(r *http.Request) { r.Host = canary + ".example" },
	}
	env := `{"KERNEL_SECRET":"` + canary + `","MY_TOKEN":"` + canary + `","OTHER":"` + canary + `","` + canary + `":"x"`
	bodies := []string{
		"", canary, `"` + canary + `"`, `{"` + canary + `":"` + canary + `"}`,
		`{"name":"none","x":"` + canary + `"}`, `{"name":["` + canary + `"]}`,
		`{"name":"python3","env":` + env + `}}`, `{"name":"secretive","env":` + env + `}}`,
		`{"name":"python3","env":` + env + `,"KERNEL_LAUNCH_TIMEOUT":"` + canary + `"}}`,
		`{"name":"python3","env":{"KERNEL_` + canary + `-":"x"}}`, `{"name":"python3","env":{"KERNEL_X":["` + canary + `"]}}`,
		`{"name":"python3","kernel_id":"` + canary + `"}`,
		`{"path":"` + canary + `","name":"none","type":"` + canary + `","kernel":{"name":"none","x":"` + canary + `"}}`,
		`{"path":"` + canary + `","name":"none","type":"` + canary + `","kernel":{"id":"` + idUnknown + `","name":"r","x":"` +
			canary + `"}}`,
	}
	paths := []string{
		"/api/kernels", "/api/kernels/none?x=" + canary,
		"/api/kernels/" + idA, "/api/kernels/" + idB, "/api/kernels/" + idUnknown,
		"/api/kernels/" + idA + "/interrupt", "/api/kernels/" + idA + "/wake", "/api/kernels/" + idB + "/restart",
		"/api/kernels/" + idA + "/log", "/api/kernels/" + idB + "/log",
		"/api/kernels/none/channels?x=" + canary, "/api/kernels/" + idUnknown + "/channels",
		"/api/sessions", "/api/sessions/none?x=" + canary,
		"/api/kernelspecs/none?x=" + canary, "/kernelspecs/python3/" + canary,
		"/" + canary, "/api/me?permissions=" + canary,
	}
	errors := 0
	for name, place := range places {
		for _, path := range paths {
			for _, method := range []string{"GET", "POST", "PATCH", "HEAD", "OPTIONS", "BREW"} {
				for _, body := range bodies {
					if body != "" && (method != "POST" && method != "PATCH" || name != "right token" ||
						strings.HasSuffix(path, "/restart")) {
						continue // no handler reads it
					}
					r := httptest.NewRequest(method, "http://gateway"+path, strings.NewReader(body))
					place(r)
					w := httptest.NewRecorder()
					g.Handler().ServeHTTP(w, r)
					if w.Code < 400 {
						continue
					}
					errors++
					if strings.Contains(w.Body.String()+fmt.Sprint(w.Header()), canary) {
						t.Errorf("%s %s (%s) %s: %d %v %s", method, path, name, body, w.Code, w.Header(), w.Body)
					}
				}
			}
		}
	}
	for _, id := range []string{idA, idStarting} { // with a supervisor, and in the lobby
		conn, _ := g.dialChannels(id, "?session_id="+url.QueryEscape(canary)+"&token="+canary, func(r *http.Request) {
			r.Header.Set("Authorization", "token "+canary)
			r.Header.Set("Cookie", canary)
		})
		if _, err := conn.Write([]byte("\x81\x8a\x00\x00\x00\x00" + canary)); err != nil { // a masked text frame
			t.Fatal(err)
		}
		_ = conn.Close()
		poll.Until(t, "the websocket's end is written", func() bool {
			return strings.Contains(audit.String(), `"disconnect"`) && scrape(t, g.metrics)["ekg_websockets"] == "0"
		})
	}
	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for name, text := range map[string]string{
		"log": g.log.String(), "audit log": audit.String(), "metrics": w.Body.String(),
	} {
		if len(text) < 1000 {
			t.Errorf("the %s has %d bytes: the test proves nothing", name, len(text))
		}
		for line := range strings.Lines(text) {
			if strings.Contains(line, canary) {
				t.Errorf("the %s has the canary: %s", name, line)
			}
		}
	}
	// The session id of a websocket is for its supervisor, if it is not the token.
	if text := s.sent(); len(text) < 100 || strings.Contains(text, canary) {
		t.Errorf("the supervisor was sent\n%s", text)
	}
	if errors < 500 {
		t.Errorf("there were %d errors", errors)
	}
}
