package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
	"github.com/elastic-kernel-gateway/ekg/gateway/limits"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func TestLimits_Connections(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.ConnectionsPerKernel, o.ConnectionsPerUser = 3, 2 })
	g.addShared()
	g.fake.add(idB, "python3", api.Idle)
	g.fake.change(func() { g.fake.kernels[idB].Owner = "ann" })
	refused := func(id, user, why string) {
		t.Helper()
		r := g.do("GET", "/api/kernels/"+id+"/channels", "", as(user), asUpgrade).want(t, 429, why)
		if r.Header.Get("Retry-After") != "5" {
			t.Errorf("Retry-After: %q", r.Header.Get("Retry-After"))
		}
	}
	first, _ := g.dialChannels(idA, "", as("ann"))
	second, _ := g.dialChannels(idB, "", as("ann"))
	refused(idA, "ann", "You have 2 connections")
	_, _ = g.dialChannels(idA, "", as("uma"))
	_, _ = g.dialChannels(idA, "", as("rita"))
	refused(idA, "root", "The kernel has 3 connections")
	g.do("GET", "/api/kernels/"+idA+"/log?follow=1", "", as("ann")).want(t, 429, "You have 2 connections")
	_, _ = first.Close(), second.Close()
	poll.Until(t, "room", func() bool {
		_, resp, _ := g.tryChannels(idA, "", as("ann"))
		return resp.StatusCode == 101
	})
}

// A user who asks for too many unknown kernels is answered 429, by every route. Known kernels and other users are not
// affected.
func TestLimits_Lookups(t *testing.T) {
	g := startUserGateway(t, nil)
	g.fake.add(idA, "python3", api.Idle)
	g.fake.change(func() { g.fake.kernels[idA].Owner = "ann" })
	for g.kernels.CountLookup(kernels.Caller{User: identity.User{Name: "ann"}}) == nil {
	}
	for method, path := range map[string]string{"GET": "", "DELETE": "", "POST": "/interrupt"} {
		r := g.do(method, "/api/kernels/"+idB+path, "", as("ann")).want(t, 429, "too many kernels that do not exist")
		if after := r.Header.Get("Retry-After"); after != "1" {
			t.Errorf("Retry-After: %q", after)
		}
	}
	g.do("GET", "/api/kernels/"+idA, "", as("ann")).want(t, 200, "")
	g.do("GET", "/api/kernels/"+idB, "", as("bob")).want(t, 404, "")
}

func TestLimits_Starts(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.StartsPerMinute = 2 })
	for range 2 {
		g.do("POST", "/api/kernels", "", as("ann")).want(t, 201, "")
	}
	for path, body := range map[string]string{"/api/kernels": "", "/api/sessions": `{"path": "x", "type": "y"}`} {
		r := g.do("POST", path, body, as("ann")).want(t, 429, "2 kernels in a minute")
		if after := r.Header.Get("Retry-After"); after != "30" && after != "29" {
			t.Errorf("Retry-After: %q", after)
		}
	}
	g.fake.add(idA, "python3", api.Dead)
	g.fake.add(idB, "python3", api.Idle)
	g.fake.change(func() { g.fake.kernels[idA].Owner, g.fake.kernels[idB].Owner = "ann", "ann" })
	g.do("POST", "/api/kernels/"+idA+"/restart", "", as("ann")).want(t, 429, "2 kernels in a minute")
	g.do("POST", "/api/kernels/"+idB+"/restart", "", as("ann")).want(t, 200, "")
	g.do("POST", "/api/kernels", "", as("bob")).want(t, 201, "")
	if n := len(g.fake.requests()); n != 3 {
		t.Errorf("%d were started", n)
	}
}

// TestLimits_Readers: the reason of a limit names the owner's kernels. Who may only use one of them reads the limit's
// name, wherever the reason is shown.
func TestLimits_Readers(t *testing.T) {
	const secret = "you have 3 kernels; shut one down to start another: python3 " + idB
	g := startUserGateway(t, nil)
	g.fake.restarting = func(string) (func(), error) {
		return nil, &launcher.LimitError{Limit: "kernels-per-user", Owner: "ann", Reason: secret}
	}
	g.fake.addStarting(idA, "")
	g.fake.add(idB, "python3", api.Idle)
	g.fake.change(func() {
		g.fake.kernels[idB].Owner = "ann"
		k := g.fake.kernels[idA]
		k.Sessions = []launcher.Session{{ID: "s1", User: "ann", Path: "a.ipynb", Name: "a", Type: "notebook"}}
		k.Owner, k.Limit, k.Reason = "ann", "kernels-per-user", secret
		k.SharedWith = []launcher.Grant{{User: "bob", Right: launcher.Use}}
	})
	path := "/api/kernels/" + idA
	for _, state := range []api.State{api.Starting, api.Dead} {
		g.fake.change(func() { g.fake.kernels[idA].State = state })
		for _, ask := range [][2]string{{"POST", path + "/restart"}, {"GET", path}, {"GET", "/api/kernels"},
			{"GET", "/api/sessions"}, {"POST", path + "/interrupt"}, {"POST", path + "/wake"}, {"GET", path + "/log"},
			{"GET", path + "/timeline"}, {"GET", "/api/gpus"}, {"GET", "/api/limits"}, {"GET", "/api/jobs"},
			{"GET", "/api/kernels/" + idB}, {"PATCH", path}, {"DELETE", path}, {"POST", "/api/jobs"},
			{"GET", path + "/channels"}} {
			if strings.HasSuffix(ask[1], "/channels") && state == api.Starting {
				continue // it waits in the lobby, see TestLimits_Lobby
			}
			change := []func(*http.Request){as("bob")}
			if strings.HasSuffix(ask[1], "/channels") {
				change = append(change, asUpgrade)
			}
			body := map[string]string{"PATCH": "{}"}[ask[0]]
			if ask[1] == "/api/jobs" && ask[0] == "POST" {
				body = `{"kernel":"` + idA + `","notebook":{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[]}}`
			}
			got := g.do(ask[0], ask[1], body, change...)
			if strings.Contains(strings.ReplaceAll(got.body, "not exist: "+idB, ""), idB) ||
				strings.Contains(got.body, "you have") {
				t.Errorf("%s: %q shows bob %s", state, ask, got.body)
			}
			if ask[0] == "GET" && ask[1] == path && !strings.Contains(got.body, "limit kernels-per-user") {
				t.Errorf("%s: %q does not tell bob the limit: %s", state, ask, got.body)
			}
		}
	}
	for _, user := range []string{"ann", "root"} {
		g.do("POST", path+"/restart", "", as(user)).want(t, 403, idB)
		g.do("GET", path, "", as(user)).want(t, 200, idB)
	}
}

// TestLimits_Lobby: who waits for a kernel of another user that a limit ends does not read the owner's other kernels.
func TestLimits_Lobby(t *testing.T) {
	const secret = "you have 3 kernels; shut one down to start another: python3 " + idB
	for name, tc := range map[string]struct {
		end    func(f *fakeLauncher)
		others string
	}{
		"dead": {func(f *fakeLauncher) {
			f.change(func() {
				k := f.kernels[idA]
				k.State, k.Limit, k.Reason = api.Dead, "kernels-per-user", secret
			})
		}, "limit kernels-per-user"},
		"gone": {func(f *fakeLauncher) {
			f.change(func() {
				delete(f.kernels, idA)
				f.gone[idA] = &launcher.GoneError{ID: idA, Owner: "ann", Reason: secret}
			})
		}, "it was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			g := startUserGateway(t, nil)
			g.fake.addStarting(idA, "")
			g.fake.change(func() {
				k := g.fake.kernels[idA]
				k.Owner, k.SharedWith = "ann", []launcher.Grant{{User: "bob", Right: launcher.Use}}
			})
			clients := map[string]*bufio.Reader{}
			for _, user := range []string{"ann", "bob"} {
				_, clients[user] = g.dialChannels(idA, "", as(user))
			}
			tc.end(g.fake)
			for user, want := range map[string]string{"ann": "you have 3 kernels", "bob": tc.others} {
				got, err := io.ReadAll(clients[user])
				if err != nil || !strings.Contains(string(got), want) {
					t.Errorf("%s reads %q, %v", user, got, err)
				}
				if user == "bob" && (strings.Contains(string(got), idB) || strings.Contains(string(got), "you have")) {
					t.Errorf("bob reads %q", got)
				}
			}
		})
	}
}

// A start that exceeds a limit is rejected with 403, written to the audit log and counted.
func TestLimits_Kernels(t *testing.T) {
	audit := &transcript.Buffer{}
	m := metrics.New("test")
	g := startUserGateway(t, func(o *Options) {
		o.Audit, o.Metrics = audit, m
		o.Limits = &limits.Policy{PerGroup: 3}
	})
	refusal := &launcher.LimitError{Limit: "kernels-per-user", Owner: "uma", Reason: "you have too many"}
	g.fake.newState = api.Starting
	g.fake.start = func(_ context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
		if req.Owner == "uma" {
			if !slices.Equal(req.Groups, []string{"team"}) {
				t.Errorf("groups: %q", req.Groups)
			}
			return launcher.Kernel{}, false, refusal
		}
		// This is decided only after the POST has begun to wait.
		k, created, err := g.fake.startForReal(req)
		g.fake.change(func() {
			now := g.fake.kernels[req.ID]
			now.State, now.Reason, now.Limit = api.Dead, refusal.Reason, refusal.Limit
		})
		return k, created, err
	}
	g.fake.restarting = func(string) (func(), error) {
		return nil, &launcher.LimitError{Limit: refusal.Limit, Owner: "ann", Reason: refusal.Reason}
	}
	for path, body := range map[string]string{"/api/kernels": "", "/api/sessions": `{"path": "x", "type": "y"}`} {
		g.do("POST", path, body, as("uma")).want(t, 403, `{"reason":"Forbidden","message":"you have too many"}`)
	}
	g.do("POST", "/api/kernels", "", as("ann")).want(t, 403, "you have too many")
	if len(g.fake.stopped()) != 1 {
		t.Error("the kernel was left behind")
	}
	// A dead kernel is not started again.
	g.fake.add(idA, "python3", api.Dead)
	g.fake.change(func() { g.fake.kernels[idA].Owner = "ann" })
	g.do("POST", "/api/kernels/"+idA+"/restart", "", as("ann")).want(t, 403, "you have too many")
	poll.Until(t, "four refusals in the audit log", func() bool {
		return strings.Count(audit.String(), `"outcome":"refused","status":403,"check":"limit"`) == 4
	})
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, f := range families {
		if f.GetName() != "ekg_kernel_start_failures_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if l.GetValue() == string(launcher.FailedLimit) {
					counted += series.GetCounter().GetValue()
				}
			}
		}
	}
	if counted != 2 {
		t.Errorf("%v failures were counted", counted)
	}
}

// crowded is Users whose every token is one too many.
type crowded struct{ Users }

func (crowded) Identify(context.Context, string) (identity.User, error) {
	return identity.User{}, identity.ErrTooMany
}

func TestLimits_UnknownTokens(t *testing.T) {
	g := startUserGateway(t, nil)
	g.opts.Users = crowded{g.opts.Users}
	r := g.do("GET", "/api/kernels", "", as("ann")).want(t, 429, "Too many unknown tokens")
	if after := r.Header.Get("Retry-After"); after != "1" {
		t.Errorf("Retry-After: %q", after)
	}
}

// A user reads the limits of an own start, and an admin those of all who have kernels.
func TestLimits_Uses(t *testing.T) {
	g := startUserGateway(t, func(o *Options) {
		o.Limits = &limits.Policy{Kernels: 9, PerUser: 2, PerGroup: 3, PerKernelspec: 4, GPUsPerUser: 5}
	})
	g.addShared()
	g.fake.add(idB, "r", api.Dead)
	g.fake.change(func() {
		g.fake.kernels[idA].Groups, g.fake.kernels[idA].GPUs = []string{"vision"}, 1500
		g.fake.kernels[idB].Owner = "ann"
	})
	const shared = `{"limit":"kernels","unit":"kernel","most":9,"used":1},`
	const specs = `{"limit":"kernels-per-kernelspec","of":"python3","unit":"kernel","most":4,"used":1},` +
		`{"limit":"kernels-per-kernelspec","of":"r","unit":"kernel","most":4,"used":0},`
	const vision = `{"limit":"kernels-per-group","of":"vision","unit":"kernel","most":3,"used":1},`
	of := func(limit, user, unit, most, used string) string {
		return `{"limit":"` + limit + `","of":"` + user + `","unit":"` + unit + `","most":` + most + `,"used":` + used + `}`
	}
	for user, want := range map[string]string{
		"ann": of("gpus-per-user", "ann", "GPU", "5", "1.5") + "," + shared + specs +
			of("kernels-per-user", "ann", "kernel", "2", "1"),
		"uma": of("gpus-per-user", "uma", "GPU", "5", "0") + "," + shared +
			of("kernels-per-group", "team", "kernel", "3", "0") + "," + specs +
			of("kernels-per-user", "uma", "kernel", "2", "0"),
		"root": of("gpus-per-user", "ann", "GPU", "5", "1.5") + "," + of("gpus-per-user", "root", "GPU", "5", "0") + "," +
			shared + vision + specs + of("kernels-per-user", "ann", "kernel", "2", "1") + "," +
			of("kernels-per-user", "root", "kernel", "2", "0"),
	} {
		if got := g.do("GET", "/api/limits", "", as(user)).want(t, 200, "").body; got != "["+want+"]\n" {
			t.Errorf("%s: got  %s want [%s]", user, got, want)
		}
	}
	startGateway(t, nil).do("GET", "/api/limits", "").want(t, 200, "[]")
}
