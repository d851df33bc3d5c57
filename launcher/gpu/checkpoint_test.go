package gpu

import (
	"strings"
	"testing"
)

func TestParseCommand(t *testing.T) {
	c, err := ParseCommand([]byte(`{"id": "1", "do": "save", "pid": 4711}`))
	if err != nil || c != (Command{"1", Save, 4711}) {
		t.Errorf("got %+v, %v", c, err)
	}
	for line, want := range map[string]string{
		`{`:                                     "unexpected end",
		`{"do": "save", "pid": 2}`:              `"id" has 1 to 100 bytes`,
		`{"id": "1", "do": "save", "pid": 1}`:   "not the first one",
		`{"id": "1", "do": "end", "pid": 2}`:    `"do" is "end", not`,
		`{"id": "1", "do": "save", "pid": "2"}`: "pid",
		`{"id": "` + strings.Repeat("x", 101) + `", "do": "save", "pid": 2}`: `"id" has 1 to 100 bytes`,
	} {
		if _, err := ParseCommand([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}
