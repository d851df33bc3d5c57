package supervisor

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/requests"
)

// TestSupervisor_FailedCell: what a client sends when it has read a cell's error waits for the cell's end, for an
// interrupt or for two seconds. What it has sent before, and what others send, does not wait.
func TestSupervisor_FailedCell(t *testing.T) {
	request := func(t *testing.T, r *running, id string) (found *requests.Request) {
		t.Helper()
		eventually(t, "the request has arrived", func() bool {
			r.s.mu.Lock()
			defer r.s.mu.Unlock()
			for _, q := range r.s.clients.requests.ByID(id) {
				found = q
			}
			return found != nil
		})
		return found
	}
	for name, tt := range map[string]struct {
		unread bool // the client has not read the error
		long   bool // the cell does not end by itself
		open   func(t *testing.T, r *running)
	}{
		"the cell ends":       {},
		"it is interrupted":   {long: true, open: interrupt},
		"two seconds":         {long: true},
		"sent before it read": {unread: true, long: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits more than it works
			r := startSupervisor(t, nil).ready()
			c, other := r.dial(dialOption{session: "ann"}), r.dial(dialOption{session: "bob"})
			code := "sleep 1s"
			if tt.long {
				code = "sleep 30s"
			}
			cell := c.execute(code)
			c.running(cell)
			failed := request(t, r, cell)
			r.s.mu.Lock()
			b := r.s.kernel.bridge
			r.s.mu.Unlock()
			r.s.deliver(b, jupyter.New(jupyter.IOPub, "error", "kernel", failed.Header, map[string]string{"ename": "E"}))
			if !tt.unread {
				c.collect("the error", func(g got) bool { return g.msgType == "error" })
			}
			next := request(t, r, c.execute("print 1"))
			beside := request(t, r, other.execute("print 1"))
			eventually(t, "another client's cell goes to the kernel", beside.Sent.Load)
			if next.Sent.Load() && !tt.unread && !failed.Over.Load() && time.Now().Before(failed.Opens) {
				t.Error("the next cell does not wait")
			}
			if tt.open != nil {
				tt.open(t, r)
			}
			eventually(t, "the next cell goes to the kernel", next.Sent.Load)
			switch late := time.Now().After(failed.Opens); {
			case tt.long && !tt.unread && !late && tt.open == nil:
				t.Error("it has not waited")
			case tt.unread && late:
				t.Error("it has waited")
			}
			interrupt(t, r)
			c.result(cell, next.ID)
		})
	}
}

func TestStopsOnError(t *testing.T) {
	large := `{"stop_on_error":false,"code":"` + strings.Repeat("x", failedContent) + `"}`
	for content, want := range map[string]bool{`{}`: true, `{"stop_on_error":true}`: true,
		`{"stop_on_error":false}`: false, `{"stop_on_error":1}`: true, `no JSON`: true, large: true} {
		if got := stopsOnError(&jupyter.Message{Content: []byte(content)}, "execute_request"); got != want {
			t.Errorf("%.40s stops: %v", content, got)
		}
	}
	if stopsOnError(&jupyter.Message{}, "inspect_request") {
		t.Error("only a cell stops")
	}
}

func interrupt(t *testing.T, r *running) {
	t.Helper()
	if status, body := r.request("POST", "/interrupt", ""); status != http.StatusNoContent {
		t.Errorf("interrupt: %d %s", status, body)
	}
}
