package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The users of these tests, each with a token of the form canary-NAME. Ann owns idA, of which rita may read and the
// group team may use; bob has nothing to do with it.
const testUsers = `users:
- {name: ann, tokens: ["%s"]}
- {name: bob, tokens: ["%s"]}
- {name: rita, tokens: ["%s"]}
- {name: uma, tokens: ["%s"], groups: [team]}
- {name: root, tokens: ["%s"], admin: true}
`

func tokenOf(user string) string { return "canary-" + user }

// writeUsers writes the users file after change, which may be nil.
func writeUsers(t testing.TB, path string, change func(string) string) {
	t.Helper()
	hash := func(name string) any { return identity.Hash(tokenOf(name)) }
	text := fmt.Sprintf(testUsers, hash("ann"), hash("bob"), hash("rita"), hash("uma"), hash("root"))
	if change != nil {
		text = change(text)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// usersIn writes testUsers to a file and opens it.
func usersIn(t testing.TB, path string) Users {
	t.Helper()
	writeUsers(t, path, nil)
	f, err := identity.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	users, err := identity.New(identity.Options{File: f, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return users
}

// userGateway is a gateway with users.
type userGateway struct {
	*testGateway
	file string
}

func startUserGateway(t testing.TB, change func(*Options)) *userGateway {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.yaml")
	users := usersIn(t, path)
	g := startGateway(t, func(o *Options) {
		o.Token, o.Users = "", users
		if change != nil {
			change(o)
		}
	})
	return &userGateway{g, path}
}

// addShared adds idA as ann's, shared as testUsers says, with the session s1.
func (g *userGateway) addShared() *fakeSupervisor {
	super := g.fake.add(idA, "python3", api.Idle)
	g.fake.change(func() {
		k := g.fake.kernels[idA]
		k.Owner = "ann"
		k.SharedWith = []launcher.Grant{{User: "rita", Right: launcher.Read}, {Group: "team", Right: launcher.Use}}
		k.Sessions = []launcher.Session{{ID: "s1", User: "ann", Path: "a.ipynb", Name: "a", Type: "notebook"}}
	})
	return super
}

// as makes a request one of a user.
func as(user string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "token "+tokenOf(user)) }
}

// awayUsers are users whose source is unavailable.
type awayUsers struct{ Users }

func (awayUsers) Identify(context.Context, string) (identity.User, error) {
	return identity.User{}, identity.ErrUnavailable
}
