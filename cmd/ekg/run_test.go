package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestParameterPairs(t *testing.T) {
	for line, want := range map[string]string{
		"ekg run n.ipynb -p x 1 -r y a=b -p z=3": "ekg run n.ipynb -p x=1 -r y=a=b -p z=3",
		"ekg run n.ipynb -p":                     "ekg run n.ipynb -p",
		"ekg run n.ipynb -p x":                   "ekg run n.ipynb -p x",
		"ekg run -- -p x 1":                      "ekg run -- -p x 1",
		"ekg ps -p x 1":                          "ekg ps -p x 1",
		"ekg":                                    "ekg",
	} {
		if got := parameterPairs(strings.Fields(line)); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: got %v, want %s", line, got, want)
		}
	}
}

// The values are those that papermill takes from the same texts.
func TestTyped(t *testing.T) {
	for text, want := range map[string]string{
		"True": "true", "False": "false", "None": "null", "7": "7", "-7": "-7", "1.5": "1.5", ".5": "0.5", "5.": "5.0",
		"1e3": "1000.0", "nan": `"nan"`, "inf": `"inf"`, "true": `"true"`, "a b": `"a b"`, "": `""`,
	} {
		if got, err := json.Marshal(typed(text)); err != nil || string(got) != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
}
