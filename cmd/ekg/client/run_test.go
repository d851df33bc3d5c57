package client

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// In a terminal, a job that is followed has one line with a bar. Elsewhere it has a line for each change.
func TestProgress(t *testing.T) {
	row := func(state string, cell int) jobRow {
		var j jobRow
		j.Name, j.State, j.Cell, j.Cells = "train", state, cell, 3
		return j
	}
	for terminal, want := range map[bool]string{
		true: "\r\x1b[Ktrain: starting" +
			"\r\x1b[Ktrain [##########--------------------] cell 1 of 3, running" +
			"\r\x1b[Ktrain [##############################] cell 3 of 3, succeeded\n",
		false: "ekg: train: starting\nekg: train: running, cell 1 of 3\nekg: train: succeeded, cell 3 of 3\n",
	} {
		var out strings.Builder
		p := &progress{w: &out, terminal: terminal}
		now := row(running, 1)
		for _, j := range []jobRow{row("starting", 0), now, now, row(succeeded, 3)} {
			p.show(j)
		}
		p.end()
		if out.String() != want {
			t.Errorf("terminal %v: %q, want %q", terminal, out.String(), want)
		}
	}
}

// TestRun_Duration: the error of a duration without a unit says that it needs one.
func TestRun_Duration(t *testing.T) {
	for _, args := range [][]string{{"run", "--timeout", "5", "x.ipynb"}, {"keep", "--for", "5", kernelA}} {
		code, _, errs := ekg(t, args...)
		if code != 2 || !strings.HasSuffix(errs, ": parse error: a duration needs a unit, as in 5s\n") {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
	if _, _, errs := ekg(t, "run", "--retries", "x", "x.ipynb"); strings.Contains(errs, "duration") {
		t.Errorf("of a number: %s", errs)
	}
}

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
