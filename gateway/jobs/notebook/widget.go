package notebook

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// widget is a widget's comm.
type widget struct {
	Piece string `json:"piece"` // name of the piece with its model; "" while the model has changes that are not stored
	Size  int64  `json:"size"`

	// Of an Output widget.
	Output bool   `json:"output,omitempty"`
	MsgID  string `json:"msg_id,omitempty"` // of the request whose outputs it takes; "" if it takes none
	Clear  bool   `json:"clear,omitempty"`  // a clear_output waits for the next output
	Full   bool   `json:"full,omitempty"`   // it has too much output
	// Parts are the outputs that it has taken behind those in its model. The model has at most about partSize of them.
	Parts []*part `json:"parts,omitempty"`
	// Earlier says that it was opened before the run, and that its outputs of then are not known.
	Earlier bool `json:"earlier,omitempty"`
	// News is behind the index of the cell that has changed its outputs, until the kernel is told. 0: there are no news.
	News int `json:"news,omitempty"`

	model *model // nil: it is not in memory
}

// model is the state of a widget's comm.
type model struct {
	State   map[string]json.RawMessage `json:"state"`
	Buffers []widgetBuffer             `json:"buffers,omitempty"`
	// Taken says that the run has put the outputs into State, and counts them. Older gateways read State only.
	Taken bool `json:"taken,omitempty"`

	taken []*output // these outputs, in the place of those in State; nil: it has taken none
}

type widgetBuffer struct {
	Data     string          `json:"data"`
	Encoding string          `json:"encoding"`
	Path     json.RawMessage `json:"path"`
}

// The members of an Output widget's state that a run reads and writes.
const (
	memberOutputs = "outputs"
	memberMsgID   = "msg_id"
)

// change is what a message changes in a widget's state.
type change struct {
	method  string // "" if the message opens the comm
	state   map[string]json.RawMessage
	buffers []widgetBuffer
}

// change reads a message of a comm. Its state is nil if the comm is no widget's.
func (c *content) change(buffers [][]byte) (ch change) {
	all, err := viewObject(c.Data)
	if err != nil {
		return ch
	}
	ch.method = all.text("method")
	if state, err := parseObject(all.values["state"]); err == nil {
		ch.state = state.values
	}
	paths, _ := viewList(all.values["buffer_paths"]) // without paths there are no buffers
	for i, path := range paths[:min(len(paths), len(buffers))] {
		ch.buffers = append(ch.buffers,
			widgetBuffer{base64.StdEncoding.EncodeToString(buffers[i]), "base64", bytes.Clone(path)})
	}
	return ch
}

// noteWidget keeps the state of widgets, which front ends need to show them.
func (r *run) noteWidget(ctx context.Context, c *content, buffers [][]byte) error {
	ch := c.change(buffers)
	if c.CommID == "" || ch.state == nil {
		return nil
	}
	w := r.state.Widgets[c.CommID]
	if w == nil && ch.method == "update" {
		w = r.meet(c.CommID)
	}
	if w == nil {
		if len(r.state.Widgets) >= maxNamed {
			return nil
		}
		w = &widget{model: &model{State: map[string]json.RawMessage{}}, Output: isOutput(ch.state)}
		if r.change(w, ch, int64(outputCost+len(c.CommID))) {
			r.state.Widgets[c.CommID] = w
		}
		return nil
	}
	if err := r.load(ctx, w); err != nil {
		return err
	}
	if _, aims := ch.state[memberMsgID]; aims && slices.Contains(r.state.Met, c.CommID) {
		w.Output = true // only these have it
	}
	r.aim(c.CommID, w, ch.state)
	r.change(w, ch, 0)
	return nil
}

// change changes a widget's state, which is in memory. It reports whether there was room for that. size is what the
// widget itself adds. A progress bar changes for hours and stays small.
func (r *run) change(w *widget, ch change, size int64) bool {
	for name, value := range ch.state {
		if old, there := w.model.State[name]; there {
			size -= int64(len(name) + len(old))
		}
		size += int64(len(name) + len(value))
	}
	for _, b := range ch.buffers {
		if at := w.model.buffer(b.Path); at >= 0 {
			size -= w.model.Buffers[at].size()
		}
		size += b.size()
	}
	_, replaced := ch.state[memberOutputs]
	if replaced {
		size -= w.taken()
	}
	if size > 0 && r.size+size > r.limit {
		return false
	}
	r.grow(w, size)
	maps.Copy(w.model.State, ch.state)
	if replaced { // by the kernel, which knows them
		w.model.taken, w.Parts, w.Clear, w.Full, w.Earlier, w.News = nil, nil, false, false, false, 0
	}
	for _, b := range ch.buffers {
		if at := w.model.buffer(b.Path); at >= 0 {
			w.model.Buffers[at] = b
		} else {
			w.model.Buffers = append(w.model.Buffers, b)
		}
	}
	return true
}

// load reads a widget's model into memory.
func (r *run) load(ctx context.Context, w *widget) error {
	if w.model != nil {
		return nil
	}
	raw, err := r.Pieces.Get(ctx, w.Piece)
	if err != nil {
		return err
	}
	if w.model = parseModel(raw); w.model == nil {
		return fmt.Errorf("notebook: piece %s is not the state of a widget", w.Piece)
	}
	r.fresh += int64(len(raw))
	return nil
}

// grow counts a change of a widget's model, which is to be stored.
func (r *run) grow(w *widget, size int64) {
	r.size += size
	w.Size += size
	w.Piece = ""
}

// isOutput reports whether the state is that of an Output widget.
func isOutput(state map[string]json.RawMessage) bool {
	return string(state["_model_name"]) == `"OutputModel"` && string(state["_model_module"]) == `"@jupyter-widgets/output"`
}

// aim notes from which request an Output widget takes the outputs. They are its own while its msg_id is the request's.
func (r *run) aim(id string, w *widget, state map[string]json.RawMessage) {
	var msgID string
	if raw, has := state[memberMsgID]; !w.Output || !has || json.Unmarshal(raw, &msgID) != nil || msgID == w.MsgID {
		return
	}
	takers := slices.DeleteFunc(r.state.Takers[w.MsgID], func(other string) bool { return other == id })
	if r.state.Takers[w.MsgID] = takers; len(takers) == 0 {
		delete(r.state.Takers, w.MsgID)
	}
	if _, own := r.cellOf(msgID); !own {
		msgID = ""
	} else {
		r.state.Takers[msgID] = append(r.state.Takers[msgID], id)
	}
	w.MsgID = msgID
}

// taker returns the Output widget that takes the outputs of a cell: the last one that has begun to. nil: none does.
func (r *run) taker(at int) *widget {
	takers := r.state.Takers[r.msgID(at)]
	if len(takers) == 0 {
		return nil
	}
	return r.state.Widgets[takers[len(takers)-1]]
}

// take applies an output or a clear_output to the Output widget that takes it. An update of a display does not reach
// what widgets show, as in front ends.
func (r *run) take(ctx context.Context, w *widget, msgType string, c *content) error {
	if len(w.Parts) == 0 || msgType == "clear_output" || w.Clear {
		if err := r.load(ctx, w); err != nil {
			return err
		}
	}
	if len(w.Parts) == 0 && w.model.taken == nil {
		old := w.model.State[memberOutputs]
		w.model.taken = []*output{}
		delete(w.model.State, memberOutputs)
		r.grow(w, -int64(len(memberOutputs)+len(old)))
		for _, out := range parseOutputs(old) {
			if err := r.append(ctx, w, out); err != nil {
				return err
			}
		}
	}
	if msgType == "clear_output" {
		if w.Clear = c.Wait; !c.Wait {
			r.empty(w)
		}
		return nil
	}
	if w.Clear {
		r.empty(w)
	}
	out, limit := &output{stream: c.Name, text: []byte(c.Text)}, r.limit
	switch msgType {
	case "error":
		out, limit = &output{other: c.errorOutput()}, r.limit+errorBytes
	case "display_data", "execute_result":
		if _, err := r.update(ctx, c); err != nil {
			return err
		}
		out = &output{other: c.displayOutput(msgType)}
		out.other.set("data", objectOr(c.Data)) // the texts are no lists of lines here
	}
	if over := r.size+out.size() > limit; over && w.Full || w.Full && msgType != "error" {
		return nil
	} else if over {
		w.Full = true
		out = r.overLimit("widget")
	}
	w.News = r.state.Cell + 1
	return r.append(ctx, w, out)
}

// append adds an output to what an Output widget has taken: to its model while that is small, then to its last part.
// So what is stored again when the widget changes is small. The model is in memory if there are no parts.
func (r *run) append(ctx context.Context, w *widget, out *output) error {
	before := w.taken()
	if len(w.Parts) == 0 && before+out.size() <= partSize {
		w.model.taken = appendOutput(w.model.taken, out)
		r.grow(w, w.taken()-before)
		return nil
	}
	if n := len(w.Parts); n == 0 || w.Parts[n-1].Piece != "" && w.Parts[n-1].Size >= partSize {
		w.Parts = append(w.Parts, &part{})
	} else if last := w.Parts[n-1]; last.Piece != "" {
		content, err := readPart(ctx, r.Pieces, last)
		if err != nil {
			return err
		}
		last.list, last.Piece = parseOutputs(content.Outputs), ""
	}
	parts, more := appendPart(w.Parts, out)
	w.Parts, w.Size, r.size = parts, w.Size+more, r.size+more
	return nil
}

// empty clears the outputs of an Output widget.
func (r *run) empty(w *widget) {
	r.grow(w, -w.taken())
	w.model.taken, w.Parts, w.Clear, w.Full, w.Earlier = []*output{}, nil, false, false, false
	w.News = r.state.Cell + 1
}

// taken returns the size of the outputs that the widget has taken, without those of a model that is not in memory.
func (w *widget) taken() (size int64) {
	if w.model != nil {
		size = sizeOf(w.model.taken)
	}
	for _, p := range w.Parts {
		size += p.Size
	}
	return size
}

// outputs returns the outputs that the widget has taken. Its model is in memory. Parts that are not are read.
func (w *widget) outputs(ctx context.Context, pieces Pieces) (list []*output, err error) {
	for _, out := range w.model.taken {
		list = appendCopy(list, out)
	}
	for _, p := range w.Parts {
		outputs := p.list
		if p.Piece != "" {
			content, err := readPart(ctx, pieces, p)
			if err != nil {
				return nil, err
			}
			outputs = parseOutputs(content.Outputs)
		}
		for _, out := range outputs {
			list = appendCopy(list, out)
		}
	}
	return list, nil
}

// appendCopy is appendOutput for an output that belongs to another list.
func appendCopy(list []*output, out *output) []*output {
	return appendOutput(list, &output{stream: out.stream, text: slices.Clone(out.text), other: out.other})
}

func sizeOf(list []*output) (size int64) {
	for _, out := range list {
		size += out.size()
	}
	return size
}

// overLimit is the line that says that output is left out.
func (r *run) overLimit(of string) *output {
	return &output{stream: "stderr", text: fmt.Appendf(nil, notice.Prefix+"The output of this notebook is larger than "+
		"%d MiB. Further output of this %s is left out.\n", r.limit>>20, of)}
}

// maxNews bounds the outputs of a widget that the kernel is told of.
const maxNews = 1 << 20

// tell sends the kernel the outputs that its Output widgets have taken in cells before the given one, as front ends do.
// Then the next cell can read them. Each message has the same msg_id whichever gateway sends it. tell returns the comms
// by these.
func (r *run) tell(ctx context.Context, before int) (sent map[string]string, err error) {
	sent = map[string]string{}
	for _, id := range slices.Sorted(maps.Keys(r.state.Widgets)) {
		w := r.state.Widgets[id]
		if w.News == 0 || w.News > before {
			continue
		}
		if err := r.load(ctx, w); err != nil {
			return nil, err
		}
		msgID := r.msgID(w.News) + "-" + id
		if w.News = 0; w.model.taken == nil || w.taken() > maxNews {
			continue
		}
		outputs, err := w.outputs(ctx, r.Pieces)
		if err != nil {
			return nil, err
		}
		m := r.message("comm_msg", msgID, map[string]any{"comm_id": id, "data": map[string]any{"method": "update",
			"state": map[string]any{memberOutputs: told(outputs)}, "buffer_paths": []any{}}})
		m.Content = jupyter.ShowNaN(m.Content)
		if err := r.Conn.Send(ctx, m); err != nil {
			return nil, err
		}
		sent[msgID] = id
	}
	return sent, nil
}

// tellLast tells the kernel what the last cell has changed, and waits until it has read that. An author's kernel lives
// on, and its pages show the widgets.
func (r *run) tellLast(ctx context.Context) error {
	sent, err := r.tell(ctx, r.state.Cell+1)
	if err == nil {
		err = r.await(ctx, sent, func() error { return nil })
	}
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}

// live returns outputs in the form of an Output widget's state, whose texts are no lists of lines.
func live(list []*output) json.RawMessage {
	all := make([]any, len(list))
	for i, out := range list {
		if all[i] = out.other; out.other == nil {
			all[i] = map[string]any{"output_type": "stream", "name": out.stream, "text": string(out.text)}
		}
	}
	return encode(all)
}

var toldOrder = map[string]int{"output_type": -3, "metadata": -2, "data": -1}

// told returns outputs as live does, in nbclient's order of members: a cell may print them as Python's dictionaries.
func told(list []*output) json.RawMessage {
	all := make([]any, len(list))
	for i, out := range list {
		o := out.other
		if o == nil {
			o = newObject(map[string]any{"output_type": "stream", "name": out.stream, "text": string(out.text)})
		}
		ordered := &object{values: o.values, keys: slices.Clone(o.keys)}
		slices.SortStableFunc(ordered.keys, func(a, b string) int { return toldOrder[a] - toldOrder[b] })
		all[i] = ordered
	}
	return encode(all)
}

// stored returns the model as a piece.
func (m *model) stored() json.RawMessage {
	state := m.whole()
	piece := newObject(map[string]any{"state": &object{slices.Sorted(maps.Keys(state)), state}})
	if len(m.Buffers) > 0 {
		piece.set("buffers", m.Buffers)
	}
	if m.taken != nil {
		piece.set("taken", true)
	}
	return piece.append(nil)
}

// whole returns the state with the outputs that were taken.
func (m *model) whole() map[string]json.RawMessage {
	if m.taken == nil {
		return m.State
	}
	state := maps.Clone(m.State)
	state[memberOutputs] = live(m.taken)
	return state
}

// parseModel reads the piece of a widget. It returns nil for another piece.
func parseModel(raw []byte) *model {
	m := &model{}
	if json.Unmarshal(raw, m) != nil || m.State == nil {
		return nil
	}
	if m.Taken {
		m.taken = append([]*output{}, parseOutputs(m.State[memberOutputs])...)
		delete(m.State, memberOutputs)
	}
	return m
}

// shown returns the model as nbclient stores it in a notebook.
func (m *model) shown() any {
	state := m.whole()
	shown := map[string]any{"model_name": state["_model_name"], "model_module": orNil(state["_model_module"]),
		"model_module_version": orNil(state["_model_module_version"]), "state": state}
	if len(m.Buffers) > 0 {
		shown["buffers"] = m.Buffers
	}
	return shown
}

// size returns what the buffer counts as, in bytes.
func (b widgetBuffer) size() int64 { return int64(len(b.Data) + len(b.Path)) }

// buffer returns the index of the buffer of a path, or -1.
func (m *model) buffer(path json.RawMessage) int {
	return slices.IndexFunc(m.Buffers, func(b widgetBuffer) bool { return string(b.Path) == string(path) })
}
