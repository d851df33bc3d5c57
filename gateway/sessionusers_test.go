package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestSessions_OfOthers: a user with the right to use a kernel cannot make its owner's notebooks open in it.
func TestSessions_OfOthers(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	create := func(path, kernel string) string {
		return `{"path": "` + path + `", "type": "notebook", "kernel": {"id": "` + kernel + `"}}`
	}
	paths := func(user string) (all []string) {
		for _, m := range decode[[]sessionModel](t, g.do("GET", "/api/sessions", "", as(user)).want(t, 200, "")) {
			if m.Kernel.ID == idA {
				all = append(all, m.Path)
			}
		}
		return all
	}
	m := decode[sessionModel](t, g.do("POST", "/api/sessions", create("private.ipynb", idA), as("uma")).want(t, 201, idA))
	for user, want := range map[string][]string{
		"ann": {"a.ipynb"}, "rita": {"a.ipynb"}, "uma": {"a.ipynb", "private.ipynb"}, "root": {"a.ipynb", "private.ipynb"},
	} {
		if got := paths(user); !slices.Equal(got, want) {
			t.Errorf("%s sees %q, want %q", user, got, want)
		}
	}
	g.do("GET", "/api/sessions/"+m.ID, "", as("ann")).want(t, 404, "")
	own := decode[sessionModel](t, g.do("POST", "/api/sessions",
		`{"path": "private.ipynb", "type": "notebook"}`, as("ann")).want(t, 201, ""))
	if own.ID == m.ID || own.Kernel.ID == idA {
		t.Errorf("ann's notebook was opened in the shared kernel: %+v", own)
	}
	t.Run("an admin's own kernel", func(t *testing.T) {
		g.fake.add(idB, "python3", api.Idle)
		g.fake.change(func() {
			k := g.fake.kernels[idB]
			k.Owner, k.SharedWith = "root", []launcher.Grant{{User: "uma", Right: launcher.Use}}
		})
		m := decode[sessionModel](t, g.do("POST", "/api/sessions", create("root.ipynb", idB), as("uma")).want(t, 201, idB))
		own := decode[sessionModel](t, g.do("POST", "/api/sessions",
			`{"path": "root.ipynb", "type": "notebook"}`, as("root")).want(t, 201, ""))
		if own.ID == m.ID || own.Kernel.ID == idB {
			t.Errorf("root's notebook was opened in the shared kernel: %+v", own)
		}
	})
	t.Run("a session that is moved keeps its creator", func(t *testing.T) {
		m := decode[sessionModel](t, g.do("POST", "/api/sessions", `{"path": "moved.ipynb", "type": "notebook"}`,
			as("uma")).want(t, 201, ""))
		g.do("PATCH", "/api/sessions/"+m.ID, `{"kernel": {"id": "`+idA+`"}}`, as("uma")).want(t, 200, idA)
		if got := paths("ann"); slices.Contains(got, "moved.ipynb") {
			t.Errorf("ann sees %q", got)
		}
		if got := paths("uma"); !slices.Contains(got, "moved.ipynb") {
			t.Errorf("uma sees %q", got)
		}
	})
}

// TestSessions_LastOfOwner: a session of a user with whom a kernel is shared does not keep it, and its end does not end
// the kernel of the owner's sessions.
func TestSessions_LastOfOwner(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	create := func(user, path string) string {
		return "/api/sessions/" + decode[sessionModel](t, g.do("POST", "/api/sessions",
			`{"path": "`+path+`", "type": "notebook", "kernel": {"id": "`+idA+`"}}`, as(user)).want(t, 201, idA)).ID
	}
	var owners []string
	for _, m := range decode[[]sessionModel](t, g.do("GET", "/api/sessions", "", as("ann"))) {
		if m.Kernel.ID == idA {
			owners = append(owners, "/api/sessions/"+m.ID)
		}
	}
	if len(owners) != 1 {
		t.Fatalf("ann's sessions: %q", owners)
	}
	create("uma", "one.ipynb")
	other := create("uma", "other.ipynb")
	g.do("DELETE", owners[0], "", as("uma")).want(t, 403, "")
	g.do("DELETE", other, "", as("root")).want(t, 204, "")
	if why := g.fake.stopped()[idA]; why != "" {
		t.Fatalf("the kernel of ann's session was stopped: %s", why)
	}
	g.do("DELETE", owners[0], "", as("ann")).want(t, 204, "")
	if g.fake.stopped()[idA] == "" {
		t.Error("another user's session keeps ann's kernel")
	}
}

// TestSessions_BoundOfOthers: the sessions of other users leave the owner's places free, also those that are moved.
func TestSessions_BoundOfOthers(t *testing.T) {
	g := startUserGateway(t, nil)
	g.addShared()
	fill := func(user string, length int) (stored int) {
		for n := range 2 * maxSessions {
			path := fmt.Sprint(user, length, n) + strings.Repeat("x", length)
			r := g.do("POST", "/api/sessions", `{"path": "`+path+`", "type": "notebook", "kernel": {"id": "`+idA+`"}}`, as(user))
			if r.StatusCode == 409 {
				break
			}
			r.want(t, 201, idA)
			stored++
		}
		return stored
	}
	if got := fill("uma", 1); got != maxUserSessions {
		t.Errorf("uma has %d sessions, want %d", got, maxUserSessions)
	}
	m := decode[sessionModel](t, g.do("POST", "/api/sessions", `{"path": "x", "type": "notebook"}`, as("uma")).want(t, 201, ""))
	g.do("PATCH", "/api/sessions/"+m.ID, `{"kernel": {"id": "`+idA+`"}}`, as("uma")).want(t, 409, "too many sessions")
	g.do("GET", "/api/sessions/"+m.ID, "", as("uma")).want(t, 200, m.Kernel.ID)
	if len(g.fake.stopped()) > 0 {
		t.Errorf("stopped %v", g.fake.stopped())
	}
	if got := fill("ann", 1); got != maxSessions-1 { // s1 is hers
		t.Errorf("ann has stored %d sessions, want %d", got, maxSessions-1)
	}
}

// TestWithSession_Bytes: the text of other users' sessions is bounded, too.
func TestWithSession_Bytes(t *testing.T) {
	var all []launcher.Session
	add := func(user string) bool {
		s := launcher.Session{ID: fmt.Sprint(len(all)), Path: strings.Repeat("x", maxSessionText), User: user}
		more, err := withSession(all, s, "ann")
		if err == nil {
			all = more
		}
		return err == nil
	}
	for n := range 8 {
		add(fmt.Sprint("user ", n))
		if add(fmt.Sprint("user ", n)) {
			t.Errorf("user %d has stored more than %d bytes", n, maxUserBytes)
		}
	}
	if len(all) != maxOtherBytes/maxSessionText-1 {
		t.Errorf("%d sessions are stored", len(all))
	}
	if !add("ann") || !add("") {
		t.Error("the owner has no place")
	}
}
