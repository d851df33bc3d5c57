package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestKernels_PostRefuses(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.MaxBody = 4 << 20; o.ClientEnv = []string{"FOO"} })
	long := strings.Repeat("x", 32<<10+1)
	for body, want := range map[string]int{
		`[]`: 400, `5`: 400, `"x"`: 400, `{`: 400, `{} x`: 400, "\xff": 400, "{\"name\": \"\xff\"}": 400,
		`{"name": 5}`: 400, `{"path": 5}`: 400, `{"kernel_id": 5}`: 400, `{"env": []}`: 400, `{"env": "x"}`: 400,
		`{"env": {"KERNEL_X": 5}}`:                                          400,
		`{"env": {"KERNEL_X": null}}`:                                       400,
		`{"env": {"FOO": ["x"]}}`:                                           400,
		`{"env": {"KERNEL_X": "a\u0000b"}}`:                                 400,
		`{"env": {"KERNEL_X": "` + long + `"}}`:                             400,
		`{"env": {"KERNEL_X=Y": "z"}}`:                                      400,
		`{"kernel_id": "x"}`:                                                400,
		`{"kernel_id": ""}`:                                                 400,
		`{"kernel_id": "../` + idA + `"}`:                                   400,
		`{"env": {"KERNEL_ID": "x"}}`:                                       400,
		`{"kernel_id": "0A1B2C3D-0000-4000-8000-00000000000A"}`:             400,
		`{"kernel_id": "` + idA + `", "env": {"KERNEL_ID": "` + idB + `"}}`: 400,
		`{"name": "nope"}`:                                                  404,
		`{"name": "../python3"}`:                                            404,
		`{"x": "` + strings.Repeat("x", 4<<20) + `"}`:                       413,
	} {
		g.do("POST", "/api/kernels", body).want(t, want, "")
	}
	if reqs := g.fake.requests(); len(reqs) > 0 {
		t.Errorf("started %v", reqs)
	}
}

func TestKernels_PostStarts(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/gw"; o.ClientEnv = []string{"FOO"} })
	for _, body := range []string{"", " \n", "null", "{}", `{"name": null, "env": null, "kernel_id": null}`,
		`{"name": "r", "path": "a/b", "other": [1]}`} {
		r := g.do("POST", "/gw/api/kernels", body).want(t, 201, `"execution_state":"idle"`)
		m := decode[kernelModel](t, r)
		if got, want := r.Header.Get("Location"), "/gw/api/kernels/"+m.ID; got != want || !launcher.ValidID(m.ID) {
			t.Errorf("Location: got %q, want %q", got, want)
		}
		if want := strings.Contains(body, `"r"`); (m.Name == "r") != want {
			t.Errorf("%s: started %s", body, m.Name)
		}
	}
	t.Run("with the client's variables that may pass", func(t *testing.T) {
		body := `{"name": "python3", "env": {"KERNEL_USERNAME": "ann", "KERNEL_WORKING_DIR": "/home/ann", "FOO": "foo $(x)",
			"PATH": "/evil", "LD_PRELOAD": "x", "JUPYTER_GATEWAY_AUTH_TOKEN": "t", "EKG_KERNEL_ID": "x", "kernel_x": "x", "N": 5}}`
		g.do("POST", "/gw/api/kernels", body).want(t, 201, "")
		reqs := g.fake.requests()
		got := reqs[len(reqs)-1]
		if want := "map[FOO:foo $(x) KERNEL_USERNAME:ann KERNEL_WORKING_DIR:/home/ann]"; fmt.Sprint(got.Env) != want ||
			got.WorkingDir != "/home/ann" {
			t.Errorf("got %v in %q, want %s", got.Env, got.WorkingDir, want)
		}
	})
	t.Run("and never logs them", func(t *testing.T) {
		if text := g.log.String(); strings.Contains(text, "ann") || strings.Contains(text, "foo") {
			t.Errorf("log: %s", text)
		}
	})
}

func TestKernels_PostTwiceIsOneKernel(t *testing.T) {
	g := startGateway(t, nil)
	bodies := []string{`{"kernel_id": "` + idA + `"}`, `{"env": {"KERNEL_ID": "` + idA + `"}}`, `{"kernel_id": "` + idA +
		`", "env": {"KERNEL_ID": "` + idA + `"}}`}
	for _, body := range bodies {
		g.do("POST", "/api/kernels", body).want(t, 201, idA)
	}
	if got := decode[[]kernelModel](t, g.do("GET", "/api/kernels", "")); len(got) != 1 {
		t.Errorf("got %d kernels", len(got))
	}
	g.do("POST", "/api/kernels", `{"name": "r", "kernel_id": "`+idA+`"}`).want(t, 409, "")
	g.fake.set(idA, api.Dead, "it was killed")
	g.do("POST", "/api/kernels", bodies[0]).want(t, 409, "it was killed")
	if stops := g.fake.stopped(); len(stops) > 0 {
		t.Errorf("stopped %v", stops)
	}
}

// The launcher is told which kernels have a client: those whose 201 was written, and those that a request names.
func TestKernels_Claims(t *testing.T) {
	g := startGateway(t, nil)
	claimed := func(id string) bool {
		g.fake.mu.Lock()
		defer g.fake.mu.Unlock()
		was := slices.Contains(g.fake.claims, id)
		g.fake.claims = nil
		return was
	}
	m := decode[kernelModel](t, g.do("POST", "/api/kernels", "").want(t, 201, ""))
	eventually(t, "the claim of a start that was answered", func() bool { return claimed(m.ID) })
	path := "/api/kernels/" + m.ID
	for _, named := range [][3]string{{"POST", "/api/kernels", `{"kernel_id": "` + m.ID + `"}`}, {"GET", path, ""},
		{"POST", path + "/interrupt", ""}, {"POST", path + "/restart", ""},
		{"POST", "/api/sessions", `{"path": "x", "type": "notebook", "kernel": {"id": "` + m.ID + `"}}`},
		{"GET", path + "/log", ""}, {"GET", path + "/channels", ""}} {
		g.do(named[0], named[1], named[2])
		eventually(t, named[0]+" "+named[1], func() bool { return claimed(m.ID) })
	}
	g.do("GET", "/api/kernels", "")
	if claimed(m.ID) {
		t.Error("a list names no kernel")
	}
	t.Run("a start that failed has no client", func(t *testing.T) {
		g.fake.start = func(context.Context, launcher.Request) (launcher.Kernel, bool, error) {
			return launcher.Kernel{}, false, &launcher.FailedError{Reason: "there is no such image"}
		}
		g.do("POST", "/api/kernels", `{"kernel_id": "`+idB+`"}`).want(t, 500, "no such image")
		if claimed(idB) {
			t.Error("it is claimed")
		}
	})
}

func TestKernels_PostWaits(t *testing.T) {
	t.Run("until the start-wait is over", func(t *testing.T) {
		g := startGateway(t, func(o *Options) { o.StartWait = 20 * time.Millisecond })
		g.fake.newState = api.Starting
		m := decode[kernelModel](t, g.do("POST", "/api/kernels", "").want(t, 201, `"execution_state":"starting"`))
		g.do("GET", "/api/kernels/"+m.ID, "").want(t, 200, "")
		if len(g.fake.stopped()) > 0 {
			t.Error("it was stopped")
		}
	})
	t.Run("no longer than its client, whose patience is not the start's limit", func(t *testing.T) {
		g := startGateway(t, func(o *Options) { o.StartWait = time.Hour })
		g.fake.newState = api.Starting
		m := decode[kernelModel](t,
			g.do("POST", "/api/kernels", `{"env": {"KERNEL_LAUNCH_TIMEOUT": "0.02"}}`).want(t, 201,
				`"execution_state":"starting"`))
		g.do("GET", "/api/kernels/"+m.ID, "").want(t, 200, "")
		for _, bad := range []string{"soon", "-1", "0", "NaN", "1e9", " 40"} {
			g.do("POST", "/api/kernels", fmt.Sprintf(`{"env": {"KERNEL_LAUNCH_TIMEOUT": %q}}`, bad)).want(t, 400,
				"KERNEL_LAUNCH_TIMEOUT")
		}
	})
	t.Run("until the kernel is up, also after a restart", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.newState = api.Starting
		var wg sync.WaitGroup
		wg.Go(func() {
			g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`).want(t, 201, `"execution_state":"busy"`)
		})
		eventually(t, "the start", func() bool { return len(g.fake.requests()) == 1 })
		eventually(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
		g.fake.set(idA, api.Restarting, "")
		g.fake.set(idA, api.Busy, "")
		wg.Wait()
	})
	t.Run("until it is dead, and then removes it", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.newState = api.Starting
		var wg sync.WaitGroup
		const reason = "the program /no/such does not exist"
		for range 2 { // the second joins the first: both must hear the reason
			wg.Go(func() {
				r := g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`).want(t, 500, reason)
				if e := decode[errorBody](t, r); e.Reason != reason || e.Message != reason {
					t.Errorf("got %+v", e)
				}
			})
		}
		eventually(t, "both starts", func() bool { return len(g.fake.requests()) == 2 })
		eventually(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
		g.fake.set(idA, api.Dead, reason)
		wg.Wait()
		if stops := g.fake.stopped(); stops[idA] != reason {
			t.Errorf("stopped %v", stops)
		}
		g.do("GET", "/api/kernels", "").want(t, 200, "[]")
	})
	t.Run("and says why it could not be started at all", func(t *testing.T) {
		g := startGateway(t, nil)
		var err error
		g.fake.start = func(context.Context, launcher.Request) (launcher.Kernel, bool, error) {
			return launcher.Kernel{}, false, err
		}
		err = fmt.Errorf("local: %w", &launcher.FailedError{Reason: "no sockets left"})
		g.do("POST", "/api/kernels", "").want(t, 500, `{"reason":"no sockets left","message":"no sockets left"}`)
		err = fmt.Errorf("kube: %w", &launcher.RefusedError{Reason: "privileged is not allowed here"})
		g.do("POST", "/api/kernels", "").want(t, 403,
			`{"reason":"privileged is not allowed here","message":"privileged is not allowed here"}`)
		err = launcher.ErrUnavailable
		g.do("POST", "/api/kernels", "").want(t, 503, "")
		err = errors.New("internal secret /path")
		if r := g.do("POST", "/api/kernels", "").want(t, 500, ""); strings.Contains(r.body, "secret") {
			t.Errorf("an unknown error is shown: %s", r.body)
		}
		eventually(t, "the unknown error in the log",
			func() bool { return strings.Contains(g.log.String(), "internal secret /path") })
	})
}

// A client that gives up does not know the kernel's id: without the removal it would run for ever.
func TestKernels_PostCancelledRemovesTheKernel(t *testing.T) {
	for name, client := range map[string]struct {
		body string
		join bool // another request names the same kernel and waits on
	}{
		"its only client":   {body: `{"kernel_id": "` + idA + `"}`},
		"one client of two": {body: `{"kernel_id": "` + idA + `"}`, join: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGateway(t, nil)
			g.fake.newState = api.Starting
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", g.http.URL+"/api/kernels?token="+testToken,
				strings.NewReader(client.body))
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if resp, err := g.http.Client().Do(req); err == nil {
					t.Errorf("got %d", resp.StatusCode)
					_ = resp.Body.Close()
				}
			})
			eventually(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
			if client.join {
				wg.Go(func() { g.do("POST", "/api/kernels", client.body).want(t, 201, "idle") })
				eventually(t, "the second start", func() bool { return len(g.fake.requests()) == 2 })
			}
			cancel()
			eventually(t, "the 499 in the log", func() bool { return strings.Contains(g.log.String(), "status=499") })
			if client.join {
				g.fake.set(idA, api.Idle, "")
				wg.Wait()
				g.do("GET", "/api/kernels", "").want(t, 200, idA)
				return
			}
			wg.Wait()
			if stops := g.fake.stopped(); stops[idA] == "" {
				t.Errorf("stopped %v", stops)
			}
			if strings.Contains(g.log.String(), testToken) {
				t.Error("the token is in the log")
			}
		})
	}
}

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
	const a = `{"id":"` + idA +
		`","name":"python3","last_activity":"2026-11-21T05:00:00.000000Z","execution_state":"idle","connections":2}`
	const b = `{"id":"` + idB +
		`","name":"r","last_activity":"2026-11-21T06:00:00.123456Z","execution_state":"dead","connections":0,"reason":"killed by signal 9"}`
	if got := g.do("GET", "/api/kernels?1732000", "").want(t, 200, "").body; got != "["+a+","+b+"]\n" {
		t.Errorf("list: got %s", got)
	}
	// One kernel is asked of its supervisor, a dead one is not.
	g.do("GET", "/api/kernels/"+idA, "").want(t, 200,
		`"last_activity":"2026-11-21T05:53:26.100000Z","execution_state":"busy","connections":3}`)
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
			_, _ = fmt.Fprint(w, `{"reason": "Conflict", "message": "there is no kernel to interrupt"}`)
		})
		g.do("POST", path+"/interrupt", "").want(t, 409, "there is no kernel to interrupt")
		super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			_, _ = fmt.Fprint(w, `{"reason": "Internal Server Error", "message": "the program x is missing"}`)
		})
		g.do("POST", path+"/restart", "").want(t, 500,
			`{"reason":"the program x is missing","message":"the program x is missing"}`)
	})
	t.Run("what is no answer is 503, never 502", func(t *testing.T) {
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
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"starting"}`, idA)
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
	t.Run("why a kernel is dead the launcher knows better than its supervisor", func(t *testing.T) {
		g.fake.kernels[idA].super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			g.fake.set(idA, api.Dead, "its pod was deleted")
			_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"dead","reason":"a signal"}`, idA)
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

// Two kernels under one transport must never answer for each other, and a supervisor that says it is somebody else's
// must not be asked again on that connection.
func TestProxy_KernelsAreKeptApart(t *testing.T) {
	g := startGateway(t, nil)
	supers := map[string]*fakeSupervisor{idA: g.fake.add(idA, "python3", api.Idle),
		idB: g.fake.add(idB, "python3", api.Idle)}
	var wg sync.WaitGroup
	for range 4 {
		for id := range supers {
			wg.Go(func() {
				for range 50 {
					g.do("GET", "/api/kernels/"+id, "").want(t, 200, id)
					g.do("POST", "/api/kernels/"+id+"/interrupt", "").want(t, 204, "")
				}
			})
		}
	}
	wg.Wait()
	for id, super := range supers {
		other := idA
		if id == idA {
			other = idB
		}
		if sent := super.sent(); strings.Contains(sent, other) || !strings.Contains(sent, "host="+id) {
			t.Errorf("the supervisor of %s was asked for %s", id, other)
		}
	}

	t.Run("421 closes what leads there", func(t *testing.T) {
		g.do("POST", "/api/kernels/"+idA+"/interrupt", "").want(t, 204, "")
		supers[idA].answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(421) })
		g.do("POST", "/api/kernels/"+idA+"/interrupt", "").want(t, 503, "")
		g.do("POST", "/api/kernels/"+idB+"/interrupt", "").want(t, 204, "")
		g.fake.mu.Lock()
		before := g.fake.dials
		g.fake.mu.Unlock()
		supers[idA].answerWith(nil)
		g.do("POST", "/api/kernels/"+idA+"/interrupt", "").want(t, 204, "")
		g.fake.mu.Lock()
		defer g.fake.mu.Unlock()
		if g.fake.dials == before {
			t.Error("the connection was used again")
		}
	})
}

// TestKernels_Keep: what is asked for reaches the supervisor as it was understood, and its refusal reaches the client.
func TestKernels_Keep(t *testing.T) {
	g := startGateway(t, nil)
	s := g.fake.add(idA, "python3", api.Idle)
	path := "/api/kernels/" + idA
	for body, words := range map[string]string{
		``: "names nothing to change", `{}`: "names nothing to change", `{"keep_until": 5}`: "keep_until is not a string",
		`{"keep_until": "tomorrow"}`:        "RFC 3339",
		`{"keep_until": null, "name": "x"}`: "a member that cannot be changed", `[]`: "not a JSON object",
	} {
		g.do("PATCH", path, body).want(t, 400, words)
	}
	if sent := s.sent(); strings.Contains(sent, "PATCH") {
		t.Errorf("the supervisor got %s", sent)
	}
	s.answerWith(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z","execution_state":"idle","connections":0,"keep_until":"2026-11-22T05:53:26Z","cull_at":"2026-11-23T05:53:26Z"}`, idA)
	})
	g.do("PATCH", path, `{"keep_until": "2026-11-22T06:53:26+01:00"}`).want(t, 200,
		`"cull_at":"2026-11-23T05:53:26.000000Z","keep_until":"2026-11-22T05:53:26.000000Z"`)
	g.do("PATCH", path, `{"keep_until": null}`).want(t, 200, "")
	if sent := s.sent(); !strings.Contains(sent, `{"keep_until":"2026-11-22T06:53:26+01:00"}`) ||
		!strings.Contains(sent, `{"keep_until":null}`) || strings.Contains(sent, testToken) {
		t.Errorf("the supervisor got %s", sent)
	}
	s.answerWith(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"reason": "Forbidden", "message": "keep_until can be at most 1h0m0s from now"}`)
	})
	g.do("PATCH", path, `{"keep_until": "2026-11-22T06:53:26Z"}`).want(t, 403, "at most 1h0m0s from now")
	g.fake.set(idA, api.Dead, "it was idle for 1h0m0s")
	g.do("PATCH", path, `{"keep_until": "2026-11-22T06:53:26Z"}`).want(t, 409, "it was idle for 1h0m0s")
	g.do("PATCH", "/api/kernels/"+idUnknown, `{"keep_until": null}`).want(t, 404, "")
	g.fake.addStarting(idB, "")
	g.do("PATCH", "/api/kernels/"+idB, `{"keep_until": null}`).want(t, 409, "starting")
}

func TestKernels_Culled(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "[]")
	g.fake.culled = []launcher.CulledKernel{{ID: idB, SpecName: "r", Owner: "ann", Reason: "it was idle for 1h0m0s",
		At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}
	const want = `[{"id":"` + idB +
		`","name":"r","reason":"it was idle for 1h0m0s","culled_at":"2026-01-02T03:04:05.000000Z"}]`
	if got := g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "").body; strings.TrimSpace(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	g.do("GET", "/api/kernels?culled=0", "").want(t, 200, idA)
	g.do("GET", "/api/kernels?culled=yes", "").want(t, 400, "culled is not 1 or 0")
	g.fake.culled[0].Usage = launcher.Usage{Started: time.Date(2026, 1, 2, 1, 4, 5, 0, time.UTC), Seconds: 7200, GPUs: 2}
	const usage = `"started_at":"2026-01-02T01:04:05.000000Z","seconds":7200,"gpus":2,"gpu_seconds":14400}]`
	if got := g.do("GET", "/api/kernels?culled=1", "").want(t, 200, "").body; !strings.HasSuffix(strings.TrimSpace(got),
		usage) {
		t.Errorf("with its usage: %s", got)
	}
	g.fake.culledErr = launcher.ErrUnavailable
	g.do("GET", "/api/kernels?culled=1", "").want(t, 503, "")
}
