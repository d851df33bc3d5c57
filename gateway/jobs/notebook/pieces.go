package notebook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Pieces keeps the pieces of one notebook. One goroutine calls its methods.
type Pieces interface {
	// Put stores a piece and returns its name. No other piece of the notebook has that name.
	Put(ctx context.Context, data []byte) (name string, err error)
	// Get returns a piece.
	Get(ctx context.Context, name string) ([]byte, error)
	// Remove removes pieces. One that cannot be removed is removed later, as all that no saved state names.
	Remove(ctx context.Context, names []string)
}

// part is some of a cell's outputs, in their order. With them it has what the run has noted of the cell by then. A cell
// with much output has several parts: one that is stored, and has reached partSize, gets no more outputs.
type part struct {
	// A State has one for each cell that has run, and is written often: the members are short.
	Piece   string `json:"p,omitempty"` // its name; "" while it is in memory
	Outputs int    `json:"n,omitempty"`
	Size    int64  `json:"s,omitempty"` // of the outputs
	// Inline is the last part of the cell that runs, in the place of a piece.
	Inline json.RawMessage `json:"inline,omitempty"`

	list  []*output // while it is in memory
	shelf string    // the name in the piece, which is a shelf; "" for other pieces
}

const (
	// partSize is how much output of the cell that runs is a part of the State. The State is written with each save.
	partSize = 32 << 10
	// maxPart is the size from which on a part in memory gets no more outputs. JSON makes of it a few times as much,
	// which one record can have.
	maxPart = 1 << 20
)

// partContent is the form of a part in a piece, and of Inline. A cell has the count and the metadata of its last part.
type partContent struct {
	Count    json.RawMessage // execution_count
	Metadata json.RawMessage
	Outputs  json.RawMessage
}

// content returns a part of the cell that is in memory.
func (c *cell) content(p *part) json.RawMessage {
	b := p.room()
	if len(c.count) > 0 {
		b = append(append(append(b, `"execution_count":`...), c.count...), ',')
	}
	if meta := c.metadata(); !c.noMeta || len(meta.keys) > 0 {
		b = append(meta.append(append(b, `"metadata":`...)), ',')
	}
	return p.append(b)
}

// room returns the beginning of the part's content, with room for the rest in most cases.
func (p *part) room() []byte { return append(make([]byte, 0, p.Size+p.Size/8+1<<10), '{') }

// append appends the end of the part's content.
func (p *part) append(b []byte) []byte {
	return append(appendOutputs(append(b, `"outputs":`...), p.list), '}')
}

// put adds an output.
func (p *part) put(out *output) {
	before := int64(0)
	if n := len(p.list); n > 0 {
		before = p.list[n-1].size()
	}
	n := len(p.list)
	if p.list = appendOutput(p.list, out); len(p.list) > n {
		before = 0
	}
	p.Outputs = len(p.list)
	p.Size += p.list[p.Outputs-1].size() - before
}

// adopt takes the count and the metadata of the cell's last part.
func (c *cell) adopt(content partContent) error {
	if c.known = true; len(content.Metadata) > 0 {
		meta, err := parseObject(content.Metadata)
		if err != nil {
			return fmt.Errorf("notebook: the metadata of a part: %w", err)
		}
		c.meta = meta
	}
	c.count = bytes.Clone(content.Count)
	return nil
}

// readPart reads a part that is stored.
func readPart(ctx context.Context, pieces Pieces, p *part) (content partContent, err error) {
	raw, err := p.raw(ctx, pieces)
	if err != nil {
		return content, err
	}
	all, err := viewObject(raw)
	if err != nil {
		return content, fmt.Errorf("notebook: part %s: %w", p.Piece, err)
	}
	return partContent{Count: all.values["execution_count"], Metadata: all.values["metadata"],
		Outputs: all.values["outputs"]}, nil
}

// open reads a part of a cell into memory, so that it can be changed.
func (r *run) open(ctx context.Context, at int, p *part) error {
	r.dirty[at] = true
	if p.Piece == "" && p.Inline == nil {
		return nil
	}
	content, err := readPart(ctx, r.Pieces, p)
	if err != nil {
		return err
	}
	r.fresh += p.Size
	p.list, p.Piece, p.Inline, p.shelf = parseOutputs(content.Outputs), "", nil, ""
	if c := r.doc.cells[at]; !c.known && p == c.parts[len(c.parts)-1] {
		return c.adopt(content)
	}
	return nil
}

// tail makes the last part of a cell ready for a change. A stored one that is large is followed by another one.
func (r *run) tail(ctx context.Context, at int) error {
	r.dirty[at] = true
	c := r.doc.cells[at]
	if n := len(c.parts); n > 0 {
		last := c.parts[n-1]
		if last.Piece == "" || last.Size < partSize {
			return r.open(ctx, at, last)
		}
		if !c.known {
			content, err := readPart(ctx, r.Pieces, last)
			if err == nil {
				err = c.adopt(content)
			}
			if err != nil {
				return err
			}
		}
	}
	c.parts = append(c.parts, &part{})
	return nil
}

// put adds an output to a cell whose tail is ready, and counts its size.
func (r *run) put(at int, out *output) {
	parts, more := appendPart(r.doc.cells[at].parts, out)
	r.doc.cells[at].parts = parts
	r.size += more
}

// appendPart adds an output to the last part, which is in memory, and returns by how much it is more. Text that is
// longer than a part is divided.
func appendPart(parts []*part, out *output) (all []*part, more int64) {
	if rest := out.text; len(rest) > maxPart {
		cut := maxPart
		for !utf8.RuneStart(rest[cut]) { // text from JSON is valid UTF-8
			cut--
		}
		parts, more = appendPart(parts, &output{stream: out.stream, text: rest[:cut:cut]})
		all, then := appendPart(parts, &output{stream: out.stream, text: rest[cut:]})
		return all, more + then
	}
	// None is there after a clear.
	if n := len(parts); n == 0 || parts[n-1].Size >= maxPart {
		parts = append(parts, &part{})
	}
	last := parts[len(parts)-1]
	before := last.Size
	last.put(out)
	return parts, last.Size - before
}

// begin takes a document that no run has stored. Cells that keep their outputs get them as a part.
func (r *run) begin() {
	r.doc = r.Document
	r.doc.changed = true
	r.state = State{From: r.doc.from, Cell: r.doc.from, Restart: r.doc.restart, Cells: map[int][]*part{}}
	for i, c := range r.doc.cells {
		if c.known = true; !c.isCode {
			continue
		}
		o := c.object()
		outputs := parseOutputs(o.values["outputs"])
		for _, out := range outputs {
			r.put(i, out)
			r.dirty[i] = true
		}
		if len(outputs) > 0 {
			o.set("outputs", []any{})
			c.raw = bytes.Clone(o.append(nil))
		}
	}
}

// resume takes the document of the state that was stored. Parts are read when they change.
func (r *run) resume(ctx context.Context) error {
	if r.doc = r.Document; r.doc == nil {
		doc, err := r.state.Document(ctx, r.Pieces)
		if err != nil {
			return err
		}
		r.doc = doc
	}
	cells, err := r.state.cells(ctx, r.Pieces)
	if err != nil {
		return err
	}
	if r.Again {
		r.state = r.doc.again(r.state, cells)
	}
	r.state.Cells = maps.Clone(r.state.Cells) // Resume stays as it is
	if r.state.Cells == nil {
		r.state.Cells = map[int][]*part{}
	}
	for i, c := range r.doc.cells {
		c.parts = cells[i]
		c.known = len(c.parts) == 0
		for _, p := range c.parts {
			r.size += p.Size
		}
	}
	for _, w := range r.state.Widgets {
		r.size += w.Size
	}
	if r.state.Running {
		c := r.doc.cells[r.state.Cell]
		c.clear, c.full = r.state.Clear, r.state.Full
		return r.tail(ctx, r.state.Cell)
	}
	return nil
}

// Document reads the notebook of a run that goes on.
func (s *State) Document(ctx context.Context, pieces Pieces) (*Document, error) {
	skeleton, err := pieces.Get(ctx, s.Skeleton)
	if err != nil {
		return nil, err
	}
	return Read(skeleton)
}

// store stores what has changed as pieces, and notes their names in the state.
func (r *run) store(ctx context.Context) (err error) {
	if r.doc.changed {
		if r.state.Skeleton, err = r.keep(ctx, r.doc.skeleton()); err != nil {
			return err
		}
		r.doc.changed = false
	}
	runs := -1 // the cell whose last part is in the state
	if r.state.Running && r.state.Result == nil {
		runs = r.state.Cell
		r.dirty[runs] = true
	}
	for _, at := range slices.Sorted(maps.Keys(r.dirty)) {
		c := r.doc.cells[at]
		if len(c.parts) == 0 {
			c.parts = []*part{{}} // for the metadata
		}
		for i, p := range c.parts {
			if p.Piece != "" {
				continue
			}
			content := c.content(p)
			if at == runs && i == len(c.parts)-1 && p.Size < partSize {
				p.Inline = content
				continue
			}
			if p.Piece, err = r.keep(ctx, content); err != nil {
				return err
			}
			p.list, p.Inline = nil, nil
		}
		if at != runs {
			c.known, c.meta, c.count = false, nil, nil // the last part has them
		}
		r.state.Cells[at] = c.parts
	}
	clear(r.dirty)
	if err := r.shelve(ctx); err != nil {
		return err
	}
	kept := int64(0) // of models in memory
	for _, id := range slices.Sorted(maps.Keys(r.state.Widgets)) {
		w := r.state.Widgets[id]
		for _, p := range w.Parts {
			if p.Piece != "" {
				continue
			}
			if p.Piece, err = r.keep(ctx, p.append(p.room())); err != nil {
				return err
			}
			p.list = nil
		}
		if w.Piece == "" {
			if w.Piece, err = r.keep(ctx, w.model.stored()); err != nil {
				return err
			}
		}
		if kept += w.Size; w.Size >= partSize || kept > maxPart {
			w.model = nil
		}
	}
	r.release()
	return nil
}

// keep stores a piece.
func (r *run) keep(ctx context.Context, data []byte) (name string, err error) {
	if name, err = r.Pieces.Put(ctx, data); err == nil {
		r.news = append(r.news, name)
		r.stored += int64(len(data))
	}
	return name, err
}

// Names returns the names of the pieces that the state names.
func (s *State) Names() (names []string) {
	if s.Skeleton != "" {
		names = append(names, s.Skeleton)
	}
	names = append(names, s.Shelves...)
	for _, parts := range s.Cells {
		for _, p := range parts {
			if p.Piece != "" {
				names = append(names, p.Piece)
			}
		}
	}
	for _, w := range s.Widgets {
		names = append(names, w.Piece)
		for _, p := range w.Parts {
			names = append(names, p.Piece)
		}
	}
	return names
}
