package gateway

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Whatever a client puts its credential into, no supervisor gets to see it: neither by a header that is not on the
// list nor inside one that is.
func TestProxy_NoCredentialReachesASupervisor(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	basic := base64.StdEncoding.EncodeToString([]byte("u:" + testToken))
	spread := func(r *http.Request) {
		h := r.Header
		h.Set("Authorization", "Bearer "+testToken)
		h.Set("Cookie", "session="+testToken+"; b="+basic)
		h.Set("Proxy-Authorization", "Basic "+basic)
		h.Set("Referer", g.http.URL+"/lab?token="+testToken)
		h.Set("Origin", g.http.URL)
		for _, name := range []string{
			"X-Auth-Token", "X-Forwarded-For", "Forwarded", "X-Request-Id", "Ekg-User", "Ekg-Right", "Via", "Te", "Trailer",
			"X-XSRFToken",
			"Accept", "Content-Type", "Content-Language", "Accept-Language", "User-Agent", "Sec-WebSocket-Extensions",
			"If-None-Match",
		} {
			h.Set(name, "a "+testToken)
		}
		h.Add("Sec-WebSocket-Protocol", "v1.kernel.websocket.jupyter.org")
		h.Add("Sec-WebSocket-Protocol", "token."+testToken)
		r.URL.RawQuery = url.Values{"token": {testToken}, "session_id": {"s-" + testToken}, "x": {testToken},
			"1732": nil}.Encode()
	}
	path := "/api/kernels/" + idA
	g.do("GET", path, testToken, spread).want(t, 200, "")
	g.do("HEAD", path, "", spread)
	g.do("POST", path+"/interrupt", `{"token": "`+testToken+`"}`, spread).want(t, 204, "")
	g.do("POST", path+"/restart", testToken, spread).want(t, 200, "")
	g.do("POST", path+"/restart", "", func(r *http.Request) { // and by the path
		r.URL.User = url.UserPassword("u", testToken)
		spread(r)
	}).want(t, 200, "")
	conn, _ := g.dialChannels(idA, "", spread)
	_ = conn.Close()
	// Credentials that are not the gateway's own cannot be known by their text: their headers must not be forwarded.
	conn, _ = g.dialChannels(idA, "", func(r *http.Request) {
		for _, name := range []string{
			"Cookie", "Proxy-Authorization", "Referer", "X-Auth-Token", "X-XSRFToken", "X-Forwarded-User",
			"Ekg-User",
		} {
			r.Header.Set(name, "foreign")
		}
	})
	_ = conn.Close()

	sent := super.sent()
	if strings.Count(sent, "host="+idA) != 7 {
		t.Fatalf("not all requests have arrived: %s", sent)
	}
	for _, canary := range []string{
		testToken, basic, "token", "foreign", "Cookie", "Authorization", "Referer", "Origin", "Forwarded", "Xsrf",
	} {
		if strings.Contains(strings.ToLower(sent), strings.ToLower(canary)) {
			t.Errorf("the supervisor was sent %q:\n%s", canary, sent)
		}
	}
	if strings.Contains(g.log.String(), testToken) || strings.Contains(g.log.String(), basic) {
		t.Errorf("the log holds it: %s", g.log)
	}
}

func TestProxy_WhatIsForwarded(t *testing.T) {
	g := startGateway(t, func(o *Options) { o.CompressWebsockets = true })
	super := g.fake.add(idA, "python3", api.Idle)
	conn, _ := g.dialChannels(idA, "?session_id=s%201&token="+testToken+"&other=x", func(r *http.Request) {
		r.Header.Set("User-Agent", "Tornado/6.4")
		r.Header.Set("Sec-WebSocket-Protocol", "v1.kernel.websocket.jupyter.org")
		r.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
		r.Header.Set("X-Forwarded-For", "192.0.2.1") // else the client is on this machine
		r.Header.Set(api.HeaderRight, "read")        // a client's own word on its rights counts for nothing
	})
	_ = conn.Close()
	want := "GET /api/kernels/" + idA + "/channels?session_id=s+1 host=" + idA
	if !strings.HasPrefix(super.sent(), want+"\n") {
		t.Errorf("got %s, want %s", super.sent(), want)
	}
	for _, line := range []string{
		"Connection: Upgrade", "Upgrade: websocket", "User-Agent: Tornado/6.4", "Sec-Websocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
		"Sec-Websocket-Version: 13", "Sec-Websocket-Protocol: v1.kernel.websocket.jupyter.org",
		"Sec-Websocket-Extensions: permessage-deflate",
		api.HeaderUser + ": anonymous", api.HeaderRight + ": own", api.HeaderRequestID + ": ",
	} {
		if !strings.Contains(super.sent(), line) {
			t.Errorf("%q is missing in %s", line, super.sent())
		}
	}
	t.Run("no User-Agent of our own is added", func(t *testing.T) {
		g.do("POST", "/api/kernels/"+idA+"/interrupt", "", func(r *http.Request) { r.Header.Set("User-Agent", "") }).want(t,
			204, "")
		if strings.Contains(super.sent(), "Go-http-client") {
			t.Errorf("sent %s", super.sent())
		}
	})
}

// TestProxy_Compression: a supervisor gets a client's offer to compress only if the option is set, and if the client is
// on another machine.
func TestProxy_Compression(t *testing.T) {
	for _, on := range []bool{false, true} {
		for _, forwardedFor := range []string{"", "192.0.2.1"} {
			g := startGateway(t, func(o *Options) { o.CompressWebsockets = on })
			super := g.fake.add(idA, "python3", api.Idle)
			conn, _ := g.dialChannels(idA, "", func(r *http.Request) {
				r.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
				r.Header.Set(api.HeaderCompress, "1") // a client's own has no effect
				if forwardedFor != "" {
					r.Header.Set("X-Forwarded-For", forwardedFor)
				}
			})
			_ = conn.Close()
			want := on && forwardedFor != ""
			if got := strings.Contains(super.sent(), "permessage-deflate"); got != want {
				t.Errorf("option %v, X-Forwarded-For %q: passed on %v", on, forwardedFor, got)
			}
			if got := strings.Contains(super.sent(), api.HeaderCompress+": 1"); got != want {
				t.Errorf("option %v, X-Forwarded-For %q: compression is allowed %v", on, forwardedFor, got)
			}
		}
	}
}

// TestProxy_Watched: a supervisor learns that the gateway ends the connection of a client that is gone.
func TestProxy_Watched(t *testing.T) {
	g := startGateway(t, nil)
	super := g.fake.add(idA, "python3", api.Idle)
	conn, _ := g.dialChannels(idA, "")
	_ = conn.Close()
	if want := api.HeaderWatched + ": 1"; !strings.Contains(super.sent(), want) {
		t.Errorf("%q is missing in %s", want, super.sent())
	}
}

// TestProxy_KernelsAreKeptApart: two kernels share a transport, and never answer for each other. After a supervisor has
// rejected a request as another kernel's, its connection is not used again.
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
			t.Errorf("the supervisor of %s got a request for %s", id, other)
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
