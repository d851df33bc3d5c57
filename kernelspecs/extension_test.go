package kernelspecs

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Amount is a type with its own UnmarshalJSON, like Kubernetes' quantities.
type Amount struct{ Text string }

// UnmarshalJSON accepts strings and numbers.
func (a *Amount) UnmarshalJSON(b []byte) error {
	a.Text = string(b)
	if a.Text == `"bad"` {
		return &json.SyntaxError{}
	}
	return nil
}

type embedded struct {
	Name string `json:"name"`
}

// shape has a field of each kind that Kubernetes' types have.
type shape struct {
	embedded
	Flag    *bool             `json:"flag,omitempty"`
	Count   int32             `json:"count"`
	Data    []byte            `json:"data"`
	Amounts map[string]Amount `json:"amounts"`
	List    []embedded        `json:"list"`
	Hidden  string            `json:"-"`
}

func TestDecodeStrict(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string // line: path: message
	}{
		{"everything", `{"name": "n", "flag": true, "count": 2, "data": "YWI=", "amounts": {"a.b/c": 1, "d": "2"}, ` +
			`"list": [{"name": "x"}, {}]}`, nil},
		{"no JSON", "{\n", []string{`0: x: not valid JSON: unexpected end of JSON input`}},
		{"another kind", `[]`, []string{`1: x: is an array, not an object`}},
		{"null", `{"flag": null}`, []string{`1: x.flag: is null; leave the key out instead`}},
		{"another case", `{"Name": "n"}`,
			[]string{`1: x.Name: cannot be set; valid keys: amounts, count, data, flag, list, name`}},
		{"what JSON does not see", `{"Hidden": "n", "-": "n"}`, []string{
			`1: x.Hidden: cannot be set; valid keys: amounts, count, data, flag, list, name`,
			`1: x.-: cannot be set; valid keys: amounts, count, data, flag, list, name`}},
		{"twice", "{\"name\": \"n\",\n\"name\": \"m\"}", []string{`1: x.name: is given twice`}},
		{"numbers", "{\"count\":\n99999999999, \"flag\": 1}",
			[]string{`1: x.count: 99999999999 is not a valid number here`, `2: x.flag: is a number, not a boolean`}},
		{"fractions", `{"count": 1.5}`, []string{`1: x.count: 1.5 is not a valid number here`}},
		{"base64", `{"data": "!"}`, []string{`1: x.data: "!" is not base64`}},
		{"a reading of its own", "{\"amounts\": {\n\"a.b/c\": \"bad\"}}",
			[]string{`2: x.amounts.a.b/c: "bad" is not a valid value`}},
		{"exponents", "{\"amounts\": {\"a\": 1e99,\n\"b\": 1e999, \"c\": \"1E-2147483647\"}}", []string{
			`2: x.amounts.b: has too large an exponent`, `2: x.amounts.c: has too large an exponent`}},
		{"deep", "{\"list\": [{},\n{\"name\": 3},\n{\"nome\": 3}]}",
			[]string{`2: x.list[1].name: is a number, not a string`, `3: x.list[2].nome: cannot be set; valid keys: name`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var v shape
			_, problems := DecodeStrict([]byte(tt.text), "x", &v)
			var got []string
			for _, p := range problems {
				got = append(got, strings.TrimPrefix(Problem{File: "", Line: p.Line, Key: p.Key, Message: p.Message}.String(), ":"))
			}
			if len(got) > 0 && problems[0].Line == 0 {
				got[0] = "0: " + got[0]
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
	t.Run("lines of what is not there", func(t *testing.T) {
		var v shape
		places, _ := DecodeStrict([]byte("{\"amounts\": {\n\"a.b/c\": 1}}"), "x", &v)
		for path, want := range map[string]int{
			"x.amounts.a.b/c": 2, "x.amounts.a.b/c.more": 2, "x.amounts.other": 1, "x": 1, "y": 0,
		} {
			if got := places.Problem(path, "").Line; got != want {
				t.Errorf("%s is in line %d, want %d", path, got, want)
			}
		}
	})
}

// DecodeStrict restores what encoding/json has encoded.
func TestDecodeStrict_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := shape{embedded: embedded{rapid.String().Draw(t, "name")}, Flag: rapid.Ptr(rapid.Bool(), true).Draw(t, "flag"),
			Count: rapid.Int32().Draw(t, "count"), Data: rapid.SliceOfN(rapid.Byte(), 1, 5).Draw(t, "data"),
			Amounts: map[string]Amount{}, List: []embedded{{rapid.String().Draw(t, "other")}}}
		text, err := json.Marshal(map[string]any{"name": want.Name, "count": want.Count, "data": want.Data,
			"amounts": want.Amounts, "list": want.List})
		if err != nil {
			t.Fatal(err)
		}
		if want.Flag != nil {
			text = append([]byte(`{"flag":`+map[bool]string{true: "true", false: "false"}[*want.Flag]+","), text[1:]...)
		}
		var got shape
		if _, problems := DecodeStrict(text, "x", &got); len(problems) > 0 || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: got %+v, %v", text, got, problems)
		}
	})
}

// A Finder without pods reads a spec without argv, and a spec with keys for pods.
func TestSpec_OfAnImage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ir")
	write(t, filepath.Join(dir, "kernel.json"),
		`{"display_name": "R", "language": "R", "metadata": {"ekg": {"image": "r", "imageKernelspec": "ir"}}}`)
	if problems := Check(dir, "", nil); len(problems) > 0 {
		t.Errorf("no argv: %v", problems)
	}
	write(t, filepath.Join(dir, "kernel.json"),
		`{"argv": ["no-such-program", "{connection_file}"], "display_name": "R", "language": "R", "metadata": {"ekg": `+
			`{"image": "r"}}}`)
	if problems := Check(dir, "", nil); len(problems) > 0 {
		t.Errorf("a program of the image: %v", problems)
	}
	write(t, filepath.Join(dir, "kernel.json"),
		"{\"argv\": [\"/bin/true\", \"{connection_file}\"], "+
			"\"metadata\": {\"ekg\": {\n\"image\": \"r\",\n\"image\": \"s\"}}}")
	if _, _, problems := readSpec("ir", dir, ""); len(problems) != 1 || problems[0].Line != 3 ||
		problems[0].Message != "is given twice" {
		t.Errorf("twice: %v", problems)
	}
}

// A spec with problems of Options.Check is not listed, and its problems are reported.
func TestFinder_Check(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "good", "kernel.json"), plain)
	write(t, filepath.Join(dir, "bad", "kernel.json"), plain)
	f, err := Open(Options{Dirs: []string{dir}, Check: func(s Spec) []Problem {
		if s.Name == "bad" {
			return []Problem{{Spec: s.Name, File: s.Dir, Message: "no"}}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if specs := f.List(); len(specs) != 1 || specs[0].Name != "good" || len(f.Problems()) != 1 ||
		f.Problems()[0].Message != "no" {
		t.Errorf("got %v, %v", specs, f.Problems())
	}
}

func TestSpec_Extension_Cull(t *testing.T) {
	spec := Spec{Name: "x", Metadata: json.RawMessage(`{"ekg": {"cull": {"idleTimeout": "1h30m", "maxAge": "0"}}}`)}
	ext, err := spec.Extension()
	if err != nil {
		t.Fatal(err)
	}
	if c := ext.Cull; c.IdleTimeout == nil || time.Duration(*c.IdleTimeout) != 90*time.Minute || c.MaxAge == nil ||
		*c.MaxAge != 0 || c.BusyLimit != nil || c.Warning != nil {
		t.Errorf("got %+v", c)
	}
}
