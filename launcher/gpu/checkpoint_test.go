package gpu

import (
	"strings"
	"testing"
)

func TestParseCommand(t *testing.T) {
	c, err := ParseCommand([]byte(`{"id": "1", "do": "save", "pid": 4711}`))
	if err != nil || c != (Command{ID: "1", Do: Save, PID: 4711}) {
		t.Errorf("got %+v, %v", c, err)
	}
	for line, want := range map[string]string{
		`{`:                                   "unexpected end",
		`{"do": "save", "pid": 2}`:            `"id" has 1 to 100 bytes`,
		`{"id": "1", "do": "save", "pid": 1}`: "not the first one",
		`{"id": "1", "do": "end", "pid": 2}`:  `"do" is "end", not`,
		`{"id": "1", "do": "save"}`:           `one of "pid" and "session"`,
		`{"id": "1", "do": "save", "session": 2, "pid": 2}`:                  `one of "pid" and "session"`,
		`{"id": "1", "do": "save", "session": -2}`:                           "not the first one",
		`{"id": "1", "do": "save", "pid": "2"}`:                              "pid",
		`{"id": "` + strings.Repeat("x", 101) + `", "do": "save", "pid": 2}`: `"id" has 1 to 100 bytes`,
	} {
		if _, err := ParseCommand([]byte(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", line, err, want)
		}
	}
}

func TestParseLine(t *testing.T) {
	a, s, err := ParseLine([]byte(`{"answer": "1", "state": "saved", "seconds": 0.5, "pid": 4711}`))
	if err != nil || a == nil || *a != (Answer{ID: "1", State: CUDASaved, Seconds: 0.5, PID: 4711}) {
		t.Errorf("got %+v, %v", a, err)
	}
	a, s, err = ParseLine([]byte(`{"seconds": 10, "devices": []}`))
	if err != nil || a != nil || s.Seconds != 10 {
		t.Errorf("got %+v, %+v, %v", a, s, err)
	}
	for _, line := range []string{`{`, `{"answer": "1", "state": "gone"}`, `{"answer": "1", "state": "saved", "pid": -1}`,
		`{"answer": "1", "state": "saved", "seconds": -1}`,
		`{"answer": "1", "state": "saved", "failure": {"text": "` + strings.Repeat("x", 1001) + `"}}`} {
		if _, _, err := ParseLine([]byte(line)); err == nil {
			t.Errorf("%s: no error", line)
		}
	}
}
