package notebook

import (
	"encoding/json"
	"slices"
	"testing"
)

// TestRun_Again: the kernel is lost while a cell runs. The next run begins with the cell of the plan. The cells with
// parameters run again, and the others before it keep their outputs.
func TestRun_Again(t *testing.T) {
	const cells = `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[
{"cell_type":"code","id":"1","metadata":{"tags":["parameters"]},"source":"x = 1","execution_count":null,"outputs":[]},
{"cell_type":"markdown","id":"m","metadata":{},"source":"text"},
{"cell_type":"code","id":"b","metadata":{},"source":"b","execution_count":null,"outputs":[]},
{"cell_type":"code","id":"c","metadata":{},"source":"c","execution_count":null,"outputs":[]},
{"cell_type":"code","id":"d","metadata":{},"source":"d","execution_count":null,"outputs":[]}]}`
	prints := func(text string) func(*kernelCell) {
		return func(k *kernelCell) { k.print("stdout", text+"\n"); k.end("", "") }
	}
	dies := func(k *kernelCell) { k.print("stdout", "lost\n"); k.end(kernelDied, "it was killed") }
	for _, restart := range []string{"c", "4"} {
		d := document(t, cells)
		x := []Parameter{{"x", json.RawMessage("5")}}
		if err := d.Prepare(Plan{Language: "python", Parameters: x, Restart: restart}); err != nil {
			t.Fatal(err)
		}
		s := &script{cells: map[string]func(*kernelCell){"b": prints("first"), "c": prints("first"), "d": dies}}
		res, last := do(t, s, d, nil)
		state := last.resumed(t)
		if !res.Lost || !state.Reached {
			t.Fatalf("the kernel is lost: %+v, %+v", res, state)
		}

		second := &script{cells: map[string]func(*kernelCell){"c": prints("second"), "d": prints("second")}}
		res, last = do(t, second, nil, func(r *Run) {
			r.Resume, r.Again, r.ID, r.Pieces = state, true, "job-2", last.pieces
		})
		ran := second.seen[1:] // behind the question for the language
		if res.Status != Completed || !slices.Equal(ran, []string{"job-2-0", "job-2-1", "job-2-4", "job-2-5"}) {
			t.Errorf("again: %+v, ran %v", res, ran)
		}
		if last.progress != (Progress{Cell: 5, Cells: 5}) {
			t.Errorf("it is as far as %+v", last.progress)
		}
		for at, want := range map[int]string{3: `stdout "first\n"`, 4: `stdout "second\n"`, 5: `stdout "second\n"`} {
			if got := outputsOf(t, last, at); got != want {
				t.Errorf("cell %d has the outputs %s, want %s", at+1, got, want)
			}
		}
		if exception := document(t, string(last.document)).meta.child("papermill").values["exception"]; string(exception) !=
			"null" {
			t.Errorf("the notebook still has the exception %s", exception)
		}
	}
}

// TestRun_AgainUnreached: a kernel that is lost before the cell of the plan has not reached it.
func TestRun_AgainUnreached(t *testing.T) {
	d := notebookOf(t, "a", "b", "c")
	if err := d.Prepare(Plan{Restart: "3"}); err != nil {
		t.Fatal(err)
	}
	s := &script{cells: map[string]func(*kernelCell){"b": func(k *kernelCell) { k.end(kernelDied, "") }}}
	res, last := do(t, s, d, nil)
	if state := last.resumed(t); !res.Lost || state.Reached {
		t.Errorf("%+v, %+v", res, state)
	}
}

// TestPlace_NumbersAsIDs: an id wins over the number that is written as it.
func TestPlace_NumbersAsIDs(t *testing.T) {
	const cells = `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[
{"cell_type":"code","id":"2","metadata":{},"source":"a","execution_count":null,"outputs":[]},
{"cell_type":"code","id":"1","metadata":{},"source":"b","execution_count":null,"outputs":[]},
{"cell_type":"code","id":"c","metadata":{},"source":"c","execution_count":null,"outputs":[]}]}`
	for from, want := range map[string]int{"1": 2, "2": 1, "3": 3, "c": 3} {
		d := document(t, cells)
		if err := d.Prepare(Plan{From: from}); err != nil || d.From() != want {
			t.Errorf("from %s: cell %d, %v; want %d", from, d.From(), err, want)
		}
	}
}
