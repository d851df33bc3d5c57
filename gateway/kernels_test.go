package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestKernels_Models(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	g.fake.add(idB, "r", api.Dead)
	g.fake.set(idB, api.Dead, "killed by signal 9")
	g.fake.change(func() {
		// A time without a fraction and one with nine digits: both must come out with six.
		g.fake.kernels[idA].LastActivity = time.Date(2026, 11, 21, 6, 0, 0, 0, time.FixedZone("x", 3600))
		g.fake.kernels[idB].LastActivity = time.Date(2026, 11, 21, 6, 0, 0, 123456789, time.UTC)
		g.fake.kernels[idA].Connections = 2
	})
	const a = `{"id":"` + idA + `","name":"python3","last_activity":"2026-11-21T05:00:00.000000Z",` +
		`"execution_state":"idle","connections":2,"created":"2026-11-21T05:53:26.000000Z"}`
	const b = `{"id":"` + idB + `","name":"r","last_activity":"2026-11-21T06:00:00.123456Z",` +
		`"execution_state":"dead","connections":0,"reason":"killed by signal 9",` +
		`"created":"2026-11-21T05:53:27.000000Z"}`
	if got := g.do("GET", "/api/kernels?1732000", "").want(t, 200, "").body; got != "["+a+","+b+"]\n" {
		t.Errorf("list: got %s", got)
	}
	// The supervisor answers for its kernel. A dead kernel has no supervisor.
	g.do("GET", "/api/kernels/"+idA, "").want(t, 200,
		`"last_activity":"2026-11-21T05:53:26.100000Z","execution_state":"busy","connections":3,`+
			`"created":"2026-11-21T05:53:26.000000Z"}`)
	g.do("GET", "/api/kernels/"+idB, "").want(t, 200, strings.TrimSpace(b))
	for name, answer := range map[string]http.HandlerFunc{
		"broken": func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "{") },
		"of another": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"x","execution_state":"idle","last_activity":"2026-11-21T05:53:26.1Z"}`, idB)
		},
		"bad time": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"x","execution_state":"idle","last_activity":"x"}`, idA)
		},
		"failing":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"not found":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		"hanging up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"far too big": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, strings.Repeat(" ", maxAnswer+5))
		},
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "evil=1")
			w.WriteHeader(103)
			w.WriteHeader(200)
		},
	} {
		super.answerWith(answer)
		r := g.do("GET", "/api/kernels/"+idA, "")
		if got := strings.TrimSpace(r.body); r.StatusCode != 200 || got != a || r.Header.Get("Set-Cookie") != "" {
			t.Errorf("supervisor %s: got %d %s, want what the launcher knows", name, r.StatusCode, got)
		}
	}
	super.close()
	g.do("GET", "/api/kernels/"+idA, "").want(t, 200, a)
}

func TestKernels_NeverAPartialList(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.list = func() ([]launcher.Kernel, error) {
		return []launcher.Kernel{{ID: idA}}, fmt.Errorf("local: %w", launcher.ErrUnavailable)
	}
	for _, path := range []string{"/api/kernels", "/api/sessions", "/api/status", "/api/sessions/x"} {
		g.do("GET", path, "").want(t, 503, "")
	}
}

func TestKernels_NotFound(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.gone[idB] = &launcher.GoneError{ID: idB, Reason: "its machine was lost",
		At: time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)}
	for _, req := range []string{"GET ", "DELETE ", "POST /interrupt", "POST /restart", "GET /channels"} {
		method, action, _ := strings.Cut(req, " ")
		change := func(*http.Request) {}
		if action == "/channels" {
			change = asUpgrade
		}
		g.do(method, "/api/kernels/"+idUnknown+action, "", change).want(t, 404, "Kernel does not exist: "+idUnknown)
		g.do(method, "/api/kernels/nonsense"+action, "", change).want(t, 404, "")
		g.do(method, "/api/kernels/"+strings.ToUpper(idA)+action, "", change).want(t, 404, "")
		if method != "DELETE" {
			g.do(method, "/api/kernels/"+idB+action, "", change).want(t, 404, "its machine was lost")
		}
	}
}

func TestKernels_Delete(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	r := g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "")
	if r.body != "" || g.fake.stopped()[idA] == "" {
		t.Errorf("body %q, stopped %v", r.body, g.fake.stopped())
	}
	g.do("DELETE", "/api/kernels/"+idA, "").want(t, 404, "")
}

// A supervisor is told that a cell will follow if its kernel may be parked. No other supervisor is asked.
func TestKernels_Wake(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	path := "/api/kernels/" + idA + "/wake"
	told := func() (n int) {
		for _, text := range super.requests() {
			if strings.HasPrefix(text, "POST "+path+" ") {
				n++
			}
		}
		return n
	}
	g.do("POST", path, "").want(t, 204, "")
	if told() != 0 {
		t.Error("the supervisor of a kernel that cannot be parked was asked")
	}
	g.fake.change(func() { g.fake.kernels[idA].Parked = api.Parked{State: api.GPUParked} })
	if r := g.do("POST", path, "{}").want(t, 202, ""); r.body != "" || told() != 1 {
		t.Errorf("body %q; told %d times", r.body, told())
	}
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }) // an older one
	g.do("POST", path, "").want(t, 503, "")
	g.do("POST", "/api/kernels/"+idUnknown+"/wake", "").want(t, 404, "")
}

func TestKernels_InterruptAndRestart(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	path := "/api/kernels/" + idA
	if r := g.do("POST", path+"/interrupt", "{}").want(t, 204, ""); r.body != "" {
		t.Errorf("body %q", r.body)
	}
	g.do("POST", path+"/restart", "{}").want(t, 200, `"id":"`+idA+`"`)

	t.Run("the supervisor's own refusals are passed on", func(t *testing.T) {
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(409)
			_, _ = fmt.Fprint(w, `{"reason": "Conflict", "message": "no kernel to interrupt"}`)
		})
		g.do("POST", path+"/interrupt", "").want(t, 409, "no kernel to interrupt")
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = fmt.Fprint(w, `{"reason": "Internal Server Error", "message": "the program x is missing"}`)
		})
		g.do("POST", path+"/restart", "").want(t, 500,
			`{"reason":"Kernel failed to start","message":"the program x is missing"}`)
	})
	t.Run("an invalid answer is 503, never 502", func(t *testing.T) {
		for _, status := range []int{101, 204, 302, 401, 404, 421, 502, 504, 500, 999} {
			super.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			g.do("POST", path+"/restart", "").want(t, 503, "")
		}
		super.answerWith(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		g.do("POST", path+"/interrupt", "").want(t, 503, "")
	})
	t.Run("a restart whose delivery is uncertain is not repeated by a revival", func(t *testing.T) {
		g.fake.set(idA, api.Dead, "killed")
		before := len(g.fake.requests())
		g.do("POST", path+"/restart", "").want(t, 503, "killed")
		if len(g.fake.requests()) != before {
			t.Error("it was revived")
		}
	})
	t.Run("a dead kernel whose supervisor lives is restarted by it, and the list knows it", func(t *testing.T) {
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			time.AfterFunc(50*time.Millisecond, func() { g.fake.set(idA, api.Starting, "") })
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
				`"execution_state":"starting"}`, idA)
		})
		g.do("POST", path+"/restart", "").want(t, 200, "starting")
		g.do("GET", "/api/kernels", "").want(t, 200, `"execution_state":"starting"`)
	})
	t.Run("a kernel whose supervisor is about to end is revived", func(t *testing.T) {
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			g.fake.change(func() { g.fake.kernels[idA].super = nil })
			g.fake.set(idA, api.Dead, "its pod was deleted")
			w.WriteHeader(404)
			_, _ = fmt.Fprint(w, `{"reason": "Not Found", "message": "the kernel has ended"}`)
		})
		before := len(g.fake.requests())
		g.do("POST", path+"/restart", "").want(t, 200, `"execution_state":"idle"`)
		if len(g.fake.requests()) != before+1 {
			t.Error("it was not revived")
		}
		super.close()
	})
	t.Run("a kernel whose supervisor ends over the restart is revived", func(t *testing.T) {
		super := g.fake.kernels[idA].super
		super.answerWith(func(http.ResponseWriter, *http.Request) {
			g.fake.change(func() {
				g.fake.kernels[idA].super = nil
				g.fake.kernels[idA].State, g.fake.kernels[idA].Reason = api.Dead, "its pod was deleted"
			})
			panic(http.ErrAbortHandler)
		})
		before := len(g.fake.requests())
		g.do("POST", path+"/restart", "").want(t, 200, `"execution_state":"idle"`)
		if len(g.fake.requests()) != before+1 {
			t.Error("it was not revived")
		}
		super.close()
	})
	t.Run("the launcher's reason of a death replaces the supervisor's", func(t *testing.T) {
		g.fake.kernels[idA].super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			g.fake.set(idA, api.Dead, "its pod was deleted")
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
				`"execution_state":"dead","reason":"a signal"}`, idA)
		})
		g.do("GET", path, "").want(t, 200, `"reason":"its pod was deleted"`)
	})
	t.Run("a dead kernel without a supervisor is revived", func(t *testing.T) {
		g.fake.change(func() {
			g.fake.kernels[idA].super.close()
			g.fake.kernels[idA].super = nil
		})
		g.fake.set(idA, api.Dead, "its supervisor ended")
		g.do("POST", path+"/interrupt", "").want(t, 503, "its supervisor ended")
		g.do("GET", path+"/channels", "", asUpgrade).want(t, 503, "its supervisor ended")
		g.do("POST", path+"/restart", "").want(t, 200, `"execution_state":"idle"`)
		g.do("POST", path+"/interrupt", "").want(t, 204, "")
	})
}

// A kernel whose supervisor is of another protocol version says so everywhere, and the launcher restarts it.
func TestKernels_OtherProtocol(t *testing.T) {
	g := startGateway(t, nil)
	path := "/api/kernels/" + idA
	const why = "its supervisor (9.9) speaks protocol version 9, and this gateway 1 to 2"
	g.fake.add(idA, "python3", api.Unknown).close()
	g.fake.set(idA, api.Unknown, why)
	g.fake.change(func() { g.fake.kernels[idA].super = nil })
	g.fake.dial = func(context.Context, string) (net.Conn, error) { return nil, &launcher.UnsupportedError{Reason: why} }
	for _, from := range []string{path, "/api/kernels"} {
		g.do("GET", from, "").want(t, 200, `"execution_state":"unknown"`)
		g.do("GET", from, "").want(t, 200, why)
	}
	for _, r := range []reply{g.do("POST", path+"/interrupt", ""), g.do("GET", path+"/channels", "", asUpgrade)} {
		r.want(t, 503, `"reason":"Kernel cannot be reached","message":"This gateway cannot speak to the kernel: its`)
	}
	g.do("POST", path+"/restart", "").want(t, 200, `"execution_state":"idle"`)
	if n := len(g.fake.requests()); n != 1 {
		t.Errorf("it was revived %d times", n)
	}
}

func TestKernels_Ended(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "[]")
	g.fake.ended = []launcher.EndedKernel{{ID: idB, SpecName: "r", Owner: "ann", Reason: "it was idle for 1h0m0s",
		Culled: true, At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	const want = `[{"id":"` + idB + `","name":"r","reason":"it was idle for 1h0m0s",` +
		`"ended_at":"2026-01-02T03:04:05.000000Z","culled_at":"2026-01-02T03:04:05.000000Z"}]`
	if got := g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "").body; strings.TrimSpace(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	g.do("GET", "/api/kernels?culled=0", "").want(t, 200, idA)
	g.do("GET", "/api/kernels?culled=yes", "").want(t, 400, "culled is not 1 or 0")
	g.do("GET", "/api/kernels?ended=yes", "").want(t, 400, "ended is not 1 or 0")
	g.do("GET", "/api/kernels?ended=1", "").want(t, 200, want)
	g.fake.ended[0].Culled = false
	g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "[]")
	g.do("GET", "/api/kernels?ended=1", "").want(t, 200, `"ended_at":"2026-01-02T03:04:05.000000Z"}]`)
	g.fake.ended[0].Culled = true
	g.fake.ended[0].Usage = launcher.Usage{Started: time.Date(2026, 1, 2, 1, 4, 5, 0, time.UTC), Seconds: 7200,
		GPUs: gpu.Whole(2)}
	const usage = `"started_at":"2026-01-02T01:04:05.000000Z","seconds":7200,"gpus":2,"gpu_seconds":14400}]`
	got := g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "").body
	if !strings.HasSuffix(strings.TrimSpace(got), usage) {
		t.Errorf("with its usage: %s", got)
	}
	g.fake.endedErr = launcher.ErrUnavailable
	g.do("GET", "/api/kernels?culled=1", "").want(t, 503, "")
}
