package supervisor

import (
	"encoding/json"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// death is the last death of the kernel, and whether its users have noticed it. Supervisor.mu guards it.
type death struct {
	api.Death      // zero: the kernel has not died
	seen      bool // a client has run a cell since
}

// die notes that a kernel which was up has died.
func (d *death) die(at time.Time, reason string) { *d = death{Death: api.NewDeath(at, reason)} }

// text returns what users are shown about the death, or "".
func (d *death) text(state api.State) string {
	if d.At.IsZero() || d.seen || state == api.Starting {
		return ""
	}
	return d.Text()
}

// notice notes that a client's message is accepted. A page may run silent code without its user.
func (d *death) notice(m *jupyter.Message, h jupyter.Header) {
	if d.At.IsZero() || d.seen || h.MsgType != "execute_request" {
		return
	}
	var content struct {
		Silent bool `json:"silent"`
	}
	err := json.Unmarshal(m.Content, &content)
	d.seen = err != nil || !content.Silent
}

// announceDeath shows every session why the kernel has died: in its oldest cell that runs or waits, else in its last
// one.
func (cs *clients) announceDeath(d api.Death) {
	cells := map[uint64][]byte{}
	for r := range cs.requests.Open() {
		if r.Executes() && !r.Idled && cells[r.Session] == nil {
			cells[r.Session] = r.Header
		}
	}
	for sess := range cs.sessions.All() {
		cell := cells[sess.Number]
		if cell == nil {
			cell = sess.LastCell
		}
		if len(cell) > 0 {
			cs.log.Append(sess.Number, cs.notices.Line(cell, "The kernel died: %s. That was at %s. Its variables are gone.",
				d.Reason, api.ShownTime(d.At)), true)
		}
	}
}
