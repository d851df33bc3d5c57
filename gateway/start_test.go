package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
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
	for _, body := range []string{
		"", " \n", "null", "{}", `{"name": null, "env": null, "kernel_id": null}`,
		`{"name": "r", "path": "a/b", "other": [1]}`,
	} {
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
		body := `{"name": "python3", "env": {"KERNEL_USERNAME": "ann", "KERNEL_WORKING_DIR": "/home/ann",
			"FOO": "foo $(x)", "PATH": "/evil", "LD_PRELOAD": "x", "JUPYTER_GATEWAY_AUTH_TOKEN": "t",
			"EKG_KERNEL_ID": "x", "kernel_x": "x", "N": 5}}`
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
	bodies := []string{
		`{"kernel_id": "` + idA + `"}`,
		`{"env": {"KERNEL_ID": "` + idA + `"}}`,
		`{"kernel_id": "` + idA + `", "env": {"KERNEL_ID": "` + idA + `"}}`,
	}
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

// TestKernels_Claims: the gateway claims kernels that have a client. These are kernels whose 201 was written, and
// kernels that a request names.
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
	poll.Until(t, "the claim of a start that was answered", func() bool { return claimed(m.ID) })
	path := "/api/kernels/" + m.ID
	for _, named := range [][3]string{
		{"POST", "/api/kernels", `{"kernel_id": "` + m.ID + `"}`},
		{"GET", path, ""}, {"POST", path + "/interrupt", ""}, {"POST", path + "/restart", ""},
		{"POST", "/api/sessions", `{"path": "x", "type": "notebook", "kernel": {"id": "` + m.ID + `"}}`},
		{"GET", path + "/log", ""}, {"GET", path + "/channels", ""},
	} {
		g.do(named[0], named[1], named[2])
		poll.Until(t, named[0]+" "+named[1], func() bool { return claimed(m.ID) })
	}
	g.do("GET", "/api/kernels", "")
	if claimed(m.ID) {
		t.Error("a list names no kernel")
	}
	t.Run("a start that failed has no client", func(t *testing.T) {
		g.fake.start = func(context.Context, launcher.Request) (launcher.Kernel, bool, error) {
			return launcher.Kernel{}, false, &launcher.FailedError{Reason: "no such image"}
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
		impatient := `{"env": {"KERNEL_LAUNCH_TIMEOUT": "0.02"}}`
		m := decode[kernelModel](t,
			g.do("POST", "/api/kernels", impatient).want(t, 201, `"execution_state":"starting"`))
		g.do("GET", "/api/kernels/"+m.ID, "").want(t, 200, "")
		for _, bad := range []string{"soon", "-1", "0", "NaN", "1e9", " 40"} {
			body := fmt.Sprintf(`{"env": {"KERNEL_LAUNCH_TIMEOUT": %q}}`, bad)
			g.do("POST", "/api/kernels", body).want(t, 400, "KERNEL_LAUNCH_TIMEOUT")
		}
	})
	t.Run("until the kernel is up, also after a restart", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.newState = api.Starting
		var wg sync.WaitGroup
		wg.Go(func() {
			g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`).want(t, 201, `"execution_state":"busy"`)
		})
		poll.Until(t, "the start", func() bool { return len(g.fake.requests()) == 1 })
		poll.Until(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
		g.fake.set(idA, api.Restarting, "")
		g.fake.set(idA, api.Busy, "")
		wg.Wait()
	})
	t.Run("until it is dead, and then removes it", func(t *testing.T) {
		g := startGateway(t, nil)
		g.fake.newState = api.Starting
		var wg sync.WaitGroup
		const reason = "the program /no/such does not exist"
		for range 2 { // the second joins the first: both must get the reason
			wg.Go(func() {
				r := g.do("POST", "/api/kernels", `{"kernel_id": "`+idA+`"}`).want(t, 500, reason)
				if e := decode[errorBody](t, r); e.Reason != "Kernel failed to start" || e.Message != reason {
					t.Errorf("got %+v", e)
				}
			})
		}
		poll.Until(t, "both starts", func() bool { return len(g.fake.requests()) == 2 })
		poll.Until(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
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
		g.do("POST", "/api/kernels", "").want(t, 500, `{"reason":"Kernel failed to start","message":"no sockets left"}`)
		err = fmt.Errorf("kube: %w", &launcher.RefusedError{Reason: "privileged is not allowed here"})
		g.do("POST", "/api/kernels", "").want(t, 403,
			`{"reason":"Forbidden","message":"privileged is not allowed here"}`)
		long := "the kernel's process ended with exit code 1: /opt/conda/envs/some-long-name/bin/python3.12: " +
			"No module named ipykernel_launcher"
		err = &launcher.FailedError{Reason: long}
		e := decode[errorBody](t, g.do("POST", "/api/sessions", `{"path": "x", "type": "y"}`).want(t, 500, ""))
		for line := range strings.Lines(e.Message) {
			if len(strings.TrimSpace(line)) > 80 {
				t.Errorf("a line of %d characters: %s", len(line), line)
			}
		}
		if strings.ReplaceAll(e.Message, "\n", " ") != long || strings.Contains(e.Reason, "exit code") {
			t.Errorf("got %+v", e)
		}
		err = launcher.ErrUnavailable
		g.do("POST", "/api/kernels", "").want(t, 503, "")
		full := &os.PathError{Op: "mkdir", Path: "/secret", Err: syscall.ENOSPC}
		err = fmt.Errorf("%w: %w", launcher.ErrUnavailable, full)
		const message = `{"reason":"Disk is full","message":"The disk of the gateway is full. ` +
			`An administrator of the gateway has to make space."}`
		g.do("POST", "/api/kernels", "").want(t, 507, message)
		if got := kernels.RefusalOf(kernels.Caller{}, "", jobProblem(err)); got.Class != kernels.Full {
			t.Errorf("a job on a full disk: %+v", got)
		}
		err = errors.New("internal secret /path")
		if r := g.do("POST", "/api/kernels", "").want(t, 500, ""); strings.Contains(r.body, "secret") {
			t.Errorf("an unknown error is shown: %s", r.body)
		}
		poll.Until(t, "the unknown error in the log",
			func() bool { return strings.Contains(g.log.String(), "internal secret /path") })
	})
}

// TestKernels_PostCancelledRemovesTheKernel: a client that gives up does not know the kernel's id. Without the removal
// the kernel would never end.
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
			poll.Until(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), idA); return err == nil })
			if client.join {
				wg.Go(func() { g.do("POST", "/api/kernels", client.body).want(t, 201, "idle") })
				poll.Until(t, "the second start", func() bool { return len(g.fake.requests()) == 2 })
			}
			cancel()
			poll.Until(t, "the 499 in the log", func() bool { return strings.Contains(g.log.String(), "status=499") })
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
