// Package notebook runs a notebook on a kernel, without a front end. Package jobs calls it. Read parses a notebook of
// format 4 into a Document, whose Prepare injects the parameters. Run.Do sends the cells to the kernel, and puts the
// kernel's messages into their outputs. The result follows papermill and nbclient. Begin with Run in run.go.
//
// A run can be left at any moment, and another gateway can go on with it. What it stores has two forms:
//
//   - Pieces. The skeleton is the notebook, and its cells are as they were before they ran, without outputs. A part has
//     outputs of one cell, with the cell's count and metadata: most finished cells have one part. Small parts of many
//     finished cells become one piece, a shelf. So a State is short; see shelf.go. The state of a widget's comm is a
//     piece, too. A piece is never changed: what changes gets a new piece. See pieces.go.
//   - State, the record of the run. It names the pieces, and has the newest output of the cell that runs.
//
// All pieces that a State names are stored before it. Write assembles the notebook of a State, one cell at a time. A
// Run holds in memory what has changed since the last State.
//
// The package keeps nothing on disk, and knows neither launchers nor jobs. A Relay, the connection to the kernel, has
// one goroutine, which its Close waits for. Do has one while it waits for a message.
//
// Formats: https://nbformat.readthedocs.io/en/latest/format_description.html and
// https://papermill.readthedocs.io/en/latest/usage-parameterize.html.
package notebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// InvalidError is a notebook, or a parameter, that cannot be run. Its text is a sentence for users.
type InvalidError struct{ text string }

// Error returns the sentence.
func (e *InvalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &InvalidError{fmt.Sprintf(format, args...)} }

// Document is a notebook of format 4. Members that the package does not know are kept, in their order and spelling. It
// keeps each cell as its text, and takes it apart when it is used: see cost. It is not for concurrent use.
type Document struct {
	top   *object // without its cells and its metadata
	meta  *object
	cells []*cell
	minor int

	changed bool // beside what the parts of cells have, since the skeleton was stored

	// After Prepare.
	from    int // index of the cell with which a run begins
	restart int // index of the cell that Plan.Restart names
}

// Read reads a notebook. The error is an *InvalidError. The caller bounds the size of data.
func Read(data []byte) (*Document, error) {
	data = jupyter.HideNaN(data)
	if err := check(data); err != nil {
		return nil, err
	}
	top, err := viewObject(data)
	if err != nil {
		return nil, invalid("this is not a notebook: %v", err)
	}
	d := &Document{top: &object{keys: top.keys, values: map[string]json.RawMessage{}}}
	for name, value := range top.values {
		switch name {
		case "cells":
			value = json.RawMessage("[]")
		case "metadata":
			value = json.RawMessage("{}")
		}
		d.top.values[name] = bytes.Clone(value)
	}
	var major int
	if json.Unmarshal(top.values["nbformat"], &major) != nil {
		return nil, invalid("this is not a notebook: it has no nbformat")
	}
	if major != 4 {
		return nil, invalid("the notebook has format %d, and only format 4 is supported: open it in JupyterLab and save it",
			major)
	}
	if raw, has := top.values["nbformat_minor"]; has && json.Unmarshal(raw, &d.minor) != nil {
		return nil, invalid("the notebook's nbformat_minor is not a number")
	}
	if raw, has := top.values["metadata"]; has {
		if d.meta, err = parseObject(raw); err != nil {
			return nil, invalid("the notebook's metadata: %v", err)
		}
	} else {
		d.meta = newObject(nil)
	}
	if !isList(top.values["cells"]) {
		return nil, invalid("the notebook has no list of cells")
	}
	cells, err := viewList(top.values["cells"])
	if err != nil {
		return nil, invalid("the notebook's cells: %v", err)
	}
	d.cells = make([]*cell, 0, len(cells))
	for i, raw := range cells {
		c, err := parseCell(raw)
		if err != nil {
			return nil, invalid("cell %d of the notebook: %v", i+1, err)
		}
		d.cells = append(d.cells, c)
	}
	return d, nil
}

// check rejects what no decoder should read.
func check(data []byte) error {
	if why := fault(data, maxDepth); why != "" {
		return invalid("this is not a notebook: %s", why)
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(data, new(json.RawMessage)); errors.As(err, &syntax) {
		return invalid("this is not a notebook: no valid JSON at byte %d: %v", syntax.Offset, syntax)
	}
	return nil
}

// KernelName returns the name of the notebook's kernelspec, "" if it names none.
func (d *Document) KernelName() string { return d.meta.child("kernelspec").text("name") }

// Language returns the name of the notebook's language, "" if it names none.
func (d *Document) Language() string {
	if name := d.meta.child("language_info").text("name"); name != "" {
		return name
	}
	return d.meta.child("kernelspec").text("language")
}

// Cells returns how many cells the notebook has.
func (d *Document) Cells() int { return len(d.cells) }

// Costs of a Document in memory, in bytes.
const (
	// cellCost is what a cell takes beside its text: its struct, and one part of its outputs.
	cellCost = 320
	// memberCost is what a member of an object takes beside its value, in the notebook's own metadata.
	memberCost = 160
)

// cost returns what the document takes in memory while it runs, in bytes: its text, and a little for each cell.
func (d *Document) cost() int64 {
	n := int64(len(d.cells)) * cellCost
	for _, c := range d.cells {
		n += int64(len(c.raw))
	}
	for _, o := range []*object{d.top, d.meta} {
		for name, value := range o.values {
			n += memberCost + int64(len(name)+len(value))
		}
	}
	return n
}

// cell is one cell. It is kept as its text.
type cell struct {
	raw    []byte // as it was before it ran; without outputs, when a run has begun
	isCode bool
	runs   bool  // it has code to run
	tags   uint8 // which of knownTags it has
	noMeta bool  // it had no metadata

	// What a run makes of the cell.
	meta  *object         // its metadata; nil: those of raw, or of the last part
	count json.RawMessage // execution_count; nil: that of raw
	parts []*part
	known bool // meta and count are newer than those of parts, or the same
	clear bool // clear the outputs before the next one
	full  bool // a notice says that outputs are left out
}

// parseCell reads a cell, which keeps raw.
func parseCell(raw []byte) (*cell, error) {
	o, err := viewObject(raw)
	if err != nil {
		return nil, err
	}
	kind := o.text("cell_type")
	if kind == "" {
		return nil, errors.New("it has no cell_type")
	}
	source, err := joined(o.values["source"])
	if err != nil {
		return nil, errors.New("its source is neither a text nor a list of texts")
	}
	meta, has := newObject(nil), false
	if _, has = o.values["metadata"]; has {
		if meta, err = viewObject(o.values["metadata"]); err != nil {
			return nil, fmt.Errorf("its metadata: %w", err)
		}
	}
	if rawOutputs, has := o.values["outputs"]; has && !isList(rawOutputs) {
		return nil, errors.New("its outputs are not a list")
	}
	c := &cell{raw: raw, isCode: kind == "code", noMeta: !has}
	for _, tag := range tagsOf(meta) {
		if i := slices.Index(knownTags, tag); i >= 0 {
			c.tags |= 1 << i
		}
	}
	c.runs = c.isCode && strings.TrimSpace(source) != "" && !c.tagged(tagSkip)
	return c, nil
}

// object takes the cell's text apart. The values are parts of it.
func (c *cell) object() *object {
	o, err := viewObject(c.raw)
	if err != nil {
		panic(fmt.Sprintf("notebook: a cell that was read before: %v", err))
	}
	return o
}

// metadata returns the cell's metadata, which a run changes. They are in memory until the cell is stored.
func (c *cell) metadata() *object {
	if c.meta == nil {
		c.meta = c.object().child("metadata")
	}
	return c.meta
}

// source returns the cell's text for the kernel.
func (c *cell) source() string {
	text, _ := joined(c.object().values["source"]) // parseCell has read it
	return text
}

// joined returns the text of a value that is a string or a list of strings. A missing one is empty.
func joined(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", nil
	}
	if isList(raw) {
		var lines []string
		err := json.Unmarshal(raw, &lines)
		return strings.Join(lines, ""), err
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return text, err
}

// split is the opposite of joined. Jupyter writes texts as lists of their lines, and ends lines where Python does.
func split(text string) []string {
	lines := []string{}
	for len(text) > 0 {
		end := endOfLine(text, 0)
		lines, text = append(lines, text[:end]), text[end:]
	}
	return lines
}

// endOfLine returns where the line ends that has the byte at an index.
func endOfLine(text string, at int) int {
	if at > 0 && text[at-1] == '\r' && text[at] == '\n' {
		return at + 1
	}
	for !utf8.RuneStart(text[at]) {
		at--
	}
	end := strings.IndexAny(text[at:], "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
	if end < 0 {
		return len(text)
	}
	end += at
	_, width := utf8.DecodeRuneInString(text[end:])
	end += width
	if text[end-1] == '\r' && end < len(text) && text[end] == '\n' {
		end++
	}
	return end
}

func newCell(kind, source, id string, tags ...string) *cell {
	o := newObject(map[string]any{"cell_type": kind, "source": split(source),
		"metadata": newObject(map[string]any{"tags": tags})})
	if id != "" {
		o.set("id", id)
	}
	if kind == "code" {
		o.set("execution_count", nil)
		o.set("outputs", []any{})
	}
	c, err := parseCell(o.append(nil))
	if err != nil {
		panic(fmt.Sprintf("notebook: a new cell: %v", err))
	}
	return c
}

func tagsOf(meta *object) (tags []string) {
	if json.Unmarshal(meta.values["tags"], &tags) != nil {
		return nil
	}
	return tags
}

// tagged reports whether the cell has one of knownTags.
func (c *cell) tagged(tag string) bool { return c.tags&(1<<slices.Index(knownTags, tag)) != 0 }

// From returns the number of the cell with which a run of the prepared notebook begins, from 1.
func (d *Document) From() int { return d.from + 1 }

// CodeCells returns how many cells have code that a run of the prepared notebook runs.
func (d *Document) CodeCells() (n int) {
	for _, c := range d.cells[d.from:] {
		if c.runs {
			n++
		}
	}
	return n
}
