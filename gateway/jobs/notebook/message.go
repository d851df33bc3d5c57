package notebook

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// errorBytes is how much errors may take beyond the limit of outputs, since they say why a run failed.
const errorBytes = 1 << 20

// maxNamed bounds the displays and the comms that a State names. A display beyond it is shown and not updated. The
// state of a comm beyond it is not kept.
const maxNamed = 5000

// maxPlaces bounds the outputs that one display updates, since each display with the id updates all of them.
const maxPlaces = 500

// place is an output in the document: the indexes of its cell, and of the output among all of the cell.
type place struct {
	Cell   int `json:"cell"`
	Output int `json:"output"`
}

// content has the members of all messages on iopub that change a cell.
type content struct {
	Name           string          `json:"name"`
	Text           string          `json:"text"`
	Data           json.RawMessage `json:"-"` // these three are parts of the message, and no copies
	Metadata       json.RawMessage `json:"-"`
	ExecutionCount json.RawMessage `json:"execution_count"`
	Transient      *struct {
		DisplayID string `json:"display_id"`
	} `json:"transient"`
	Wait           bool            `json:"wait"`
	Ename          string          `json:"ename"`
	Evalue         string          `json:"evalue"`
	Traceback      json.RawMessage `json:"-"`
	CommID         string          `json:"comm_id"`
	Status         string          `json:"status"`          // of replies
	ExecutionState string          `json:"execution_state"` // of status
}

const nanLine = notice.Prefix + notice.NaNLine + "\n"

// apply changes the cell as a front end shows the message. It reports whether it changed anything.
func (r *run) apply(ctx context.Context, at int, msgType string, m *jupyter.Message) (changed bool, err error) {
	switch msgType {
	case "update_display_data", "comm_open", "comm_msg", "execute_input", "stream", "execute_result", "display_data",
		"error", "clear_output":
	default:
		return false, nil
	}
	c, ok, why := judge(m)
	if why != "" {
		if err := r.tail(ctx, at); err != nil {
			return false, err
		}
		r.leftOut(at, msgType, why)
	}
	if !ok {
		return why != "", nil
	}
	switch msgType {
	case "update_display_data":
		return r.update(ctx, &c)
	case "comm_open", "comm_msg":
		return true, r.noteWidget(ctx, &c, m.Buffers)
	}
	if msgType == "stream" && c.Text == nanLine {
		return false, nil // it is for browsers
	}
	if w := r.taker(at); w != nil && msgType != "execute_input" {
		return true, r.take(ctx, w, msgType, &c)
	}
	if err := r.tail(ctx, at); err != nil {
		return false, err
	}
	cell := r.doc.cells[at]
	switch msgType {
	case "execute_input":
		cell.time("iopub.execute_input", m)
		cell.setCount(c.ExecutionCount)
	case "stream":
		r.addText(at, c.Name, c.Text)
	case "execute_result", "display_data":
		return true, r.display(ctx, at, &c, c.displayOutput(msgType))
	case "error":
		r.addError(at, &c)
	case "clear_output":
		if cell.clear = c.Wait; !c.Wait {
			r.clear(at)
		}
	}
	return true, nil
}

func orNil(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	return raw
}

func (c *cell) setCount(count json.RawMessage) {
	if len(count) > 0 {
		c.count = count
	}
}

func (r *run) clear(at int) {
	c := r.doc.cells[at]
	for _, p := range c.parts {
		r.size -= p.Size
	}
	c.parts, c.clear, c.full = nil, false, false
	delete(r.state.Raised, at)
	for id, places := range r.state.Displays {
		places = slices.DeleteFunc(places, func(p place) bool { return p.Cell == at })
		if r.state.Displays[id] = places; len(places) == 0 {
			delete(r.state.Displays, id)
		}
	}
}

// fits reports whether an output is within the limit. It does what a clear_output has asked for before.
func (r *run) fits(at int, size int64, isError bool) bool {
	c := r.doc.cells[at]
	if c.clear {
		r.clear(at)
	}
	limit := r.limit
	if isError {
		limit += errorBytes
	}
	if (c.full && !isError) || r.size+size > limit {
		if !c.full {
			c.full = true
			r.put(at, r.overLimit("cell"))
		}
		return false
	}
	return true
}

func (r *run) addText(at int, name, text string) {
	if r.fits(at, int64(outputCost+len(name)+len(text)), false) {
		r.put(at, &output{stream: name, text: []byte(text)})
	}
}

// displayOutput returns a display, or an execute_result, as files have it.
func (c *content) displayOutput(msgType string) *object {
	out := newObject(map[string]any{"output_type": msgType, "data": bundle(c.Data), "metadata": objectOr(c.Metadata)})
	if msgType == "execute_result" {
		out.set("execution_count", orNil(c.ExecutionCount))
	}
	return out
}

func (r *run) display(ctx context.Context, at int, c *content, out *object) error {
	if _, err := r.update(ctx, c); err != nil {
		return err
	}
	id := ""
	if c.Transient != nil {
		id = c.Transient.DisplayID
	}
	if !r.fits(at, int64(outputCost+len(id)+len(c.Data)+len(c.Metadata)), false) {
		return nil
	}
	if n := len(r.state.Displays[id]); n == 0 && len(r.state.Displays) >= maxNamed || n >= maxPlaces {
		id = ""
	}
	if id != "" {
		index := 0
		for _, p := range r.doc.cells[at].parts {
			index += p.Outputs
		}
		r.size += int64(len(id))
		r.state.Displays[id] = append(r.state.Displays[id], place{at, index})
	}
	r.put(at, &output{other: out})
	return nil
}

// update changes all outputs that show the display.
func (r *run) update(ctx context.Context, c *content) (changed bool, err error) {
	if c.Transient == nil || c.Transient.DisplayID == "" {
		return false, nil
	}
	places := r.state.Displays[c.Transient.DisplayID]
	if len(places) == 0 {
		return false, nil
	}
	var data, metadata any = bundle(c.Data), objectOr(c.Metadata) // all places share them
	for _, at := range places {
		p, index := r.partOf(at)
		if p == nil {
			continue
		}
		if err := r.open(ctx, at.Cell, p); err != nil {
			return changed, err
		}
		if index >= len(p.list) || p.list[index].other == nil {
			continue
		}
		out := p.list[index]
		before := out.size()
		if r.size+int64(len(c.Data)+len(c.Metadata))-before > r.limit {
			continue // the earlier picture stays
		}
		out.other.set("data", data)
		out.other.set("metadata", metadata)
		p.Size += out.size() - before
		r.size += out.size() - before
		changed = true
	}
	return changed, nil
}

// partOf returns the part that has an output, and the output's index in it.
func (r *run) partOf(at place) (p *part, index int) {
	if at.Cell >= len(r.doc.cells) {
		return nil, 0
	}
	index = at.Output
	for _, p := range r.doc.cells[at.Cell].parts {
		if index < p.Outputs {
			return p, index
		}
		index -= p.Outputs
	}
	return nil, 0
}

func (r *run) addError(at int, c *content) {
	out := &output{other: c.errorOutput()}
	if r.fits(at, min(out.size(), errorBytes/2), true) {
		r.put(at, out)
	}
	r.noteRaised(at, c)
}

// errorOutput returns an error as files have it, without a traceback that is too long.
func (c *content) errorOutput() *object {
	traceback := []string{}
	if len(c.Ename)+len(c.Evalue)+len(c.Traceback) > errorBytes/2 || json.Unmarshal(c.Traceback, &traceback) != nil ||
		traceback == nil {
		traceback = []string{}
	}
	return newObject(map[string]any{"output_type": "error", "ename": c.Ename, "evalue": c.Evalue,
		"traceback": traceback})
}
