package notebook

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// TestRun_Count: a cell's count is that of its execute_input and its reply, never that of an execute_result.
func TestRun_Count(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"5": func(k *kernelCell) {
		k.pub("execute_result", map[string]any{"data": text("6"), "metadata": struct{}{}, "execution_count": 6})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "5"), nil)
	d := document(t, string(last.document))
	if count := string(d.cells[0].object().values["execution_count"]); count != "1" ||
		!strings.Contains(string(d.cells[0].object().values["outputs"]), `"execution_count": 6`) {
		t.Errorf("the cell has the count %s", count)
	}
}

// TestRun_Raised: an error in a cell's outputs ends a run as in papermill: after its last cell, if the reply was ok.
func TestRun_Raised(t *testing.T) {
	shows := func(name, text string) func(k *kernelCell) {
		return func(k *kernelCell) {
			k.pub("error", map[string]any{"ename": name, "evalue": text, "traceback": []string{}})
			k.end("", "")
		}
	}
	cells := map[string]func(*kernelCell){
		"repr": shows("ValueError", "no"), "second": shows("KeyError", "k"), "exit": shows("SystemExit", "0"),
		"exit 1": shows("SystemExit", "1"),
		"cleared": func(k *kernelCell) {
			k.pub("error", map[string]any{"ename": "ValueError", "evalue": "no", "traceback": []string{}})
			k.pub("clear_output", map[string]any{"wait": false})
			k.end("", "")
		},
		"ipykernel 7": func(k *kernelCell) {
			k.pub("error", map[string]any{"ename": "ValueError", "evalue": "no", "traceback": []string{}})
			k.send(jupyter.Shell, "execute_reply", map[string]any{"status": "error", "ename": "NoneType", "evalue": "None"})
			k.state("idle")
		},
		"ipykernel 7 exit": func(k *kernelCell) {
			k.pub("error", map[string]any{"ename": "SystemExit", "evalue": "", "traceback": []string{}})
			k.send(jupyter.Shell, "execute_reply", map[string]any{"status": "error", "ename": "NoneType", "evalue": "None"})
			k.state("idle")
		},
		"exits":  func(k *kernelCell) { k.end("SystemExit", "") },
		"raises": func(k *kernelCell) { k.end("TypeError", "t") },
	}
	runEnds(t, cells, []endCase{
		{"the display of a result fails", []string{"repr", "b"}, false, Result{Failed, 1, "ValueError: no", false}, 2},
		{"two fail", []string{"repr", "second", "b"}, false, Result{Failed, 2, "KeyError: k", false}, 3},
		{"errors are allowed", []string{"repr", "b"}, true, Result{Status: Completed}, 2},
		{"the cell allows errors", []string{"#tag raises-exception repr", "b"}, false, Result{Status: Completed}, 2},
		{"an exit", []string{"exit", "b"}, false, Result{Status: Completed}, 2},
		{"an exit with a status", []string{"exit 1", "b"}, false, Result{Failed, 1, "SystemExit: 1", false}, 2},
		{"the output was cleared", []string{"cleared", "b"}, false, Result{Status: Completed}, 2},
		{"ipykernel 7", []string{"ipykernel 7", "b"}, false, Result{Failed, 1, "ValueError: no", false}, 1},
		{"ipykernel 7, an exit", []string{"ipykernel 7 exit", "b"}, false, Result{Status: Completed}, 1},
		{"a later exit", []string{"repr", "exits", "b"}, false, Result{Failed, 1, "ValueError: no", false}, 2},
		{"a later error", []string{"repr", "raises", "b"}, false, Result{Failed, 2, "TypeError: t", false}, 2},
		{"an exit that is allowed", []string{"#tag raises-exception exits", "b"}, false, Result{Status: Completed}, 2},
	})
}

// TestRun_RaisedCarried: the error is known to the gateway that carries a run on.
func TestRun_RaisedCarried(t *testing.T) {
	for left := 0; ; left++ {
		s := &script{t: t, cells: map[string]func(*kernelCell){"repr": func(k *kernelCell) {
			k.pub("error", map[string]any{"ename": "ValueError", "evalue": "no", "traceback": []string{}})
			k.end("", "")
		}}}
		want := Result{Failed, 1, "ValueError: no", false}
		res, last, whole := carried(t, s, left, func() *Document { return notebookOf(t, "repr", "b", "c") })
		if res != want || strings.Count(string(last), tagError) != 2 ||
			strings.Contains(string(last), "None") {
			t.Errorf("dead after %d writes: %+v", left, res)
		}
		if whole {
			return
		}
	}
}

// TestRun_NoIdle: the last cell of a kernel that sends no idle ends with the supervisor's idle. It has what came before
// that: late output, and the line that output is lost. An answer to something else does not end the cell.
func TestRun_NoIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late = 10 * time.Second
		s := &script{cells: map[string]func(*kernelCell){"a": func(k *kernelCell) {
			k.send(jupyter.Shell, "execute_reply", map[string]any{"status": "ok"})
			k.s.alarm, k.s.late = time.After(late), func() {
				k.print("stdout", "late output, ")
				k.print("stdout", "and some is lost")
				k.state("idle")
			}
		}}}
		begin := time.Now()
		res, last := do(t, s, notebookOf(t, "a"), nil)
		if got := outputsOf(t, last, 0); res.Status != Completed || got != `stdout "late output, and some is lost"` {
			t.Errorf("%+v, %s", res, got)
		}
		if took := time.Since(begin); took != late {
			t.Errorf("it took %s", took)
		}
	})
}
