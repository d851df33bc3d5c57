package notebook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// recorded is a file of testdata/widgets: what a kernel has sent to nbclient, and what nbclient has made of it.
type recorded struct {
	Cells []struct {
		Source   string `json:"source"`
		Messages []struct {
			Type    string          `json:"type"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		Outputs []json.RawMessage `json:"outputs"`
		Count   int               `json:"count"`
		// Told are the outputs of widgets that nbclient has sent to the kernel, by comm.
		Told map[string][]json.RawMessage `json:"told"`
	} `json:"cells"`
	Widgets map[string]json.RawMessage `json:"widgets"` // the outputs of widgets, by comm
}

func readRecorded(t *testing.T, path string) (rec recorded) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &rec)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// notebook returns the cells as a notebook, and a kernel that sends what was recorded.
func (rec recorded) notebook(t *testing.T) (*Document, *script) {
	t.Helper()
	s := &script{t: t, cells: map[string]func(*kernelCell){}}
	var sources []string
	for _, c := range rec.Cells {
		sources = append(sources, c.Source)
		s.cells[c.Source] = func(k *kernelCell) {
			parent, err := jupyter.ParseHeader(k.parent)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range c.Messages {
				if m.Type == "status" || m.Type == "execute_input" {
					continue // Send and end send them
				}
				k.pub(m.Type, json.RawMessage(strings.ReplaceAll(string(m.Content), "PARENT", parent.MsgID)))
			}
			k.count = c.Count
			k.end("", "")
		}
	}
	return notebookOf(t, sources...), s
}

// widgetOutputs returns the outputs of a notebook's Output widgets, by comm.
func widgetOutputs(t *testing.T, notebook []byte) map[string]any {
	t.Helper()
	var doc struct {
		Metadata struct {
			Widgets map[string]struct {
				State map[string]struct {
					Name  string         `json:"model_name"`
					State map[string]any `json:"state"`
				} `json:"state"`
			} `json:"widgets"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(notebook, &doc); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{}
	for id, m := range doc.Metadata.Widgets[widgetsType].State {
		if m.Name == "OutputModel" {
			all[id] = m.State["outputs"]
		}
	}
	return all
}

// as returns a value as JSON reads it.
func as(t *testing.T, value any) (v any) {
	t.Helper()
	b, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// plainOutputs returns the outputs of a cell with whole texts. Consecutive texts of one stream are one.
func plainOutputs(t *testing.T, raw []json.RawMessage) any {
	t.Helper()
	var list []*output
	for _, out := range parseOutputs(encode(raw)) {
		list = appendOutput(list, out)
	}
	outputs := as(t, live(list)).([]any)
	for _, out := range outputs {
		data, _ := out.(map[string]any)["data"].(map[string]any)
		for name, value := range data {
			if lines, is := value.([]any); is {
				var text strings.Builder
				for _, line := range lines {
					text.WriteString(line.(string))
				}
				data[name] = text.String()
			}
		}
	}
	return outputs
}

// TestRun_OutputWidgets: cells, Output widgets and the kernel have the outputs that nbclient gives them. The messages
// are those of a live kernel.
func TestRun_OutputWidgets(t *testing.T) {
	paths, err := filepath.Glob("testdata/widgets/*.json")
	if err != nil || len(paths) < 6 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".json"), func(t *testing.T) {
			rec := readRecorded(t, path)
			d, s := rec.notebook(t)
			res, last := do(t, s, d, nil)
			if res.Status != Completed {
				t.Fatalf("it is %+v", res)
			}
			rec.compare(t, last.document, s)
		})
	}
}

// TestRun_OutputWidgetsCarried: a gateway dies while a widget takes outputs, before each of its writes in turn. Another
// one carries on, with the same result.
func TestRun_OutputWidgetsCarried(t *testing.T) {
	rec := readRecorded(t, "testdata/widgets/nested.json")
	for left := 0; ; left++ {
		_, s := rec.notebook(t)
		res, last, whole := carried(t, s, left, func() *Document { d, _ := rec.notebook(t); return d })
		if rec.compare(t, last, s); res.Status != Completed || t.Failed() {
			t.Fatalf("dead after %d writes: %v", left, res)
		}
		if whole {
			return
		}
	}
}

// carried does a run whose gateway dies after some writes, and carries it on. It returns the notebook, too, and whether
// the first gateway has done it all.
func carried(t *testing.T, s *script, left int, cells func() *Document) (res Result, notebook []byte, whole bool) {
	t.Helper()
	pieces := &memory{}
	first := &mortal{memory: pieces, left: left}
	run := Run{Conn: s, Pieces: first, ID: "job-1", SaveEvery: time.Nanosecond, Save: first.save, Document: cells()}
	res, err := run.Do(t.Context())
	if err == nil {
		if left < 10 {
			t.Errorf("a run has only %d writes", left)
		}
		return res, assembled(t, *first.last.resumed(t), pieces), true
	}
	second := &mortal{memory: pieces, left: 1 << 30}
	run.Pieces, run.Save, s.next = second, second.save, 0
	if run.Document = cells(); first.last.state != nil {
		run.Document, run.Resume = nil, first.last.resumed(t)
		if run.Resume.Cursor != "" {
			_, _ = fmt.Sscan(run.Resume.Cursor, &s.next)
		}
	}
	if res, err = run.Do(t.Context()); err != nil {
		t.Fatalf("dead after %d writes: %v", left, err)
	}
	return res, assembled(t, *second.last.resumed(t), pieces), false
}

// TestModel_Older: a gateway of before Output widgets took outputs finds them in the state. What it stores is read.
func TestModel_Older(t *testing.T) {
	taken := []*output{{stream: "stdout", text: []byte("taken\n")}}
	m := &model{State: map[string]json.RawMessage{"_model_name": encode("OutputModel")}, taken: taken}
	want := `[{"name":"stdout","output_type":"stream","text":"taken\n"}]`
	var older struct {
		State map[string]json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(m.stored(), &older); err != nil || string(older.State[memberOutputs]) != want {
		t.Errorf("an older gateway reads %s, %v", older.State[memberOutputs], err)
	}
	if own := parseModel(m.stored()); !reflect.DeepEqual(own.taken, taken) || own.State[memberOutputs] != nil {
		t.Errorf("this one reads %+v", own)
	}
	older.State["layout"] = encode("new")
	got := parseModel(encode(older))
	if string(got.whole()[memberOutputs]) != want || string(got.State["layout"]) != `"new"` || got.taken != nil {
		t.Errorf("of what an older gateway has stored, this one reads %+v", got)
	}
}

// TestRun_OutputReplaced: outputs that the kernel sets replace those of an Output widget, as in front ends.
func TestRun_OutputReplaced(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"w": func(k *kernelCell) {
		comm := func(msgType string, state map[string]any) {
			k.pub(msgType, map[string]any{"comm_id": "m", "data": map[string]any{"state": state}})
		}
		comm("comm_open", map[string]any{"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output",
			"msg_id": "", "outputs": []any{}})
		comm("comm_msg", map[string]any{"msg_id": "job-1-0"})
		k.print("stdout", "old")
		comm("comm_msg", map[string]any{"outputs": []any{}})
		k.print("stdout", "ne")
		k.print("stdout", "w")
		comm("comm_msg", map[string]any{"msg_id": ""})
		k.print("stdout", "of the cell")
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "w"), nil)
	want := map[string]any{"m": []any{map[string]any{"output_type": "stream", "name": "stdout", "text": "new"}}}
	if got := widgetOutputs(t, last.document); !reflect.DeepEqual(got, want) ||
		outputsOf(t, last, 0) != `stdout "of the cell"` {
		t.Errorf("the widget has %v, the cell %s", got, outputsOf(t, last, 0))
	}
}

// prints is a cell that prints lines into the Output widget m, each in a with statement of its own.
func prints(msgID string, lines int, open bool) func(*kernelCell) {
	return func(k *kernelCell) {
		comm := func(msgType string, state map[string]any) {
			k.pub(msgType, map[string]any{"comm_id": "m", "data": map[string]any{"state": state}})
		}
		if open {
			comm("comm_open", map[string]any{"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output",
				"msg_id": "", "outputs": []any{}})
		}
		for i := range lines {
			comm("comm_msg", map[string]any{"msg_id": msgID})
			k.print("stdout", fmt.Sprint(msgID, i, strings.Repeat("x", 4000), "\n"))
			comm("comm_msg", map[string]any{"msg_id": ""})
		}
		k.end("", "")
	}
}

// TestRun_OutputBytes: what a save writes does not grow with the output that a widget has taken before.
func TestRun_OutputBytes(t *testing.T) {
	pieces, s := &memory{}, &script{t: t}
	r := &run{Run: &Run{Pieces: pieces, Document: notebookOf(t, "w"), ID: "job-1"}, dirty: map[int]bool{}, limit: 64 << 20}
	r.begin()
	r.state.Widgets, r.state.Takers, r.state.Running = map[string]*widget{}, map[string][]string{}, true
	prints("job-1-0", 100, true)(&kernelCell{s: s, parent: r.request(r.doc.cells[0]).Header})
	for i := range s.log {
		if err := r.handle(t.Context(), &s.log[i]); err != nil {
			t.Fatal(err)
		}
		if err := r.store(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	outputs, _ := widgetOutputs(t, assembled(t, r.state, pieces))["m"].([]any)
	if len(outputs) != 1 || len(outputs[0].(map[string]any)["text"].(string)) < 100*4000 {
		t.Errorf("the widget has %.99v", outputs)
	}
	if r.size != r.state.Widgets["m"].Size+r.state.Cells[0][0].Size {
		t.Errorf("the size is %d, the widget's %d", r.size, r.state.Widgets["m"].Size)
	}
	if pieces.bytes > 20<<20 { // the whole widget 300 times is 60 MB
		t.Errorf("%d bytes are written", pieces.bytes)
	}
}

// TestRun_OutputPartsCarried: a gateway dies while a widget takes much output, before each of its writes in turn.
// Another one carries on. The widget, and what the kernel is told of it, are the same.
func TestRun_OutputPartsCarried(t *testing.T) {
	kernel := func() *script {
		return &script{t: t, cells: map[string]func(*kernelCell){
			"a": prints("job-1-0", 20, true), "b": prints("job-1-1", 10, false),
			"c": func(k *kernelCell) {
				prints("job-1-2", 1, false)(k)
				k.s.log = k.s.log[:len(k.s.log)-2] // no end yet
				k.pub("comm_msg", map[string]any{"comm_id": "m", "data": map[string]any{"state": map[string]any{
					"msg_id": "job-1-2"}}})
				k.pub("clear_output", map[string]any{"wait": true})
				k.print("stdout", "last")
				k.end("", "")
			}}}
	}
	check := func(left int, s *script, notebook []byte) {
		t.Helper()
		want := map[string]any{"m": []any{map[string]any{"output_type": "stream", "name": "stdout", "text": "last"}}}
		if got := widgetOutputs(t, notebook); !reflect.DeepEqual(got, want) || len(s.told) != 3 {
			t.Fatalf("dead after %d writes: the widget has %.99v, %d are told", left, got, len(s.told))
		}
		for i, m := range s.told[:2] {
			for cell, lines := range []int{20, 10}[:i+1] {
				if n := bytes.Count(m.Content, fmt.Appendf(nil, "job-1-%d", cell)); n != lines {
					t.Fatalf("dead after %d writes: %d lines of cell %d are told", left, n, cell+1)
				}
			}
		}
	}
	for left := 0; ; left += 3 {
		s := kernel()
		_, last, whole := carried(t, s, left, func() *Document { return notebookOf(t, "a", "b", "c", "d") })
		if check(left, s, last); whole {
			return
		}
	}
}

// TestRun_OutputLimit: a widget with too much output says so once, and keeps an error.
func TestRun_OutputLimit(t *testing.T) {
	s := &script{cells: map[string]func(*kernelCell){"flood": func(k *kernelCell) {
		k.pub("comm_open", map[string]any{"comm_id": "m", "data": map[string]any{"state": map[string]any{
			"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output", "outputs": []any{}}}})
		k.pub("comm_msg", map[string]any{"comm_id": "m", "data": map[string]any{"state": map[string]any{
			"msg_id": "job-1-0"}}})
		for range 20 {
			k.print("stdout", strings.Repeat("x", 100<<10))
		}
		k.pub("error", map[string]any{"ename": "ValueError", "evalue": "no", "traceback": []string{}})
		k.end("", "")
	}}}
	_, last := do(t, s, notebookOf(t, "flood"), func(r *Run) { r.OutputLimit, r.SaveEvery = 1<<20, time.Hour })
	outputs, _ := widgetOutputs(t, last.document)["m"].([]any)
	if n := bytes.Count(last.document, []byte("is left out")); len(outputs) != 3 || n != 1 || len(last.document) > 2<<20 {
		t.Errorf("%d outputs, %d lines, %d bytes", len(outputs), n, len(last.document))
	}
}

// compare compares a notebook, and what the kernel was told, with what nbclient has made and told.
func (rec recorded) compare(t *testing.T, notebook []byte, s *script) {
	t.Helper()
	var doc struct {
		Cells []struct {
			Outputs []json.RawMessage `json:"outputs"`
			Count   int               `json:"execution_count"`
		} `json:"cells"`
	}
	if err := json.Unmarshal(notebook, &doc); err != nil {
		t.Fatal(err)
	}
	for i, c := range doc.Cells {
		got, want := plainOutputs(t, c.Outputs), plainOutputs(t, rec.Cells[i].Outputs)
		if !reflect.DeepEqual(got, want) || c.Count != rec.Cells[i].Count {
			t.Errorf("cell %d has the outputs\n%v\nnot\n%v, count %d", i+1, got, want, c.Count)
		}
	}
	if got, want := as(t, widgetOutputs(t, notebook)), as(t, rec.Widgets); !reflect.DeepEqual(got, want) {
		t.Errorf("the widgets have\n%v\nnot\n%v", got, want)
	}
	told, want := map[string]any{}, map[string]any{}
	for _, m := range s.told {
		var c struct {
			ID   string `json:"comm_id"`
			Data struct {
				State map[string]any `json:"state"`
			} `json:"data"`
		}
		if err := json.Unmarshal(m.Content, &c); err != nil {
			t.Fatal(err)
		}
		own, _ := headers(&m)
		next, _, _ := strings.Cut(strings.TrimPrefix(own.MsgID, "job-1-"), "-")
		told[next+" "+c.ID] = c.Data.State["outputs"]
	}
	for i, c := range rec.Cells {
		for id, outputs := range c.Told {
			want[fmt.Sprint(i+1)+" "+id] = as(t, outputs)
		}
	}
	if !reflect.DeepEqual(told, want) {
		t.Errorf("after its cells the kernel is told\n%v\nnot\n%v", told, want)
	}
}

// TestTold_Order: a cell that prints a widget's outputs prints what it does with nbclient.
func TestTold_Order(t *testing.T) {
	display := newObject(map[string]any{"output_type": "display_data", "data": newObject(nil), "metadata": newObject(nil)})
	got := string(told([]*output{{stream: "stdout", text: []byte("a<b")}, {other: display}}))
	want := `[{"output_type":"stream","name":"stdout","text":"a<b"},` +
		`{"output_type":"display_data","metadata":{},"data":{}}]`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
