package notebook

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

// TestRun_NaN: numbers that only Python's json has are kept in saved outputs, displays, widgets and parameters.
func TestRun_NaN(t *testing.T) {
	d := document(t, `{"nbformat":4,"nbformat_minor":5,"metadata":{"x":-Infinity},"cells":[
{"cell_type":"code","id":"a","metadata":{},"source":"a","execution_count":1,
 "outputs":[{"output_type":"display_data","metadata":{},"data":{"application/json":{"saved":NaN}}}]},
{"cell_type":"code","id":"b","metadata":{},"source":"b","execution_count":null,"outputs":[]}]}`)
	if err := d.Prepare(Plan{From: "b"}); err != nil {
		t.Fatal(err)
	}
	s := &script{cells: map[string]func(*kernelCell){"b": func(k *kernelCell) {
		k.raw("comm_open", `{"comm_id":"w","data":{"state":{"_model_name":"M","value":NaN}}}`)
		k.raw("display_data", `{"data":{"application/json":{"shown":[NaN,Infinity,-Infinity,"NaN"]},"text/plain":"NaN"},`+
			`"metadata":{}}`)
		k.raw("stream", `{"name":"stderr","text":"[ekg] `+notice.NaNLine+`\n"}`)
		k.end("", "")
	}}}
	res, last := do(t, s, d, nil)
	got := strings.Join(strings.Fields(string(last.document)), "")
	if strings.Contains(got, "[ekg]") {
		t.Errorf("the line for browsers is in %s", got)
	}
	for _, want := range []string{`"x":-Infinity`, `{"saved":NaN}`, `"value":NaN`, `[NaN,Infinity,-Infinity,"NaN"]`,
		`"text/plain":["NaN"]`} {
		if !strings.Contains(got, want) {
			t.Errorf("%+v: there is no %s in %s", res, want, got)
		}
	}
	again := &run{Run: &Run{Pieces: last.pieces}, state: *last.resumed(t), dirty: map[int]bool{}}
	if err := again.resume(t.Context()); err != nil {
		t.Error(err)
	}
	parameters, err := ParseParameters(json.RawMessage(`{"a": "\u004e\u0061\u004e", "b": "NaN"}`))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := code("", "python", parameters); err != nil ||
		text != "# Parameters\na = float('nan')\nb = \"NaN\"\n" {
		t.Errorf("the parameters are %q, %v", text, err)
	}
}
