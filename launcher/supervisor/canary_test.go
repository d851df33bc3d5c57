package supervisor

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// A secret in any input of a supervisor must not appear in its log, at any level, nor in an error.
func TestCanary(t *testing.T) {
	const canary = "CANARY-5f1d"
	log := new(transcript.Buffer)
	r := startSupervisorTuned(t, func(c *api.Config) { c.Env["KERNEL_SECRET"] = canary }, func(s *Supervisor) {
		s.logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}).ready()
	header := http.Header{
		"User-Agent":   {canary},
		"Cookie":       {"a=" + canary},
		"X-Request-Id": {canary},
		api.HeaderUser: {canary},
	}
	c := r.dial(dialOption{session: canary, header: header})
	c.result(c.execute("print 3 # " + canary))
	c.result(c.execute("raise " + canary))
	c.result(c.send(jupyter.Control, "debug_request", map[string]any{"token": canary}, []byte(canary)))
	for _, frame := range []string{canary, `{"header":{"msg_id":"` + canary + `","msg_type":"x"},"channel":"` + canary +
		`"}`,
		`{"header":"` + canary + `","channel":"shell"}`} {
		bad := r.dial(dialOption{session: "bad", header: header})
		if err := bad.ws.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
			t.Fatal(err)
		}
		_ = bad.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, canary), time.Now().Add(testLimit))
		if _, err := io.Copy(io.Discard, bad.ws.NetConn()); err != nil {
			t.Logf("the end of a bad connection: %v", err)
		}
	}
	var errors strings.Builder
	for _, q := range [][3]string{{"PUT", "/limits?a=" + canary, `{"log_limit":"` + canary + `"}`},
		{"PUT", "/waiting", canary},
		{"POST", "/" + canary, canary}, {"GET", "/log?after=" + canary, ""}, {"POST", "/interrupt?token=" + canary, canary},
		{"DELETE", "", `{"reason":` + canary}} {
		code, body := r.request(q[0], q[1], q[2])
		if code >= 400 {
			fmt.Fprintln(&errors, body)
		}
	}
	if strings.Count(errors.String(), "\n") < 4 {
		t.Errorf("there were few errors: %s", errors.String())
	}
	for name, text := range map[string]string{"log": log.String(), "errors": errors.String()} {
		if strings.Contains(text, canary) {
			t.Errorf("the canary is in the %s:\n%s", name, text)
		}
	}
}

// Requests are logged under the id that the gateway has given them, and under no other.
func TestSupervisor_LogsRequests(t *testing.T) {
	log := new(transcript.Buffer)
	r := startSupervisorTuned(t, nil, func(s *Supervisor) { s.logger = slog.New(slog.NewJSONHandler(log, nil)) }).ready()
	const id = "0123456789abcdef"
	c := r.dial(dialOption{session: "ann", header: http.Header{"User-Agent": {"test"}, "X-Request-Id": {id}}})
	c.result(c.execute("print 1"))
	_ = c.ws.Close()
	r.until("closed", func(st api.Status) bool { return st.Connections == 0 })
	r.request("POST", "/interrupt", "")
	var opened, closed, interrupt map[string]any
	for line := range strings.Lines(log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		switch {
		case m["msg"] == "websocket opened":
			opened = m
		case m["msg"] == "websocket closed":
			closed = m
		case m["msg"] == "request":
			interrupt = m
		}
	}
	if opened["request"] != id || closed["request"] != id || closed["sent"].(float64) < 100 ||
		closed["took"].(float64) <= 0 {
		t.Errorf("opened: %v\nclosed: %v", opened, closed)
	}
	if interrupt["route"] != "POST /api/kernels/{id}/interrupt" || interrupt["request"] != "" {
		t.Errorf("interrupt: %v", interrupt)
	}
}
