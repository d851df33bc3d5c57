// Package notice makes the messages that gateway and supervisor send in the place of the kernel: lines for users, which
// begin with Prefix, execution states and error replies. A Display remembers the line that it shows, to change it
// later. The callers decide when to send one.
package notice

import (
	"fmt"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// Prefix begins every text for users, so that they can tell it from the kernel's output.
const Prefix = "[ekg] "

// NaNLine is the line of a cell whose numbers browsers do not read. A job's notebook has the numbers, and no such line.
const NaNLine = "Numbers of this cell's output are shown as null: NaN and infinities are not part of JSON."

// Stream is the content of a stream message.
type Stream struct {
	Name string `json:"name"` // "stdout" or "stderr"
	Text string `json:"text"`
}

// Status is the content of a status message.
type Status struct {
	ExecutionState string `json:"execution_state"`
}

// Line returns a line on stderr under the cell whose request has the header parent. Session is the sender's session id.
func Line(session string, parent []byte, text string) jupyter.Message {
	return jupyter.New(jupyter.IOPub, "stream", session, parent, Stream{Name: "stderr", Text: Prefix + text + "\n"})
}

// State returns a status message about the request that has the header parent, or about none if that is nil.
func State(session string, parent []byte, state string) jupyter.Message {
	return jupyter.New(jupyter.IOPub, "status", session, parent, Status{ExecutionState: state})
}

// Failure says why a request gets no answer from the kernel.
type Failure struct {
	Status string // "error" or "aborted"
	Name   string // the ename: a kind of error, as the class of an exception
	Reason string // one sentence
}

// Fails reports whether an error may be made up as the reply to a request of the type given. It may not for
// kernel_info_request: @jupyterlab/services then rejects its promise of the kernel's info for good, although the kernel
// may be restarted.
func Fails(requestType string) bool {
	return strings.HasSuffix(requestType, "_request") && requestType != "kernel_info_request"
}

// Reply returns the reply to a request of the type given, which the kernel does not answer.
func Reply(c jupyter.Channel, requestType, session string, parent []byte, f Failure) jupyter.Message {
	return jupyter.New(c, replyType(requestType), session, parent, map[string]any{
		"status": f.Status, "ename": f.Name, "evalue": f.Reason, "traceback": []string{}})
}

func replyType(requestType string) string {
	if stem, ok := strings.CutSuffix(requestType, "_request"); ok {
		return stem + "_reply"
	}
	return requestType
}

// LeftOut replaces a message of so many bytes that cannot be delivered: by a line in the cell, or by a reply, because
// its request still has to end. Of the message only its channel, header and parent_header are read.
func LeftOut(m *jupyter.Message, bytes int64, why string) jupyter.Message {
	msgType := jupyter.StringField(m.Header, "msg_type")
	session := jupyter.StringField(m.Header, "session")
	what := fmt.Sprintf("%d bytes", bytes)
	if msgType != "" {
		what = "type " + msgType + " and " + what
	}
	text := fmt.Sprintf("A message of %s was left out: %s.", what, why)
	switch m.Channel {
	case jupyter.IOPub:
		return Line(session, m.Parent, text)
	case jupyter.Stdin:
		return jupyter.New(m.Channel, msgType, session, m.Parent, map[string]any{"prompt": Prefix + text, "password": false})
	}
	text = Prefix + text + "\n"
	return jupyter.New(m.Channel, msgType, session, m.Parent, map[string]any{
		"status": "error", "ename": "MessageLeftOut", "evalue": text, "traceback": []string{text}})
}

// Display is a line under a cell that can be changed and removed. The zero value is not valid: it needs an ID. It is
// not for concurrent use.
type Display struct {
	ID     string // the display_id; unique in the notebook
	Parent []byte // header of the cell's request
	Text   string // what the cell shows now; "" if nothing
}

// NewDisplay returns a Display that shows nothing yet, under the cell whose request has the header parent.
func NewDisplay(parent []byte) *Display {
	return &Display{ID: "ekg-" + jupyter.NewID(), Parent: parent}
}

// Show returns the message that makes the cell show the text instead of the present one; "" removes the line. It
// reports false if the cell shows that already.
func (d *Display) Show(session, text string) (m jupyter.Message, changed bool) {
	if d.Text == text {
		return m, false
	}
	msgType := "update_display_data"
	if d.Text == "" {
		msgType = "display_data"
	}
	d.Text = text
	data := map[string]string{}
	if text != "" {
		data["text/plain"] = Prefix + text
	}
	return jupyter.New(jupyter.IOPub, msgType, session, d.Parent, map[string]any{
		"data": data, "metadata": struct{}{}, "transient": map[string]string{"display_id": d.ID}}), true
}
