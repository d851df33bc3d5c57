package client

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// papermillValues is what papermill takes from texts: testdata/parameters.json, which testdata/parameters.py writes. A
// value is JSON, or "error".
type papermillValues struct {
	Typed map[string]string `json:"typed"` // of -p
	YAML  map[string]string `json:"yaml"`  // of -y and -f
}

func readPapermill(t *testing.T) (v papermillValues) {
	t.Helper()
	b, err := os.ReadFile("testdata/parameters.json")
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil || len(v.Typed) < 20 || len(v.YAML) < 60 {
		t.Fatal(err, len(v.Typed), len(v.YAML))
	}
	return v
}

// TestParameters_Papermill: parameters are those that papermill takes from the same texts, in the same order.
func TestParameters_Papermill(t *testing.T) {
	papermill := readPapermill(t)
	for text, want := range papermill.Typed {
		check(t, "-p "+text, want, func() (json.RawMessage, error) { return typed(text) })
	}
	for text, want := range papermill.YAML {
		check(t, "-y "+text, want, func() (json.RawMessage, error) {
			all := &values{}
			if err := all.readYAML([]byte(text)); err != nil {
				return nil, err
			}
			return all.MarshalJSON()
		})
	}
}

func check(t *testing.T, what, want string, value func() (json.RawMessage, error)) {
	t.Helper()
	got, err := value()
	if want == "error" {
		if err == nil {
			t.Errorf("%q is %s", what, got)
		}
		return
	}
	if err != nil || canonical(t, got) != canonical(t, jupyter.HideNaN([]byte(want))) {
		t.Errorf("%q is %s, %v, want %s", what, got, err, want)
	}
}

// canonical returns JSON whose floats have one spelling. Integers and the order of members stay.
func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var b strings.Builder
	for d.More() {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
		if n, is := token.(json.Number); is && strings.ContainsAny(string(n), ".eE") {
			f, _ := pythonFloat(string(n))
			token = f
		}
		text, _ := json.Marshal(token)
		if n, is := token.(json.Number); is {
			text = []byte(n)
		}
		b.WriteString(strings.TrimSpace(string(text)) + " ")
		if delim, is := token.(json.Delim); is {
			b.WriteString(delim.String() + " ")
		}
	}
	return b.String()
}

// TestParameters_Bounds: aliases that repeat themselves end with a reason.
func TestParameters_Bounds(t *testing.T) {
	text := "a0: &a0 [x]\n"
	for i := range 9 {
		name := string(rune('0' + i))
		next := string(rune('1' + i))
		text += "a" + next + ": &a" + next + " [" + strings.Repeat("*a"+name+", ", 9) + "]\n"
	}
	for name, text := range map[string]string{
		"aliases": text, "depth": "a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "a list": "[1]", "a text": "x",
	} {
		if err := new(values).readYAML([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
