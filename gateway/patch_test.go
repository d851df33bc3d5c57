package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestPatchKernel(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	path := "/api/kernels/" + idA
	for body, want := range map[string]string{
		``: "nothing", `{}`: "nothing", `[]`: "object", `{"name": "x"}`: "a member that cannot be changed",
		`{"shared_with": [], "x": 1}`:                                                      "a member that cannot be changed",
		`{"shared_with": null}`:                                                            "not a list",
		`{"shared_with": "bob"}`:                                                           "not a list",
		`{"shared_with": [{"user": "bob", "right": "use", "x": 1}]}`:                       "not a list",
		`{"shared_with": [{"right": "use"}]}`:                                              "shared_with[0] does not name",
		`{"shared_with": [{"user": "b", "group": "c", "right": "use"}]}`:                   "shared_with[0] does not name",
		`{"shared_with": [{"user": "b", "right": "own"}]}`:                                 "right is neither",
		`{"shared_with": [{"user": "b"}]}`:                                                 "right is neither",
		`{"shared_with": [{"user": "b\n", "right": "use"}]}`:                               "cannot be printed",
		`{"shared_with": [{"user": "b", "right": "use"}, {"user": "b", "right": "read"}]}`: "shared_with[1] names",
		`{"shared_with": [` + strings.Repeat(`{"user": "b", "right": "use"},`, 64) +
			`{"user": "b", "right": "use"}]}`: "more than 64",
	} {
		g.do("PATCH", path, body, as("ann")).want(t, 400, want)
	}
	g.do("GET", path, "", as("rita")).want(t, 200, "") // nothing was changed
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "use"}]}`, as("uma")).want(t, 403, "owner")
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "use"}]}`, as("ann")).want(t, 200,
		`"shared_with":[{"user":"bob","right":"use"}]`)
	g.do("GET", path, "", as("rita")).want(t, 404, "")
	g.do("POST", path+"/interrupt", "", as("bob")).want(t, 204, "")
	g.do("PATCH", path, `{"shared_with": []}`, as("root")).want(t, 200, `"shared_with":[]`)
	g.do("GET", path, "", as("bob")).want(t, 404, "")
	g.do("GET", path, "", as("ann")).want(t, 200, `"shared_with":[],"shared_to_use":true`) // bob's code may be there

	one := startGateway(t, nil)
	one.fake.add(idA, "python3", api.Idle)
	one.do("PATCH", path, `{"shared_with": []}`).want(t, 400, "no users")
}

// TestPatchKernel_Keep: only the owner sets keep_until, and the supervisor limits it. A refusal of the supervisor
// changes nothing.
func TestPatchKernel_Keep(t *testing.T) {
	g := startUserGateway(t, nil)
	super := g.addShared()
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
			`"execution_state":"idle","keep_until":"2026-11-22T05:53:26Z","owner":"root",`+
			`"shared_with":[{"user":"x","right":"use"}]}`, idA)
	})
	path, keep := "/api/kernels/"+idA, `{"keep_until": "2026-11-22T05:53:26Z"}`
	for user, status := range map[string]int{"uma": 403, "rita": 403, "bob": 404, "stranger": 403} {
		g.do("PATCH", path, keep, as(user)).want(t, status, "")
	}
	for _, body := range []string{
		`{"keep_until": "2026-11-22T05:53:26Z", "shared_with": "x"}`,
		`{"keep_until": "2026-11-22T05:53:26Z", "x": 1}`,
		`{"keep_until": "tomorrow", "shared_with": []}`,
	} {
		g.do("PATCH", path, body, as("ann")).want(t, 400, "")
	}
	if sent := super.sent(); sent != "" {
		t.Fatalf("the supervisor got %s", sent)
	}
	for _, user := range []string{"ann", "root"} {
		g.do("PATCH", path, keep, as(user)).want(t, 200,
			`"keep_until":"2026-11-22T05:53:26.000000Z","created":"2026-11-21T05:53:26.000000Z","owner":"ann",`+
				`"shared_with":[{"user":"rita",`)
		if sent := super.sent(); !strings.Contains(sent, "PATCH /api/kernels/"+idA) ||
			!strings.Contains(sent, api.HeaderUser+": "+user+"\r\n") || strings.Contains(sent, "canary") {
			t.Errorf("the supervisor got %s", sent)
		}
	}
	g.do("PATCH", path, `{"shared_with": [{"user": "bob", "right": "read"}], "keep_until": null}`, as("ann")).want(t, 200,
		`"owner":"ann","shared_with":[{"user":"bob","right":"read"}]`)
	super.answerWith(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"reason": "Forbidden", "message": "keep_until can be at most 1h0m0s from now"}`)
	})
	g.do("PATCH", path, `{"shared_with": [], "keep_until": "2027-11-22T05:53:26Z"}`, as("ann")).want(t, 403,
		"at most 1h0m0s")
	g.do("GET", path, "", as("bob")).want(t, 200, "") // it is still shared
}

// TestKernels_Keep: keep_until reaches the supervisor unchanged, and the supervisor's refusal reaches the client.
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
		_, _ = fmt.Fprintf(w, `{"id":%q,"name":"python3","last_activity":"2026-11-21T05:53:26.1Z",`+
			`"execution_state":"idle","connections":0,"keep_until":"2026-11-22T05:53:26Z",`+
			`"cull_at":"2026-11-23T05:53:26Z"}`, idA)
	})
	g.do("PATCH", path, `{"keep_until": "2026-11-22T06:53:26+01:00"}`).want(t, 200,
		`"cull_at":"2026-11-23T05:53:26.000000Z","keep_until":"2026-11-22T05:53:26.000000Z"`)
	g.do("PATCH", path, `{"keep_until": null}`).want(t, 200, "")
	g.do("PATCH", path, `{"keep_gpu_until": "tomorrow"}`).want(t, 400, "keep_gpu_until is neither")
	g.do("PATCH", path, `{"keep_gpu_until": "2026-11-22T06:53:26Z"}`).want(t, 200, "")
	if sent := s.sent(); !strings.Contains(sent, `{"keep_until":"2026-11-22T06:53:26+01:00"}`) ||
		!strings.Contains(sent, `{"keep_until":null}`) ||
		!strings.Contains(sent, `{"keep_gpu_until":"2026-11-22T06:53:26Z"}`) || strings.Contains(sent, testToken) {
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
