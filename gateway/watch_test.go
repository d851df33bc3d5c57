package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// readsEnd reads until the connection ends, which is to be soon.
func readsEnd(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// watch runs Watch until the test is over.
func watch(t *testing.T, g *Gateway) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { g.Watch(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// countedUsers counts the looks of Watch.
type countedUsers struct {
	Users
	looks atomic.Int64
}

func (u *countedUsers) Refresh() { u.looks.Add(1); u.Users.Refresh() }

// Connections of a revoked user end within five seconds, and no others.
func TestWatch_EndsWhatIsRevoked(t *testing.T) {
	users := &countedUsers{}
	g := startUserGateway(t, func(o *Options) { users.Users, o.Users = o.Users, users })
	g.watchEvery = 20 * time.Millisecond
	super := g.addShared()
	super.answerWith(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	var away atomic.Bool
	g.fake.list = func() ([]launcher.Kernel, error) {
		if away.Load() {
			return nil, launcher.ErrUnavailable
		}
		return g.fake.listForReal()
	}
	watch(t, g.Gateway)

	type opened struct {
		what string
		end  chan error
	}
	open := func(user, what string) opened {
		o := opened{user + "'s " + what, make(chan error, 1)}
		if what == "websocket" {
			conn, br := g.dialChannels(idA, "", as(user))
			t.Cleanup(func() { _ = conn.Close() })
			go func() { o.end <- readsEnd(br) }()
			return o
		}
		r, err := http.NewRequestWithContext(t.Context(), "GET", g.http.URL+"/api/kernels/"+idA+"/log?follow=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		as(user)(r)
		resp, err := g.http.Client().Do(r)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%s: %v %v", o.what, resp, err)
		}
		go func() { o.end <- readsEnd(resp.Body); _ = resp.Body.Close() }()
		return o
	}
	ends := func(all ...opened) {
		t.Helper()
		limit := time.After(5 * time.Second)
		for _, o := range all {
			select {
			case <-o.end: //nolint:errcheck // only the end matters here
			case <-limit:
				t.Errorf("%s lives on", o.what)
			}
		}
	}
	annSocket, annLog := open("ann", "websocket"), open("ann", "log")
	umaSocket, umaLog, ritaSocket, rootSocket := open("uma", "websocket"), open("uma", "log"), open("rita", "websocket"),
		open("root", "websocket")

	// A grant is changed to a lesser one, and one is taken away.
	g.do("PATCH", "/api/kernels/"+idA, `{"shared_with": [{"group": "team", "right": "read"}]}`, as("ann")).want(t, 200, "")
	ends(umaSocket, umaLog, ritaSocket)
	// A user who leaves a group loses the rights of the group.
	umaSocket = open("uma", "websocket")
	writeUsers(t, g.file, func(text string) string { return strings.Replace(text, "groups: [team]", "groups: []", 1) })
	ends(umaSocket)
	// So is what an admin may.
	writeUsers(t, g.file, func(text string) string { return strings.Replace(text, ", admin: true", "", 1) })
	ends(rootSocket)
	// A file that is broken, and a cluster that does not answer, revoke nothing.
	writeUsers(t, g.file, func(string) string { return "users: [" })
	away.Store(true)
	looks := users.looks.Load()
	poll.Until(t, "some looks", func() bool { return users.looks.Load() > looks+3 })
	for _, o := range []opened{annSocket, annLog} {
		select {
		case err := <-o.end:
			t.Errorf("%s has ended: %v", o.what, err)
		default:
		}
	}
	// A token is revoked, whatever the cluster says.
	writeUsers(t, g.file, func(text string) string { return strings.Replace(text, "name: ann", "name: other", 1) })
	ends(annSocket, annLog)
}

// fakeUsers remembers nothing: every look has to ask.
type fakeUsers struct {
	looks atomic.Int64

	mu    sync.Mutex
	user  identity.User
	err   error
	block chan struct{} // nil: it answers at once
	calls int
}

func (u *fakeUsers) set(user identity.User, err error, block chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.user, u.err, u.block, u.calls = user, err, block, 0
}

func (u *fakeUsers) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}

func (u *fakeUsers) Identify(context.Context, string) (identity.User, error) {
	u.mu.Lock()
	u.calls++
	user, err, block := u.user, u.err, u.block
	u.mu.Unlock()
	if block != nil {
		<-block
	}
	return user, err
}

func (u *fakeUsers) Recall(string, identity.User) (identity.User, bool, error) {
	return identity.User{}, false, nil
}

func (u *fakeUsers) Standing(context.Context, string) (identity.Standing, error) {
	return identity.Known, nil
}

func (u *fakeUsers) Seen() []string { return nil }

func (u *fakeUsers) Refresh() { u.looks.Add(1) }

// A token that its source revokes ends its connections. A source that is down or slow ends none.
func TestWatch_VerifiesAnew(t *testing.T) {
	users := &fakeUsers{}
	users.set(identity.User{Name: "ann"}, nil, nil)
	g := startUserGateway(t, func(o *Options) { o.Users = users })
	g.watchEvery, g.watchRetry = 5*time.Millisecond, 5*time.Millisecond
	g.addShared()
	watch(t, g.Gateway)
	conn, br := g.dialChannels(idA, "", as("ann"))
	defer func() { _ = conn.Close() }()
	ended := make(chan error, 1)
	go func() { ended <- readsEnd(br) }()
	lives := func() {
		t.Helper()
		looks := users.looks.Load()
		poll.Until(t, "some looks", func() bool { return users.looks.Load() > looks+3 })
		select {
		case err := <-ended:
			t.Fatalf("it has ended: %v", err)
		default:
		}
	}
	lives()
	block := make(chan struct{})
	users.set(identity.User{}, identity.ErrUnavailable, block)
	poll.Until(t, "a question", func() bool { return users.count() > 0 })
	lives()
	if n := users.count(); n != 1 {
		t.Errorf("%d questions at once about one token", n)
	}
	users.set(identity.User{}, identity.ErrUnavailable, nil)
	close(block)
	poll.Until(t, "more questions", func() bool { return users.count() > 1 })
	lives()
	users.set(identity.User{}, identity.ErrUnknown, nil)
	select {
	case <-ended: //nolint:errcheck // only the end matters here
	case <-time.After(5 * time.Second):
		t.Error("it lives on")
	}
}
