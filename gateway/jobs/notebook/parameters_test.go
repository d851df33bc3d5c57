package notebook

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
)

// TestCode: values are written in each language as papermill 2.7 writes them.
func TestCode(t *testing.T) {
	const values = `{"n": null, "t": true, "f": false, "i": -3, "big": 3000000000, "r": 1.0, "s": "it's \"é\"\n\\",
		"l": [1, "a", [true]], "m": {"k": 1.5, "j": null}}`
	parameters, err := ParseParameters(json.RawMessage(values))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ kernel, language, want string }{
		{"python3", "python", `# Parameters
n = None
t = True
f = False
i = -3
big = 3000000000
r = 1.0
s = "it's \"\xe9\"\n\\"
l = [1, "a", [True]]
m = {"k": 1.5, "j": None}
`},
		{"ir", "R", `# Parameters
n = NULL
t = TRUE
f = FALSE
i = -3
big = 3000000000
r = 1.0
s = "it's \"\xe9\"\n\\"
l = list(1, "a", list(TRUE))
m = list("k" = 1.5, "j" = NULL)
`},
		{".net-powershell", "PowerShell", "# Parameters\n$n = $Null\n$t = $True\n$f = $False\n$i = -3\n$big = 3000000000\n" +
			"$r = 1.0\n$s = \"it's `\"\\xe9`\"\\n\\\\\"\n$l = @(1, \"a\", @($True))\n$m = @{\"k\" = 1.5\n \"j\" = $Null}\n"},
	} {
		t.Run(test.kernel, func(t *testing.T) {
			got, err := code(test.kernel, test.language, parameters)
			if err != nil || got != test.want {
				t.Errorf("%v\n%s\nwant\n%s", err, got, test.want)
			}
		})
	}
}

func TestCode_Refusals(t *testing.T) {
	for _, test := range []struct{ name, kernel, parameters, want string }{
		{"a language that is not known", "cobol", `{"a": 1}`, "its language"},
		{"a map in bash", "bash", `{"a": {"b": 1}}`, "no maps"},
		{"null in C#", ".net-csharp", `{"a": [null]}`, "no null"},
		{"a name with code", "python", `{"a\nimport os": 1}`, "a name has letters"},
		{"an empty name", "python", `{"": 1}`, "a name has letters"},
		{"a list", "python", `[1]`, "not a JSON object"},
		{"no JSON", "python", `{`, "not valid JSON"},
		{"too deep", "python", `{"a": ` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`, "nested"},
	} {
		t.Run(test.name, func(t *testing.T) {
			parameters, err := ParseParameters(json.RawMessage(test.parameters))
			if err == nil {
				_, err = code(test.kernel, "", parameters)
			}
			var wrong *InvalidError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestReal(t *testing.T) {
	for f, want := range map[float64]string{
		1: "1.0", 0: "0.0", 1e15: "1000000000000000.0", 1e16: "1e+16", 0.0001: "0.0001", 0.00001: "1e-05", 2.5e-7: "2.5e-07",
		math.Inf(1): "float('inf')", math.Inf(-1): "float('-inf')",
	} {
		if got := languages["python"].real(f); got != want {
			t.Errorf("%v is %s, want %s", f, got, want)
		}
	}
	if got := languages["python"].real(math.NaN()); got != "float('nan')" {
		t.Errorf("not a number is %s", got)
	}
}

// TestPrepare: the cell with the parameters stands behind the defaults, and replaces that of an earlier run.
func TestPrepare(t *testing.T) {
	d := document(t, written)
	for _, value := range []string{"5", "6"} {
		plan := Plan{Parameters: []Parameter{{"x", json.RawMessage(value)}}, InputPath: "in.ipynb"}
		if err := d.Prepare(plan); err != nil {
			t.Fatal(err)
		}
		if d.Cells() != 3 || d.cells[2].source() != "# Parameters\nx = "+value+"\n" || !d.cells[2].tagged(tagInjected) {
			t.Fatalf("got\n%s", d.whole(t))
		}
		d = document(t, d.whole(t))
	}
	if got := string(d.cells[1].object().values["execution_count"]); got != "null" {
		t.Errorf("the count of the earlier run is still %s", got)
	}
	if got := d.cells[0].metadata().child("papermill").text("status"); got != statusPending {
		t.Errorf("the first cell is %q", got)
	}
	p := d.meta.child("papermill")
	if got := string(p.values["parameters"]); !strings.Contains(got, "6") || p.text("input_path") != "in.ipynb" {
		t.Errorf("metadata %s", p.append(nil))
	}
}

// TestCode_Papermill: every value is written as papermill writes it, in each language that papermill knows.
func TestCode_Papermill(t *testing.T) {
	b, err := os.ReadFile("testdata/translated.json")
	var table map[string]map[string]string
	if err == nil {
		err = json.Unmarshal(b, &table)
	}
	if err != nil || len(table) < 9 {
		t.Fatal(err, len(table))
	}
	for name, values := range table {
		for value, want := range values {
			got, err := code("", name, []Parameter{{"x", json.RawMessage(value)}})
			if err != nil {
				got = "error"
			}
			if got != want {
				t.Errorf("%s: %s is %q, %v, want %q", name, value, got, err, want)
			}
		}
	}
}
