package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestSessions_Life(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.BaseURL = "/gw" })
	create := `{"path": "a/b.ipynb", "type": "notebook", "name": "b", "kernel": {"name": "python3"}}`
	r := g.do("POST", "/gw/api/sessions", create).want(t, 201, `"notebook":{"path":"a/b.ipynb","name":"b"}`)
	s := decode[sessionModel](t, r)
	if got, want := r.Header.Get("Location"), "/gw/api/sessions/"+s.ID; got != want || s.Kernel.ID == "" {
		t.Errorf("Location: got %q, want %q, kernel %q", got, want, s.Kernel.ID)
	}
	again := decode[sessionModel](t, g.do("POST", "/gw/api/sessions", create).want(t, 201, s.ID))
	if again.Kernel.ID != s.Kernel.ID {
		t.Error("the same path started another kernel")
	}
	path := "/gw/api/sessions/" + s.ID
	g.do("GET", path, "").want(t, 200, `"path":"a/b.ipynb"`)
	g.do("GET", "/gw/api/sessions/none", "").want(t, 404, "")

	g.do("PATCH", path, `{"path": "c.ipynb", "name": "c", "type": "console"}`).want(t, 200,
		`"path":"c.ipynb","name":"c","type":"console"`)
	if list := g.do("GET", "/gw/api/sessions", ""); strings.Contains(list.body, `"notebook"`) ||
		!strings.Contains(list.body, "c.ipynb") {
		t.Errorf("list: %s", list.body)
	}
	t.Run("another kernel by name ends the one it had", func(t *testing.T) {
		moved := decode[sessionModel](t, g.do("PATCH", path, `{"kernel": {"name": "r"}}`).want(t, 200, `"name":"r"`))
		if moved.ID != s.ID || moved.Path != "c.ipynb" || g.fake.stopped()[s.Kernel.ID] == "" {
			t.Errorf("moved %+v, stopped %v", moved, g.fake.stopped())
		}
		s.Kernel = moved.Kernel
	})
	t.Run("another kernel by id, which counts before the name", func(t *testing.T) {
		g.fake.add(idA, "python3", api.Idle)
		g.do("PATCH", path, `{"kernel": {"id": "`+idUnknown+`"}}`).want(t, 400, "")
		g.do("PATCH", path, `{"kernel": {"id": "`+idA+`", "name": "r"}}`).want(t, 200, idA)
		if g.fake.stopped()[s.Kernel.ID] == "" {
			t.Error("the old kernel runs on")
		}
		if list := decode[[]sessionModel](t, g.do("GET", "/gw/api/sessions", "")); len(list) != 1 ||
			list[0].Kernel.ID != idA {
			t.Errorf("list: %+v", list)
		}
	})
	t.Run("an unknown kernelspec is 501 and changes nothing", func(t *testing.T) {
		g.do("PATCH", path, `{"kernel": {"name": "nope"}}`).want(t, 501, "")
		g.do("GET", path, "").want(t, 200, idA)
	})
	g.do("DELETE", path, "").want(t, 204, "")
	if g.fake.stopped()[idA] == "" {
		t.Error("the kernel outlived its session")
	}
	g.do("DELETE", path, "").want(t, 404, "")
	g.do("GET", "/gw/api/sessions", "").want(t, 200, "[]")
	g.do("GET", "/gw/api/kernels", "").want(t, 200, "[]")
}

// TestSessions_OneKernel: a kernel lives until its last session ends, whichever way the others end.
func TestSessions_OneKernel(t *testing.T) {
	g := startGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	g.fake.add(idB, "python3", api.Idle)
	open := func(path string) string {
		return decode[sessionModel](t, g.do("POST", "/api/sessions",
			`{"path": "`+path+`", "type": "notebook", "kernel": {"id": "`+idA+`"}}`).want(t, 201, idA)).ID
	}
	var all []string
	for i := range 8 {
		all = append(all, open(fmt.Sprint(i)))
	}
	lives := func(after string) {
		t.Helper()
		if why := g.fake.stopped()[idA]; why != "" {
			t.Fatalf("%s: the kernel of other sessions was stopped: %s", after, why)
		}
	}
	g.do("PATCH", "/api/sessions/"+all[0], `{"kernel": {"id": "`+idB+`"}}`).want(t, 200, idB)
	lives("a move by id")
	g.do("PATCH", "/api/sessions/"+all[1], `{"kernel": {"name": "r"}}`).want(t, 200, `"name":"r"`)
	lives("a move by name")
	g.do("DELETE", "/api/sessions/"+all[2], "").want(t, 204, "")
	lives("a DELETE")
	g.do("DELETE", "/api/sessions/"+all[2], "").want(t, 404, "")
	list := decode[[]sessionModel](t, g.do("GET", "/api/sessions", ""))
	on := func(s sessionModel) bool { return s.Kernel.ID == idA }
	if rest := slices.DeleteFunc(list, func(s sessionModel) bool { return !on(s) }); len(rest) != 5 {
		t.Errorf("%d sessions have the kernel, want 5: %+v", len(rest), rest)
	}
	var wg sync.WaitGroup // all at once, and half of them with a move: the last one ends the kernel
	for i, id := range all[3:] {
		wg.Go(func() {
			if i%2 == 0 {
				g.do("DELETE", "/api/sessions/"+id, "").want(t, 204, "")
			} else {
				g.do("PATCH", "/api/sessions/"+id, `{"kernel": {"id": "`+idB+`"}}`).want(t, 200, idB)
			}
		})
	}
	wg.Wait()
	if g.fake.stopped()[idA] == "" {
		t.Error("the kernel outlived its sessions")
	}
	if why := g.fake.stopped()[idB]; why != "" {
		t.Errorf("the other kernel was stopped: %s", why)
	}
}

// TestSessions_WhileTheKernelEnds: a session that is asked for while the last one of its kernel ends gets a kernel that
// lives, whichever request has ended the other.
func TestSessions_WhileTheKernelEnds(t *testing.T) {
	for name, c := range map[string]struct{ method, body, path, kernel string }{
		"DELETE and the same path":   {"DELETE", "", "a.ipynb", ""},
		"DELETE and the kernel's id": {"DELETE", "", "b.ipynb", idA},
		"PATCH and the kernel's id":  {"PATCH", `{"kernel": {"id": "` + idB + `"}}`, "b.ipynb", idA},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGateway(t, nil)
			g.fake.add(idA, "python3", api.Idle)
			g.fake.add(idB, "python3", api.Idle)
			create := func(path, kernel string) reply {
				return g.do("POST", "/api/sessions",
					`{"path": "`+path+`", "type": "notebook", "kernel": {"id": "`+kernel+`", "name": "python3"}}`)
			}
			old := decode[sessionModel](t, create("a.ipynb", idA).want(t, 201, idA)).ID
			stops, looks, release := make(chan struct{}), make(chan struct{}, 100), make(chan struct{})
			g.fake.stopping = func(id string) {
				close(stops)
				<-release
				g.fake.change(func() { g.fake.gone[id] = &launcher.GoneError{ID: id, Reason: "its session ended", At: time.Now()} })
			}
			g.fake.list = func() ([]launcher.Kernel, error) {
				all, err := g.fake.listForReal()
				looks <- struct{}{}
				return all, err
			}
			var wg sync.WaitGroup
			wg.Go(func() { g.do(c.method, "/api/sessions/"+old, c.body) })
			<-stops
			for len(looks) > 0 {
				<-looks
			}
			var created reply
			wg.Go(func() { created = create(c.path, c.kernel) })
			<-looks // it has seen the kernel
			close(release)
			wg.Wait()
			s := decode[sessionModel](t, created.want(t, 201, c.path))
			g.do("GET", "/api/sessions/"+s.ID, "").want(t, 200, s.Kernel.ID)
			g.do("GET", "/api/kernels/"+s.Kernel.ID, "").want(t, 200, s.Kernel.ID)
			if why := g.fake.stopped(); why[idA] == "" || s.Kernel.ID == idA || len(why) != 1 {
				t.Errorf("the session has kernel %s, and these have ended: %v", s.Kernel.ID, why)
			}
		})
	}
}

func TestSessions_Create(t *testing.T) {
	g := startGateway(t, nil)
	for body, status := range map[string]int{
		"": 400, "{}": 400, `{"path": "x"}`: 400, `{"type": "x"}`: 400, `{"path": 5, "type": "x"}`: 400, `[]`: 400,
		`{"path": "x", "type": "notebook", "kernel": 5}`:             400,
		`{"path": "x", "type": "notebook", "kernel": {"name": 5}}`:   400,
		`{"path": "` + strings.Repeat("x", 4097) + `", "type": "x"}`: 400,
		`{"path": "x", "type": "y", "kernel": {"name": "nope"}}`:     501,
	} {
		g.do("POST", "/api/sessions", body).want(t, status, "")
	}
	if r := g.do("POST", "/api/sessions",
		`{"path": "x", "type": "y", "kernel": {"name": "nope"}}`); !strings.Contains(r.body, "short_message") {
		t.Errorf("501: %s", r.body)
	}
	g.fake.add(idA, "python3", api.Idle)
	g.do("POST", "/api/sessions", `{"path": "x", "type": "y", "kernel": {"id": "`+idA+`"}}`).want(t, 201, idA)
	g.do("POST", "/api/sessions", `{"notebook": {"path": "old.ipynb"}, "kernel": {"id": "`+idUnknown+`"}}`).want(t, 201,
		`"type":"notebook"`)
	if n := len(g.fake.requests()); n != 1 {
		t.Errorf("%d kernels were started, want 1", n)
	}

	t.Run("two at once for one path are one session", func(t *testing.T) {
		before := len(g.fake.requests())
		g.fake.newState = api.Starting
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { g.do("POST", "/api/sessions", `{"path": "twice", "type": "y"}`).want(t, 201, "twice") })
		}
		poll.Until(t, "a start", func() bool { return len(g.fake.requests()) > before })
		id := g.fake.requests()[before].ID
		poll.Until(t, "the kernel", func() bool { _, err := g.fake.Kernel(t.Context(), id); return err == nil })
		g.fake.set(id, api.Idle, "")
		wg.Wait()
		if n := len(g.fake.requests()) - before; n != 1 {
			t.Errorf("%d kernels were started, want 1", n)
		}
	})
	t.Run("a session whose kernel is gone leaves the list", func(t *testing.T) {
		g.do("DELETE", "/api/kernels/"+idA, "").want(t, 204, "")
		if r := g.do("GET", "/api/sessions", ""); strings.Contains(r.body, idA) {
			t.Errorf("list: %s", r.body)
		}
	})
}

// The cases are those of Jupyter Server's own tests of this route.
func TestSessions_KernelIDOfTheClient(t *testing.T) {
	g := startGateway(t, nil)
	create := func(path, id string) string {
		t.Helper()
		body := `{"path": "` + path + `", "type": "notebook", "kernel": {"name": null, "id": "` + id + `"}}`
		return decode[sessionModel](t, g.do("POST", "/api/sessions", body).want(t, 201, path)).Kernel.ID
	}
	if got := create("unknown.ipynb", idUnknown); got != idUnknown {
		t.Errorf("an unknown id: the kernel is %s, want %s", got, idUnknown)
	}
	if got := create("running.ipynb", idUnknown); got != idUnknown || len(g.fake.requests()) != 1 {
		t.Errorf("a running kernel: the kernel is %s, want %s; %d starts", got, idUnknown, len(g.fake.requests()))
	}
	g.fake.change(func() { g.fake.gone[idB] = &launcher.GoneError{ID: idB, Reason: "it was idle", At: time.Now()} })
	if got := create("ended.ipynb", idB); got == idB || !launcher.ValidID(got) {
		t.Errorf("a kernel that has ended: the kernel is %s, want a new id", got)
	}
	if got := create("invalid.ipynb", "foo"); !launcher.ValidID(got) {
		t.Errorf("an invalid id: the kernel is %s, want a new id", got)
	}
	for _, req := range g.fake.requests() { // a warm kernel has an id of its own
		if req.AnyID == (req.ID == idUnknown) {
			t.Errorf("kernel %s: a warm kernel may be taken: %v", req.ID, req.AnyID)
		}
	}
	t.Run("another user's kernel", func(t *testing.T) {
		g := startUserGateway(t, nil)
		g.addShared()
		body := `{"path": "x", "type": "notebook", "kernel": {"id": "` + idA + `"}}`
		got := decode[sessionModel](t, g.do("POST", "/api/sessions", body, as("bob")).want(t, 201, "")).Kernel
		if got.ID == idA || got.Owner != "bob" {
			t.Errorf("bob got kernel %s of %s", got.ID, got.Owner)
		}
	})
}

func TestSessions_OldForms(t *testing.T) {
	g := startGateway(t, nil)
	s := decode[sessionModel](t, g.do("POST", "/api/sessions",
		`{"notebook": {"path": "a.ipynb"}, "kernel": {"name": "python", "id": "foo"}}`).want(t, 201,
		`"notebook":{"path":"a.ipynb"`))
	if s.Type != "notebook" || s.Kernel.Name != "python3" {
		t.Errorf("got type %s and kernel %s", s.Type, s.Kernel.Name)
	}
	g.do("POST", "/api/sessions", `{"notebook": {"name": "b.ipynb"}}`).want(t, 201, `"path":"b.ipynb"`)
	g.do("PATCH", "/api/sessions/"+s.ID, `{"type": "console"}`).want(t, 200, `"type":"console"`)
	g.do("PATCH", "/api/sessions/"+s.ID, `{"notebook": {"path": "c.ipynb"}}`).want(t, 200, `"type":"notebook"`)
	g.do("POST", "/api/sessions", `null`).want(t, 400, "No JSON data provided")
	g.do("POST", "/api/kernels", `null`).want(t, 201, "python3")
}

// TestSessions_Name: the kernel of a session knows its file, as with Jupyter Server.
func TestSessions_Name(t *testing.T) {
	g := startGateway(t, nil)
	for body, want := range map[string]string{
		`{"path": "a/b.ipynb", "name": "b.ipynb", "type": "notebook"}`: "a/b.ipynb",
		`{"path": "a/c.ipynb", "type": "notebook"}`:                    "a/c.ipynb",
		`{"path": "a/d.ipynb", "name": "", "type": "notebook"}`:        "a/d.ipynb",
		`{"path": "console-1-x", "name": "Console 1", "type": "x"}`:    "Console 1",
		`{"path": "/w/e.ipynb", "name": "/w/e.ipynb", "type": "x"}`:    "/w/e.ipynb",
		`{"notebook": {"path": "f/g.ipynb"}}`:                          "f/g.ipynb",
	} {
		before := len(g.fake.requests())
		g.do("POST", "/api/sessions", body).want(t, 201, "")
		if got := g.fake.requests()[before].Env["JPY_SESSION_NAME"]; got != want {
			t.Errorf("%s: JPY_SESSION_NAME is %q, want %q", body, got, want)
		}
	}
	before := len(g.fake.requests())
	g.do("POST", "/api/kernels", `{"env": {"JPY_SESSION_NAME": "/home/ann/x.ipynb", "JPY_OTHER": "1"}}`).want(t, 201, "")
	if env := g.fake.requests()[before].Env; env["JPY_SESSION_NAME"] != "/home/ann/x.ipynb" || env["JPY_OTHER"] != "" {
		t.Errorf("a Jupyter server's session: %v", env)
	}
	var session struct{ ID string }
	r := g.do("POST", "/api/sessions", `{"path": "h.ipynb", "type": "notebook"}`)
	if err := json.Unmarshal([]byte(r.body), &session); err != nil {
		t.Fatal(err)
	}
	before = len(g.fake.requests())
	g.do("PATCH", "/api/sessions/"+session.ID, `{"path": "m/n.ipynb", "name": "n.ipynb", "kernel": {"name": "python3"}}`).
		want(t, 200, "")
	if got := g.fake.requests()[before].Env["JPY_SESSION_NAME"]; got != "m/n.ipynb" {
		t.Errorf("PATCH: JPY_SESSION_NAME is %q, want m/n.ipynb", got)
	}
}

// TestSessions_UnknownCost: requests for sessions that the caller does not see share one list of all kernels.
func TestSessions_UnknownCost(t *testing.T) {
	g := startUserGateway(t, nil)
	g.eventsEvery = time.Hour
	g.addShared()
	unknown := func(id string) {
		t.Helper()
		g.do("GET", "/api/sessions/"+id, "", as("bob")).want(t, 404, "Session not found")
	}
	unknown("s1")
	listed := g.feed.at
	for range 5 {
		unknown("s1")
		unknown("s2")
	}
	if listed.IsZero() || g.feed.at != listed {
		t.Errorf("all kernels were listed at %v, and at %v again", listed, g.feed.at)
	}
}
