package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

func TestLimits_Connections(t *testing.T) {
	g := startUserGateway(t, func(o *Options) { o.ConnectionsPerKernel, o.ConnectionsPerUser = 3, 2 })
	g.addShared()
	g.fake.add(idB, "python3", launcher.Idle)
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
	_, _ = first.Close(), second.Close()
	eventually(t, "room", func() bool {
		_, resp, _ := g.tryChannels(idA, "", as("ann"))
		return resp.StatusCode == 101
	})
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
	g.do("POST", "/api/kernels", "", as("bob")).want(t, 201, "")
	if n := len(g.fake.requests()); n != 3 {
		t.Errorf("%d were started", n)
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := newStartLimits(2)
		if err != nil {
			t.Fatal(err)
		}
		for i, ok := range []bool{true, true, false, false} {
			if err := l.take("ann"); (err == nil) != ok {
				t.Errorf("start %d: %v", i, err)
			}
		}
		time.Sleep(30 * time.Second)
		if l.take("ann") != nil || l.take("ann") == nil {
			t.Error("30 s are not worth one start")
		}
	})
}
