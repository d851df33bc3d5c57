package jupyter

import (
	"encoding/json"
	"testing"
)

// TestHideNaN: what Python's json writes becomes JSON, and comes back. Texts stay.
func TestHideNaN(t *testing.T) {
	for _, python := range []string{
		`NaN`, `[NaN, -Infinity,Infinity]`, `{"NaN":NaN,"a":"-Infinity NaN","b":"\"NaN","c":-1}`, `{"x":"\\","y":Infinity}`,
		`"NaN"`, `[]`,
	} {
		hidden := HideNaN([]byte(python))
		if !json.Valid(hidden) {
			t.Errorf("%s is hidden as %s", python, hidden)
		}
		if shown := string(ShowNaN(hidden)); shown != python {
			t.Errorf("%s came back as %s", python, shown)
		}
	}
	for _, no := range []string{`-1NaN`, `{NaN:1}`, `[NaNa]`, `nan`} {
		if hidden := HideNaN([]byte(no)); json.Valid(hidden) && no != `{NaN:1}` {
			t.Errorf("%s is hidden as %s", no, hidden)
		}
	}
	for _, text := range []string{`"NaN"`, `{` + NaN + ` : 1}`, `"\` + NaN, `["\` + NaN + `]`} {
		if shown := string(ShowNaN([]byte(text))); shown != text {
			t.Errorf("the text %s is shown as %s", text, shown)
		}
	}
}
