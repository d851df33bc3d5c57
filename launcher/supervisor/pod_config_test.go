package supervisor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// TestSupervisor_NewerSettings: a supervisor logs once which settings of a newer gateway it ignores.
func TestSupervisor_NewerSettings(t *testing.T) {
	var logged transcript.Buffer
	startSupervisorTuned(t, func(c *api.Config) { c.Ignored = []string{"cull.x"} },
		func(s *Supervisor) { s.logger = loggerTo(&logged) }).ready()
	if text := logged.String(); strings.Count(text, "settings of a newer gateway are ignored") != 1 ||
		!strings.Contains(text, "cull.x") {
		t.Errorf("the log says:\n%s", text)
	}
}

// TestClient_tls: a gateway reaches a pod by TLS with the pinned key and the token: REST, status stream and websockets.
func TestClient_TLS(t *testing.T) {
	p := newPod(t, func(c *api.Config) {
		l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
		if err != nil {
			t.Fatal(err)
		}
		c.Listen = "tcp:" + l.Addr().String()
		_ = l.Close()
	})
	_, address, _ := strings.Cut(p.cfg.Listen, ":")
	conf, err := api.PinnedTLS([]byte(strings.Repeat("s", 32)), p.cfg.KernelID)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", address)
	}
	b, err := json.Marshal(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.supervisor = p.start(os.Args[0], nil, podVariable+"="+string(b))
	eventually(t, "it listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	good := &api.Client{KernelID: p.cfg.KernelID, Token: strings.Repeat("t", 32), Dial: dial}
	if err := good.SetWaiting(t.Context(), api.Waiting{Class: api.WaitingClass, Text: "pulling", Version: 1}); err != nil {
		t.Fatal(err)
	}
	p.startChild()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	seen := ""
	_ = good.Watch(ctx, func(st api.Status) {
		seen += st.Reason + " " + string(st.State) + "; "
		if st.State == api.Idle {
			cancel()
		}
	})
	if !strings.HasSuffix(seen, " idle; ") {
		t.Errorf("seen: %s", seen)
	}
	bad := *good
	bad.Token = "x"
	if err := bad.SetLimits(t.Context(), 1<<20); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("another token: %v", err)
	}
	d := websocket.Dialer{NetDialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	ws, _, err := d.Dial("ws"+strings.TrimPrefix(p.url("/channels?session_id=ann"), "http"),
		map[string][]string{"Authorization": {"Bearer " + good.Token}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.Close() }()
	c := &client{t: t, ws: ws, session: "ann"}
	id := c.execute("print 3")
	if got := output(c.result(id), id); got != "0\n1\n2\n" {
		t.Errorf("output is %q", got)
	}
	if err := good.Stop(t.Context(), "enough"); err != nil {
		t.Fatal(err)
	}
	if a, b := p.exitCode(p.supervisor), p.exitCode(p.child); a != 0 || b != 0 {
		t.Errorf("exit codes %d and %d", a, b)
	}
}
