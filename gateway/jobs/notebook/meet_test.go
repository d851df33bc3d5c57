package notebook

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// update is a kernel's change of a widget.
func (k *kernelCell) update(id string, state map[string]any) {
	k.pub("comm_msg", map[string]any{"comm_id": id, "data": map[string]any{"method": "update", "state": state}})
}

// within is what a cell prints in a with statement of the Output widget.
func (k *kernelCell) within(id, msgID, text string) {
	k.update(id, map[string]any{"msg_id": msgID})
	k.print("stdout", text)
	k.update(id, map[string]any{"msg_id": ""})
}

func says(text string) map[string]any {
	return map[string]any{"output_type": "stream", "name": "stdout", "text": text}
}

// outputModel is the state of an Output widget that an author's cell has opened.
func outputModel(outputs ...any) map[string]any {
	return map[string]any{"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output", "msg_id": "",
		"outputs": append([]any{}, outputs...), "layout": "IPY_MODEL_l"}
}

// author is a kernel with three Output widgets and a progress bar of before the run.
func author(t *testing.T) *script {
	return &script{t: t,
		states: map[string]any{"m": outputModel(says("by hand\n")), "n": outputModel(says("old\n")),
			"o": outputModel(says("gone\n")), "bar": map[string]any{"_model_name": "IntProgressModel", "value": 7},
			"l": map[string]any{"_model_name": "LayoutModel"}},
		cells: map[string]func(*kernelCell){
			"a": func(k *kernelCell) {
				k.print("stdout", "of the cell\n")
				k.update("bar", map[string]any{"value": 7})
				k.update("m", map[string]any{"msg_id": "job-1-0"})
				k.print("stdout", "m1\n")
				k.within("n", "job-1-0", "n1\n")
				k.print("stdout", "m2\n")
				k.update("m", map[string]any{"msg_id": ""})
				k.update("o", map[string]any{"msg_id": "job-1-0"})
				k.pub("clear_output", map[string]any{"wait": true})
				k.print("stdout", "o1\n")
				k.update("o", map[string]any{"msg_id": ""})
				k.print("stdout", "of the cell, too\n")
				k.end("", "")
			},
			"b": func(k *kernelCell) {
				k.within("m", "job-1-1", "m3\n")
				k.update("n", map[string]any{"msg_id": "job-1-1"})
				k.pub("clear_output", map[string]any{"wait": true})
				k.update("n", map[string]any{"msg_id": ""})
				k.end("", "")
			}}}
}

// wantAuthor checks what a notebook with the cells a and b has after a run on author's kernel.
func wantAuthor(t *testing.T, when string, s *script, notebook []byte) {
	t.Helper()
	want := map[string]any{"m": []any{says("by hand\nm1\nm2\nm3\n")}, "n": []any{says("old\nn1\n")},
		"o": []any{says("o1\n")}}
	if got := widgetOutputs(t, notebook); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s the widgets have %v", when, got)
	}
	if got := shownIn(document(t, string(notebook)), 0); got != `stdout "of the cell\nof the cell, too\n"` {
		t.Fatalf("%s the cell has %s", when, got)
	}
	var told []string
	for _, m := range s.told {
		told = append(told, string(m.Content))
	}
	if len(told) != 4 || !strings.Contains(told[0], `"text":"by hand\nm1\nm2\n"`) ||
		!strings.Contains(told[3], `"text":"by hand\nm1\nm2\nm3\n"`) {
		t.Fatalf("%s the kernel is told %s", when, told)
	}
	if slices.Sort(s.asked); !slices.Equal(s.asked, []string{"bar", "l", "m", "n", "o"}) {
		t.Fatalf("%s the kernel is asked for %v", when, s.asked)
	}
}

// TestRun_OutputWidgetsMet: what a cell prints into Output widgets of before the run stands behind their earlier
// outputs. So it does if a gateway dies before any of its writes.
func TestRun_OutputWidgetsMet(t *testing.T) {
	s := author(t)
	res, last := do(t, s, notebookOf(t, "a", "b"), nil)
	if wantAuthor(t, "in one go", s, last.document); res.Status != Completed {
		t.Fatalf("it is %+v", res)
	}
	for _, part := range []string{`"IntProgressModel"`, `"LayoutModel"`} {
		if !strings.Contains(string(last.document), part) {
			t.Errorf("the notebook has no %s", part)
		}
	}
	for left := 0; ; left++ {
		s := author(t)
		res, notebook, whole := carried(t, s, left, func() *Document { return notebookOf(t, "a", "b") })
		if wantAuthor(t, fmt.Sprint("dead after writes: ", left), s, notebook); res.Status != Completed {
			t.Fatalf("dead after %d writes: %v", left, res)
		}
		if whole {
			return
		}
	}
}

// TestRun_OutputWidgetsUnknown: the cell has what it has printed into a widget if the kernel does not say the widget's
// state, or says one that no notebook could have.
func TestRun_OutputWidgetsUnknown(t *testing.T) {
	within := func(k *kernelCell) { k.within("m", "job-1-0", "kept\n") }
	ends := func(k *kernelCell) {
		within(k)
		k.end("", "")
	}
	dies := errors.New("it was killed")
	for name, test := range map[string]struct {
		state any
		cell  func(k *kernelCell)
		want  Status
	}{
		"no answer": {nil, ends, Completed},
		"no Output": {map[string]any{"_model_name": "OtherModel"}, ends, Completed},
		"too large": {outputModel(says(strings.Repeat("x", 2<<20))), ends, Completed},
		"too deep":  {outputModel(deep(500)), ends, Completed},
		"the kernel dies": {outputModel(), func(k *kernelCell) {
			within(k)
			k.s.gone = fmt.Errorf("%w: %w", ErrGone, dies)
		}, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			s := &script{states: map[string]any{}, cells: map[string]func(*kernelCell){"a": test.cell}}
			if test.state != nil {
				s.states["m"] = test.state
			}
			res, last := do(t, s, notebookOf(t, "a"), func(r *Run) { r.OutputLimit = 1 << 20 })
			at := 0
			if test.want == Failed {
				at = 2 // behind the two that say it
			}
			if got := outputsOf(t, last, at); res.Status != test.want || got != `stdout "kept\n"` || len(s.told) > 0 {
				t.Errorf("%+v, the cell has %s, the kernel is told %s", res, got, s.told)
			}
			if got := widgetOutputs(t, last.document); len(got) > 0 {
				t.Errorf("the widgets have %v", got)
			}
			if state := last.resumed(t); len(state.Met)+len(state.Widgets) > 0 {
				t.Errorf("the state has %v, %v", state.Met, state.Widgets)
			}
		})
	}
}

func deep(depth int) (v any) {
	for range depth {
		v = []any{v}
	}
	return v
}

// TestRun_OutputWidgetsSilent: a kernel that says nothing holds the run for a bounded time.
func TestRun_OutputWidgetsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{mute: true, cells: map[string]func(*kernelCell){"a": func(k *kernelCell) {
			k.within("m", "job-1-0", "kept\n")
			k.end("", "")
		}}}
		begin := time.Now()
		res, last := do(t, s, notebookOf(t, "a", "b"), nil)
		if took := time.Since(begin); res.Status != Completed || took != answerPatience {
			t.Errorf("%+v after %v", res, took)
		}
		if got := outputsOf(t, last, 0); got != `stdout "kept\n"` {
			t.Errorf("the cell has %s", got)
		}
	})
}

// TestRun_WidgetsMetBound: a cell asks for a bounded number of states.
func TestRun_WidgetsMetBound(t *testing.T) {
	s := &script{states: map[string]any{}, cells: map[string]func(*kernelCell){"a": func(k *kernelCell) {
		for i := range 3000 {
			k.update(fmt.Sprint("w", i), map[string]any{"value": i})
		}
		k.end("", "")
	}}}
	for i := range 3000 {
		s.states[fmt.Sprint("w", i)] = map[string]any{"_model_name": "X", "layout": fmt.Sprint("IPY_MODEL_x", i)}
	}
	if res, _ := do(t, s, notebookOf(t, "a"), func(r *Run) { r.SaveEvery = time.Hour }); res.Status != Completed ||
		len(s.asked) > 2*maxMet {
		t.Errorf("%+v, %d are asked for", res, len(s.asked))
	}
}
