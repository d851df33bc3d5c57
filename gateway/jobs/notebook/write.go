package notebook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// skeleton returns the notebook without what parts have.
func (d *Document) skeleton() []byte {
	top := &object{keys: slices.Clone(d.top.keys), values: maps.Clone(d.top.values)}
	if _, has := top.values["metadata"]; has || len(d.meta.keys) > 0 {
		top.set("metadata", d.meta)
	}
	b := append(make([]byte, 0, d.cost()), '{')
	for i, name := range top.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, encode(name)...), ':')
		if name != "cells" {
			b = append(b, top.values[name]...)
			continue
		}
		b = append(b, '[')
		for i, c := range d.cells {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, c.raw...)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// Write writes the notebook of a state as Jupyter writes it: with one space for each level, and a newline at the end.
// It holds one cell at a time. If a piece cannot be read, it calls newer with the error. That returns a later state, or
// an error, which ends the writing.
func Write(
	ctx context.Context, to io.Writer, s State, pieces Pieces, newer func(context.Context, error) (State, error),
) error {
	skeleton, err := pieces.Get(ctx, s.Skeleton)
	for ; err != nil; skeleton, err = pieces.Get(ctx, s.Skeleton) {
		if s, err = newer(ctx, err); err != nil {
			return err
		}
	}
	d, err := Read(skeleton)
	if err != nil {
		return err
	}
	w := &assembly{to: bufio.NewWriterSize(to, 64<<10), d: d, s: s, pieces: &lastRead{Pieces: pieces}, newer: newer}
	if err := w.take(ctx, s); err != nil {
		return err
	}
	if err := w.object(ctx, d.top, "", map[string]func(context.Context) error{
		"cells": w.cells, "metadata": w.metadata}); err != nil {
		return err
	}
	if err := w.text("\n"); err != nil {
		return err
	}
	return w.to.Flush()
}

// assembly is a notebook that is being written.
type assembly struct {
	to     *bufio.Writer
	d      *Document
	s      State
	pieces Pieces
	newer  func(context.Context, error) (State, error)
	buf    bytes.Buffer
}

func (w *assembly) text(s string) error {
	_, err := w.to.WriteString(s)
	return err
}

// value writes a value whose lines but the first begin with an indentation.
func (w *assembly) value(raw []byte, indent string) error {
	w.buf.Reset()
	if err := json.Indent(&w.buf, raw, indent, " "); err != nil {
		return fmt.Errorf("notebook: a piece is no valid JSON: %w", err)
	}
	_, err := w.to.Write(jupyter.ShowNaN(w.buf.Bytes()))
	return err
}

// object writes an object. Some of its members are written by functions.
func (w *assembly) object(
	ctx context.Context, o *object, indent string, special map[string]func(context.Context) error,
) error {
	if len(o.keys) == 0 {
		return w.text("{}")
	}
	for i, name := range o.keys {
		begin := ",\n"
		if i == 0 {
			begin = "{\n"
		}
		err := w.text(begin + indent + " " + string(encode(name)) + ": ")
		if write := special[name]; err == nil && write != nil {
			err = write(ctx)
		} else if err == nil {
			err = w.value(o.values[name], indent+" ")
		}
		if err != nil {
			return err
		}
	}
	return w.text("\n" + indent + "}")
}

// cells writes the list of cells.
func (w *assembly) cells(ctx context.Context) error {
	first := true
	cell := func(raw []byte) error {
		begin := ",\n  "
		if first {
			begin, first = "[\n  ", false
		}
		if err := w.text(begin); err != nil {
			return err
		}
		return w.value(raw, "  ")
	}
	mark, ended := w.s.Mark, w.d.meta.child("papermill").text("start_time")
	if mark != nil {
		if err := cell(mark.top().raw); err != nil {
			return err
		}
	}
	for i, c := range w.d.cells {
		if mark != nil && i == mark.Cell {
			if err := cell(mark.above().raw); err != nil {
				return err
			}
		}
		o := c.object()
		if err := w.fill(ctx, i, o); err != nil {
			return err
		}
		if end := c.metadata().child("papermill").text("end_time"); end != "" {
			ended = end
		} else if i >= w.s.From && i < w.s.Cell && !c.runs { // the run has passed it
			c.pass(ended)
			o.set("metadata", c.meta)
		}
		if err := cell(o.append(nil)); err != nil {
			return err
		}
		w.d.cells[i] = nil
	}
	if first {
		return w.text("[]")
	}
	return w.text("\n ]")
}

// fill gives the object of a cell its outputs, its count and its metadata.
func (w *assembly) fill(ctx context.Context, at int, o *object) error {
	for {
		err := w.tryFill(ctx, at, o)
		if err == nil {
			return nil
		}
		now, err := w.newer(ctx, err)
		if err != nil {
			return err
		}
		if err := w.take(ctx, now); err != nil {
			return err
		}
	}
}

// take takes the cells and the widgets of a state, or of a newer one if a shelf has gone.
func (w *assembly) take(ctx context.Context, s State) error {
	cells, err := s.cells(ctx, w.pieces)
	for err != nil {
		if s, err = w.newer(ctx, err); err != nil {
			return err
		}
		cells, err = s.cells(ctx, w.pieces)
	}
	w.s.Cells, w.s.Widgets = cells, s.Widgets
	return nil
}

func (w *assembly) tryFill(ctx context.Context, at int, o *object) error {
	c := w.d.cells[at]
	var outputs []*output
	for i, p := range w.s.Cells[at] {
		content, err := readPart(ctx, w.pieces, p)
		if err != nil {
			return err
		}
		for _, out := range parseOutputs(content.Outputs) {
			outputs = appendOutput(outputs, out)
		}
		if i < len(w.s.Cells[at])-1 {
			continue
		}
		if err := c.adopt(content); err != nil {
			return err
		}
		o.set("outputs", encodeOutputs(outputs))
		if len(content.Metadata) > 0 {
			o.set("metadata", content.Metadata)
		}
		if len(content.Count) > 0 {
			o.set("execution_count", content.Count)
		}
	}
	return nil
}

// The member of a notebook's metadata with the states of widgets, and its only member.
const (
	widgetsMember = "widgets"
	widgetsType   = "application/vnd.jupyter.widget-state+json"
)

// metadata writes the notebook's metadata, with the states of widgets as nbclient stores them.
func (w *assembly) metadata(ctx context.Context) error {
	if len(w.s.Widgets) == 0 {
		return w.object(ctx, w.d.meta, " ", nil)
	}
	w.d.meta.set(widgetsMember, nil)
	return w.object(ctx, w.d.meta, " ", map[string]func(context.Context) error{widgetsMember: w.widgets})
}

func (w *assembly) widgets(ctx context.Context) error {
	states := newObject(map[string]any{"state": nil, "version_major": 2, "version_minor": 0})
	of := newObject(map[string]any{widgetsType: nil})
	return w.object(ctx, of, "  ", map[string]func(context.Context) error{widgetsType: func(ctx context.Context) error {
		return w.object(ctx, states, "   ", map[string]func(context.Context) error{"state": w.models})
	}})
}

// models writes the states of the widgets, one at a time.
func (w *assembly) models(ctx context.Context) error {
	first := true
	for _, id := range slices.Sorted(maps.Keys(w.s.Widgets)) {
		model, err := w.model(ctx, w.s.Widgets[id])
		for err != nil {
			var now State
			if now, err = w.newer(ctx, err); err != nil {
				return err
			}
			if now.Widgets[id] == nil {
				break
			}
			w.s.Widgets = now.Widgets
			model, err = w.model(ctx, w.s.Widgets[id])
		}
		if model == nil || model.State["_model_name"] == nil {
			continue
		}
		begin := ",\n"
		if first {
			begin, first = "{\n", false
		}
		if err := w.text(begin + "     " + string(encode(id)) + ": "); err != nil {
			return err
		}
		if err := w.value(encode(model.shown()), "     "); err != nil {
			return err
		}
	}
	if first {
		return w.text("{}")
	}
	return w.text("\n    }")
}

// model reads the model of a widget, with all outputs that it has taken. It is nil if the piece has none.
func (w *assembly) model(ctx context.Context, of *widget) (*model, error) {
	raw, err := w.pieces.Get(ctx, of.Piece)
	if err != nil {
		return nil, err
	}
	m := parseModel(raw)
	if m == nil || m.taken == nil {
		return m, nil
	}
	outputs, err := (&widget{Parts: of.Parts, model: m}).outputs(ctx, w.pieces)
	m.taken = append([]*output{}, outputs...)
	return m, err
}
