package notebook

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// written is a notebook as JupyterLab writes it.
const written = `{
 "cells": [
  {
   "cell_type": "markdown",
   "id": "a1",
   "metadata": {},
   "source": [
    "# Title <b>\n",
    "text with \u2028 and é"
   ]
  },
  {
   "cell_type": "code",
   "execution_count": 7,
   "id": "b2",
   "metadata": {
    "tags": [
     "parameters"
    ],
    "unknown": {
     "z": 1.50,
     "a": 12345678901234567890
    }
   },
   "outputs": [],
   "source": [
    "x = 1"
   ]
  }
 ],
 "metadata": {
  "kernelspec": {
   "display_name": "Python 3",
   "language": "python",
   "name": "python3"
  },
  "language_info": {
   "name": "python"
  }
 },
 "nbformat": 4,
 "nbformat_minor": 5
}
`

// document reads a notebook that a test has written.
func document(t *testing.T, text string) *Document {
	t.Helper()
	d, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// whole returns a notebook that no run has changed.
func (d *Document) whole(t *testing.T) string {
	t.Helper()
	pieces := &memory{}
	name, _ := pieces.Put(t.Context(), d.skeleton()) // it never fails
	return string(assembled(t, State{Skeleton: name}, pieces))
}

// TestRead_RoundTrip: a notebook that did not run is written as it was.
func TestRead_RoundTrip(t *testing.T) {
	d := document(t, written)
	if got := d.whole(t); got != written {
		t.Errorf("got\n%s", got)
	}
	if d.KernelName() != "python3" || d.Language() != "python" || d.Cells() != 2 {
		t.Errorf("kernel %q, language %q, %d cells", d.KernelName(), d.Language(), d.Cells())
	}
}

func TestRead_Invalid(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no JSON", `{"cells": [}`, "no valid JSON at byte"},
		{"a list", `[]`, "not a JSON object"},
		{"no UTF-8", "{\"cells\": \"\xff\"}", "not UTF-8"},
		{"format 3", `{"nbformat": 3, "worksheets": []}`, "format 3"},
		{"no format", `{"cells": []}`, "no nbformat"},
		{"no cells", `{"nbformat": 4, "metadata": {}}`, "no list of cells"},
		{"cells that are null", `{"nbformat": 4, "cells": null}`, "no list of cells"},
		{"a cell that is a number", `{"nbformat": 4, "cells": [1]}`, "cell 1 "},
		{"a cell without a type", `{"nbformat": 4, "cells": [{"source": ""}]}`, "no cell_type"},
		{"a source that is a number", `{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}`, "its source"},
		{"outputs that are a map", `{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "outputs": {}}]}`,
			"its outputs"},
		{"too deep", `{"nbformat": 4, "metadata": ` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
			"nested more than 200"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Read([]byte(test.text))
			var wrong *InvalidError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzRead: a notebook that is read is written, prepared and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(written))
	f.Add([]byte(`{"nbformat":4,"cells":[{"cell_type":"code","source":["a","b"],"outputs":[1,{"text":3}]}]}`))
	f.Add([]byte(`{"nbformat":4,"cells":[{"cell_type":"code","metadata":{"tags":7,"papermill":[]}}],"cells":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Read(data)
		if err != nil {
			return
		}
		once := d.whole(t)
		again := document(t, once)
		if again.whole(t) != once {
			t.Errorf("%q changes when it is written again", once)
		}
		for _, c := range d.cells {
			encodeOutputs(parseOutputs(c.object().values["outputs"]))
		}
		parameters := []Parameter{{Name: "a", Value: json.RawMessage("1")}}
		if err := again.Prepare(Plan{Parameters: parameters, Language: "python"}); err != nil {
			t.Error(err)
		}
		document(t, again.whole(t))
	})
}

func TestSplit(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a": "a", "a\n": "a\n", "a\nb": "a\n|b", "a\r\nb\rc": "a\r\n|b\r|c", "\n\n": "\n|\n",
		"é\u2028f\u0085": "é\u2028|f\u0085",
	} {
		if got := strings.Join(split(text), "|"); got != want {
			t.Errorf("split(%q) = %q, want %q", text, got, want)
		}
	}
}
