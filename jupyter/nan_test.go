package jupyter

import (
	"encoding/json"
	"strings"
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
		if HasNaN([]byte(python)) != !json.Valid([]byte(python)) {
			t.Errorf("%s has NaN: %v", python, HasNaN([]byte(python)))
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

// TestNullNaN: texts and other values stay as they are.
func TestNullNaN(t *testing.T) {
	for python, want := range map[string]string{
		`{"a":[NaN, -Infinity,-1],"NaN":"NaN \\\"","b":Infinity}`: `{"a":[null, null,-1],"NaN":"NaN \\\"","b":null}`,
		`{"text":"a NaN, Infinity"}`:                              `{"text":"a NaN, Infinity"}`,
		`{"text":"NaN`:                                            `{"text":"NaN`,
	} {
		if got, replaced := NullNaN([]byte(python)); string(got) != want || replaced != (want != python) {
			t.Errorf("%s becomes %s, %v, want %s", python, got, replaced, want)
		}
	}
}

// BenchmarkNullNaN is what a message costs: one without the letters of NaN, and one with them in a text.
func BenchmarkNullNaN(b *testing.B) {
	for name, text := range map[string]string{
		"100B": strings.Repeat("x", 100), "1MB": strings.Repeat("x", 1<<20), "1MB-texts": strings.Repeat("NaN ", 1<<18),
	} {
		data := []byte(`{"name":"stdout","text":"` + text + `"}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				NullNaN(data)
			}
		})
	}
}
