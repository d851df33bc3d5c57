package notebook

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// errorRoom is how much errors may take beyond the limit of outputs, since they say why a run failed.
const errorRoom = 1 << 20

// place is an output in the document.
type place struct {
	Cell   int `json:"cell"`
	Output int `json:"output"`
}

// widget is the state of a widget's comm.
type widget struct {
	State   map[string]json.RawMessage `json:"state"`
	Buffers []widgetBuffer             `json:"buffers,omitempty"`
}

type widgetBuffer struct {
	Data     string          `json:"data"`
	Encoding string          `json:"encoding"`
	Path     json.RawMessage `json:"path"`
}

// content has the members of all messages on iopub that change a cell.
type content struct {
	Name           string          `json:"name"`
	Text           string          `json:"text"`
	Data           json.RawMessage `json:"data"`
	Metadata       json.RawMessage `json:"metadata"`
	ExecutionCount json.RawMessage `json:"execution_count"`
	Transient      *struct {
		DisplayID string `json:"display_id"`
	} `json:"transient"`
	Wait           bool     `json:"wait"`
	Ename          string   `json:"ename"`
	Evalue         string   `json:"evalue"`
	Traceback      []string `json:"traceback"`
	CommID         string   `json:"comm_id"`
	Status         string   `json:"status"`          // of replies
	ExecutionState string   `json:"execution_state"` // of status
}

// apply changes the cell as a front end shows the message. It reports whether it changed anything.
func (r *run) apply(at int, msgType string, m *jupyter.Message) bool {
	var c content
	if json.Unmarshal(m.Content, &c) != nil {
		return false // no front end shows it
	}
	cell := r.doc.cells[at]
	switch msgType {
	case "execute_input":
		r.count(cell, c.ExecutionCount)
	case "stream":
		r.addText(at, c.Name, c.Text)
	case "execute_result":
		r.count(cell, c.ExecutionCount)
		r.display(at, &c, newObject(map[string]any{"output_type": msgType, "execution_count": orNil(c.ExecutionCount)}))
	case "display_data":
		r.display(at, &c, newObject(map[string]any{"output_type": msgType}))
	case "update_display_data":
		return r.update(&c)
	case "error":
		r.addError(at, &c)
	case "clear_output":
		if cell.outputs.clear = c.Wait; !c.Wait {
			r.clear(at)
		}
	case "comm_open", "comm_msg":
		r.noteWidget(&c, m.Buffers)
	default:
		return false
	}
	return true
}

func orNil(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	return raw
}

func (r *run) count(c *cell, count json.RawMessage) {
	if len(count) > 0 {
		c.obj.set("execution_count", count)
	}
}

func (r *run) clear(at int) {
	c := r.doc.cells[at]
	r.size -= c.outputs.size
	c.outputs = &outputs{}
	for id, places := range r.state.Displays {
		r.state.Displays[id] = slices.DeleteFunc(places, func(p place) bool { return p.Cell == at })
	}
}

// room makes room for an output, or reports that there is none. It does what a clear_output has asked for.
func (r *run) room(at int, size int64, isError bool) bool {
	c := r.doc.cells[at]
	if c.outputs.clear {
		r.clear(at)
		c = r.doc.cells[at]
	}
	limit := r.limit
	if isError {
		limit += errorRoom
	}
	if (c.outputs.full && !isError) || r.size+size > limit {
		if !c.outputs.full {
			c.outputs.full = true
			r.put(at, func(o *outputs) {
				o.addText("stderr", fmt.Sprintf(notice.Prefix+"The output of this notebook is larger than %d MiB. "+
					"Further output of this cell is left out.\n", r.limit>>20))
			})
		}
		return false
	}
	return true
}

// put adds to a cell's outputs and counts their size.
func (r *run) put(at int, add func(*outputs)) {
	o := r.doc.cells[at].outputs
	before := o.size
	add(o)
	r.size += o.size - before
}

func (r *run) addText(at int, name, text string) {
	if r.room(at, int64(outputCost+len(name)+len(text)), false) {
		r.put(at, func(o *outputs) { o.addText(name, text) })
	}
}

func (r *run) display(at int, c *content, out *object) {
	out.set("data", bundle(c.Data))
	out.set("metadata", objectOr(c.Metadata))
	r.update(c)
	id := ""
	if c.Transient != nil {
		id = c.Transient.DisplayID
	}
	if !r.room(at, int64(outputCost+len(id)+len(c.Data)+len(c.Metadata)), false) {
		return
	}
	if id != "" {
		r.size += int64(len(id))
		r.state.Displays[id] = append(r.state.Displays[id], place{at, len(r.doc.cells[at].outputs.list)})
	}
	r.put(at, func(o *outputs) { o.add(out) })
}

// update changes all outputs that show the display.
func (r *run) update(c *content) (changed bool) {
	if c.Transient == nil || c.Transient.DisplayID == "" {
		return false
	}
	for _, p := range r.state.Displays[c.Transient.DisplayID] {
		if p.Cell >= len(r.doc.cells) || r.doc.cells[p.Cell].outputs == nil ||
			p.Output >= len(r.doc.cells[p.Cell].outputs.list) {
			continue
		}
		o := r.doc.cells[p.Cell].outputs
		out := o.list[p.Output]
		if out.other == nil {
			continue
		}
		before := out.size()
		if r.size+int64(len(c.Data)+len(c.Metadata))-before > r.limit {
			continue // the earlier picture stays
		}
		out.other.set("data", bundle(c.Data))
		out.other.set("metadata", objectOr(c.Metadata))
		o.size += out.size() - before
		r.size += out.size() - before
		changed = true
	}
	return changed
}

func (r *run) addError(at int, c *content) {
	size := len(c.Ename) + len(c.Evalue)
	for _, line := range c.Traceback {
		size += len(line)
	}
	traceback := c.Traceback
	if traceback == nil || size > errorRoom/2 {
		traceback = []string{}
	}
	if r.room(at, int64(min(size, errorRoom/2)), true) {
		r.put(at, func(o *outputs) {
			o.add(newObject(map[string]any{"output_type": "error", "ename": c.Ename, "evalue": short(c.Evalue),
				"traceback": traceback}))
		})
	}
}

// short bounds a text that a sentence or an error shows.
func short(s string) string {
	const most = 64 << 10
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// noteWidget keeps the state of widgets, which front ends need to show them.
func (r *run) noteWidget(c *content, buffers [][]byte) {
	var data struct {
		State       map[string]json.RawMessage `json:"state"`
		BufferPaths []json.RawMessage          `json:"buffer_paths"`
	}
	if json.Unmarshal(c.Data, &data) != nil || data.State == nil || c.CommID == "" {
		return
	}
	var more []widgetBuffer
	for i, path := range data.BufferPaths[:min(len(data.BufferPaths), len(buffers))] {
		more = append(more, widgetBuffer{base64.StdEncoding.EncodeToString(buffers[i]), "base64", path})
	}
	w := r.state.Widgets[c.CommID]
	size := int64(0) // that the change adds: a progress bar changes for hours and stays small
	if w == nil {
		w = &widget{State: map[string]json.RawMessage{}}
		size = int64(outputCost + len(c.CommID))
	}
	for name, value := range data.State {
		if old, there := w.State[name]; there {
			size -= int64(len(name) + len(old))
		}
		size += int64(len(name) + len(value))
	}
	for _, b := range more {
		if at := w.buffer(b.Path); at >= 0 {
			size -= w.Buffers[at].size()
		}
		size += b.size()
	}
	if size > 0 && r.size+size > r.limit {
		return
	}
	r.size += size
	r.state.Widgets[c.CommID] = w
	maps.Copy(w.State, data.State)
	for _, b := range more {
		if at := w.buffer(b.Path); at >= 0 {
			w.Buffers[at] = b
		} else {
			w.Buffers = append(w.Buffers, b)
		}
	}
}

// size returns what the buffer counts as, in bytes.
func (b widgetBuffer) size() int64 { return int64(len(b.Data) + len(b.Path)) }

// buffer returns the index of the buffer of a path, or -1.
func (w *widget) buffer(path json.RawMessage) int {
	return slices.IndexFunc(w.Buffers, func(b widgetBuffer) bool { return string(b.Path) == string(path) })
}

// saveWidgets writes the widgets' states to the notebook, as nbclient does.
func (r *run) saveWidgets() {
	if len(r.state.Widgets) == 0 {
		return
	}
	models := map[string]any{}
	for id, w := range r.state.Widgets {
		if w.State["_model_name"] == nil {
			continue
		}
		model := map[string]any{"model_name": w.State["_model_name"], "model_module": orNil(w.State["_model_module"]),
			"model_module_version": orNil(w.State["_model_module_version"]), "state": w.State}
		if len(w.Buffers) > 0 {
			model["buffers"] = w.Buffers
		}
		models[id] = model
	}
	r.doc.meta.set("widgets", map[string]any{"application/vnd.jupyter.widget-state+json": map[string]any{
		"state": models, "version_major": 2, "version_minor": 0}})
}
