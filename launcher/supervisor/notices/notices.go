// Package notices makes the messages that a supervisor sends instead of the kernel: lines, statuses and replies, and
// the notices that it shows under cells and changes later. Package supervisor decides what they say. It starts no
// goroutine.
package notices

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/messagelog"
)

// Notices speaks for one kernel. Supervisor.mu guards it and its Displays.
type Notices struct {
	Kernel  string   // session id of the kernel's messages; "": not known yet
	Waiting Displays // that the kernel is not there yet
	Node    Displays // that the kernel's node will go away
	Cull    Displays // that the kernel will be culled
	Parked  Displays // that the kernel has given its GPU back
	GPU     Displays // that a cell waits for it

	own string // session id of the supervisor's messages
}

// New returns the Notices of a kernel. own is the session id of the supervisor's messages.
func New(log *messagelog.Log, own string) *Notices {
	n := &Notices{own: own}
	for _, d := range []*Displays{&n.Waiting, &n.Node, &n.Cull, &n.Parked, &n.GPU} {
		d.log, d.sender = log, n.Sender
	}
	return n
}

// Sender returns the session id of messages that are sent instead of the kernel's. It is the kernel's own, since
// JupyterLab drops queued messages when the sender's session changes.
func (n *Notices) Sender() string {
	if n.Kernel != "" {
		return n.Kernel
	}
	return n.own
}

// Line returns a line on stderr under the cell whose request has the given header.
func (n *Notices) Line(cell []byte, format string, args ...any) jupyter.Message {
	return notice.Line(n.Sender(), cell, fmt.Sprintf(format, args...))
}

// State returns a status message.
func (n *Notices) State(state api.State, parent []byte) jupyter.Message {
	return notice.State(n.Sender(), parent, string(state))
}

// Reply returns an error reply that replaces the kernel's.
func (n *Notices) Reply(c jupyter.Channel, requestType string, header []byte, f notice.Failure) jupyter.Message {
	return notice.Reply(c, requestType, n.Sender(), header, f)
}

// Nothing returns the reply to a complete_request or an inspect_request that there is nothing to show; see the pages
// "Completion" and "Introspection" of jupyter-client's messaging documentation.
func (n *Notices) Nothing(requestType string, header []byte) jupyter.Message {
	content := map[string]any{"status": "ok", "found": false, "data": struct{}{}, "metadata": struct{}{}}
	if requestType == "complete_request" {
		content = map[string]any{"status": "ok", "matches": []string{}, "cursor_start": 0, "cursor_end": 0,
			"metadata": struct{}{}}
	}
	return jupyter.New(jupyter.Shell, strings.TrimSuffix(requestType, "request")+"reply", n.Sender(), header, content)
}

// Displays show one text in cells of several sessions, at most one cell each.
type Displays struct {
	log    *messagelog.Log
	sender func() string
	cells  []display
}

// display is a notice.Display for one session.
type display struct {
	session uint64 // number
	*notice.Display
}

// Add adds the cell whose request has the given header. It does nothing for a session that has one, or without a
// header.
func (d *Displays) Add(session uint64, header []byte) {
	if len(header) > 0 && !slices.ContainsFunc(d.cells, func(c display) bool { return c.session == session }) {
		d.cells = append(d.cells, display{session, notice.NewDisplay(header)})
	}
}

// Show shows a text in all cells instead of the previous one.
func (d *Displays) Show(text string) {
	for _, c := range d.cells {
		if m, changed := c.Display.Show(d.sender(), text); changed {
			d.log.Append(c.session, m, true)
		}
	}
}

// End shows a last text, or removes the notice if that is "". Later texts get other notices.
func (d *Displays) End(text string) {
	d.Show(text)
	d.cells = nil
}
