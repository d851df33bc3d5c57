package notebook

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestRun_UpdateCost: an update of a display reads and encodes its data once, in however many places it is shown.
func TestRun_UpdateCost(t *testing.T) {
	allocations := func(places int) float64 {
		r := &run{Run: &Run{Pieces: &memory{}, Document: notebookOf(t, "show")}, dirty: map[int]bool{}, limit: 1 << 30}
		r.begin()
		r.state.Displays = map[string][]place{}
		c := &content{Data: json.RawMessage(`{"text/plain": "` + strings.Repeat(`line\n`, 20) + `"}`),
			Metadata: json.RawMessage("{}")}
		c.Transient = &struct {
			DisplayID string `json:"display_id"`
		}{"d"}
		for i := range places {
			r.put(0, &output{other: newObject(map[string]any{"output_type": "display_data", "data": c.Data, "metadata": nil})})
			r.state.Displays["d"] = append(r.state.Displays["d"], place{0, i})
		}
		return testing.AllocsPerRun(5, func() {
			if changed, err := r.update(t.Context(), c); err != nil || !changed {
				t.Error(changed, err)
			}
		})
	}
	if few, many := allocations(10), allocations(1000); many > few+10 {
		t.Errorf("an update of 10 places makes %v allocations, one of 1000 makes %v", few, many)
	}
}

// costOf runs a notebook of cells that print a line each. It returns how many bytes of states and of pieces are stored,
// and the last state.
func costOf(t testing.TB, cells int) (bytes int, last *stored) {
	s := &script{cells: map[string]func(*kernelCell){}}
	sources := make([]any, cells)
	for i := range sources {
		source := strconv.Itoa(i)
		sources[i] = map[string]any{"cell_type": "code", "metadata": struct{}{}, "source": source, "outputs": []any{},
			"execution_count": nil}
		s.cells[source] = func(k *kernelCell) {
			k.pub("display_data", map[string]any{"data": text(source), "metadata": struct{}{}})
			k.end("", "")
		}
	}
	d, err := Read(encode(map[string]any{"nbformat": 4, "nbformat_minor": 4, "metadata": struct{}{}, "cells": sources}))
	if err != nil {
		t.Fatal(err)
	}
	pieces := &memory{}
	last = &stored{pieces: pieces}
	r := &Run{Conn: s, Document: d, ID: "job-1", Pieces: pieces, SaveEvery: time.Hour}
	r.Save = func(_ context.Context, state *State, _ Progress) error {
		last.state = encode(state)
		bytes += len(last.state)
		return nil
	}
	if res, err := r.Do(t.Context()); err != nil || res.Status != Completed {
		t.Fatal(res, err)
	}
	return bytes + pieces.bytes, last
}

// TestRun_CellCost: a cell of a long notebook costs as much as one of a short notebook.
func TestRun_CellCost(t *testing.T) {
	few, _ := costOf(t, 150)
	many, last := costOf(t, 900)
	if few, many := few/150, many/900; many > few*5/4 {
		t.Errorf("a cell stores %d bytes in a notebook of 150 cells, and %d in one of 900", few, many)
	}
	if len(last.state) > 16<<10 {
		t.Errorf("the state has %d bytes", len(last.state))
	}
}

func BenchmarkRun_Cells(b *testing.B) {
	for _, cells := range []int{150, 300, 900, 1800} {
		b.Run(fmt.Sprint(cells), func(b *testing.B) {
			bytes := 0
			for b.Loop() {
				bytes, _ = costOf(b, cells)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*cells), "µs/cell")
			b.ReportMetric(float64(bytes/cells), "stored-B/cell")
		})
	}
}

// shapes are what a cell may send many times.
var shapes = map[string]func(k *kernelCell, i int){
	"lines":    func(k *kernelCell, i int) { k.print("stdout", strings.Repeat("x", 79)+"\n") },
	"streams":  func(k *kernelCell, i int) { k.print([]string{"stdout", "stderr"}[i%2], "x\n") },
	"displays": func(k *kernelCell, i int) { k.pub("display_data", displayOf(strconv.Itoa(i))) },
	"one id":   func(k *kernelCell, i int) { k.pub("display_data", displayOf("one")) },
	"updates": func(k *kernelCell, i int) {
		k.pub([]string{"display_data", "update_display_data"}[min(i, 1)], displayOf("one"))
	},
	"widgets":    func(k *kernelCell, i int) { k.pub("comm_open", commOf(strconv.Itoa(i))) },
	"one widget": func(k *kernelCell, i int) { k.pub([]string{"comm_open", "comm_msg"}[min(i, 1)], commOf("one")) },
}

func displayOf(id string) map[string]any {
	return map[string]any{"data": text("a display"), "metadata": struct{}{}, "transient": map[string]any{"display_id": id}}
}

func commOf(id string) map[string]any {
	return map[string]any{"comm_id": id, "data": map[string]any{"state": map[string]any{"_model_name": "M", "value": 1}}}
}

// outputCostOf runs a cell that sends n messages of a shape. It returns the bytes that were allocated and stored.
func outputCostOf(t testing.TB, shape string, n int) (allocated, stores int) {
	s := &script{cells: map[string]func(*kernelCell){"c": func(k *kernelCell) {
		for i := range n {
			shapes[shape](k, i)
		}
		k.end("", "")
	}}}
	d, err := Read([]byte(`{"nbformat":4,"nbformat_minor":4,"metadata":{},"cells":[{"cell_type":"code","metadata":{},
		"source":"c","outputs":[],"execution_count":null}]}`))
	if err != nil {
		t.Fatal(err)
	}
	pieces := &memory{}
	r := &Run{Conn: s, Document: d, ID: "job-1", Pieces: pieces, SaveEvery: time.Hour}
	r.Save = func(_ context.Context, state *State, _ Progress) error {
		stores += len(encode(state))
		return nil
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if res, err := r.Do(t.Context()); err != nil || res.Status != Completed {
		t.Fatal(res, err)
	}
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc), stores + pieces.bytes
}

// TestRun_OutputCost: four times as many messages allocate and store at most about four times as much.
func TestRun_OutputCost(t *testing.T) {
	for shape := range shapes {
		fewAllocated, fewStored := outputCostOf(t, shape, 500)
		allocated, stored := outputCostOf(t, shape, 2000)
		if allocated > 5*fewAllocated || stored > 5*fewStored {
			t.Errorf("%s: 500 allocate %d bytes and store %d, 2000 allocate %d and store %d", shape, fewAllocated, fewStored,
				allocated, stored)
		}
	}
}

// TestRun_Places: a display that is shown very often updates a bounded number of outputs. Others stay as they came.
func TestRun_Places(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"c": func(k *kernelCell) {
		for range maxPlaces + 10 {
			k.pub("display_data", displayOf("one"))
		}
		k.pub("update_display_data", map[string]any{"data": text("last"), "metadata": struct{}{},
			"transient": map[string]any{"display_id": "one"}})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "c"), func(r *Run) { r.SaveEvery = 0 })
	shown := outputsOf(t, last, 0)
	updated, stale := strings.Count(shown, "last"), strings.Count(shown, "adisplay")
	if updated != maxPlaces || stale != 10 {
		t.Errorf("%d outputs were updated, and %d were not", updated, stale)
	}
}

func BenchmarkRun_Outputs(b *testing.B) {
	for shape := range shapes {
		for _, n := range []int{500, 2000, 4000} {
			b.Run(fmt.Sprintf("%s/%d", shape, n), func(b *testing.B) {
				allocated, stored := 0, 0
				for b.Loop() {
					allocated, stored = outputCostOf(b, shape, n)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n)/1000, "µs/message")
				b.ReportMetric(float64(allocated/n), "allocated-B/message")
				b.ReportMetric(float64(stored/n), "stored-B/message")
			})
		}
	}
}
