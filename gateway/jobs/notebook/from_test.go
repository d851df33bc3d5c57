package notebook

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// threeCells is a notebook whose first cell was run, with the mark of an earlier failure in front.
const threeCells = `{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[
{"cell_type":"markdown","id":"m","metadata":{"tags":["papermill-error-cell-tag"]},"source":"failed"},
{"cell_type":"code","id":"a","metadata":{},"source":"a","execution_count":7,
 "outputs":[{"output_type":"stream","name":"stdout","text":"kept\n"}]},
{"cell_type":"code","id":"b","metadata":{},"source":"b","execution_count":1,
 "outputs":[{"output_type":"stream","name":"stdout","text":"old\n"}]},
{"cell_type":"code","id":"c","metadata":{},"source":"c","execution_count":null,"outputs":[]}]}`

// TestRun_From: a run in a kernel that has run the first cell leaves that cell as it is, also when it is carried on.
func TestRun_From(t *testing.T) {
	for _, from := range []string{"b", "3"} {
		d := document(t, threeCells)
		if err := d.Prepare(Plan{From: from}); err != nil {
			t.Fatal(err)
		}
		if d.From() != 2 || d.CodeCells() != 2 {
			t.Errorf("it begins with cell %d and has %d", d.From(), d.CodeCells())
		}
		s := &script{cells: map[string]func(*kernelCell){
			"b": func(k *kernelCell) { k.print("stdout", "new\n"); k.end("", "") },
			"c": func(k *kernelCell) { k.end("", "") },
		}}
		res, last := do(t, s, d, nil)
		if res.Status != Completed || last.progress != (Progress{Cell: 2, Cells: 2}) || len(s.seen) != 3 {
			t.Errorf("%+v, %+v, ran %v", res, last.progress, s.seen)
		}
		if a, b := outputsOf(t, last, 0), outputsOf(t, last, 1); a != `stdout "kept\n"` || b != `stdout "new\n"` {
			t.Errorf("the outputs are %s and %s", a, b)
		}
		if kept := document(t, string(last.document)).cells[0]; string(kept.object().values["execution_count"]) != "7" ||
			len(kept.metadata().keys) != 0 {
			t.Errorf("the first cell is %s", kept.raw)
		}
	}
	d := document(t, threeCells)
	if err := d.Prepare(Plan{From: "b"}); err != nil {
		t.Fatal(err)
	}
	fails := &script{cells: map[string]func(*kernelCell){"b": func(k *kernelCell) { k.end("Oops", "") }}}
	if res, last := do(t, fails, d, nil); res.Status != Failed || last.progress != (Progress{Cell: 1, Cells: 2}) {
		t.Errorf("a cell fails: %+v, %+v", res, last.progress)
	}
	for _, from := range []string{"0", "5", "-1", "z"} {
		if err := document(t, threeCells).Prepare(Plan{From: from}); err == nil ||
			!strings.Contains(err.Error(), "no cell") {
			t.Errorf("from %s: %v", from, err)
		}
	}
}

// TestRun_StopFirst: a run that is stopped before its first cell interrupts nothing. The kernel may run other cells.
func TestRun_StopFirst(t *testing.T) {
	stop := make(chan struct{})
	close(stop)
	s := &script{}
	res, _ := do(t, s, notebookOf(t, "a"), func(r *Run) {
		r.Stop, r.StopPatience = stop, time.Millisecond
		r.Conn = silent{s}
	})
	if res.Status != Stopped || s.interrupts != 0 {
		t.Errorf("%+v, %d interrupts", res, s.interrupts)
	}
}

// TestRun_RestartFirst: a kernel that restarts before the first cell has lost the variables.
func TestRun_RestartFirst(t *testing.T) {
	s := &script{}
	k := &kernelCell{s: s, parent: []byte("{}")}
	k.state("restarting")
	res, _ := do(t, s, notebookOf(t, "a"), nil)
	if res.Status != Failed || !res.Lost || !strings.Contains(res.Reason, "restarted") {
		t.Errorf("%+v", res)
	}
}

// silent is a kernel that never answers.
type silent struct{ *script }

func (silent) Send(context.Context, jupyter.Message) error { return nil }
