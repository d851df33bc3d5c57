package client

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
)

func TestLogPrinter(t *testing.T) {
	plain := func(text string) object { return object{"data": object{"text/plain": text}} }
	long := strings.Repeat("x", 150)
	for _, tt := range []struct {
		name  string
		lines []string
		want  string
	}{
		{"streams as they are",
			[]string{stdout(1, "a\r"), stdout(2, "b"), logLine(3, "stream", object{"name": "stderr", "text": "c\n"})},
			"a\rbc\n"},
		{"a line that is not ended", []string{stdout(1, "50%"), logLine(2, "execute_result", plain("42")), stdout(3, "x")},
			"50%\n42\nx"},
		{"error", []string{logLine(1, "error",
			object{"ename": "E", "evalue": "v", "traceback": []string{"\x1b[31mTraceback\x1b[0m", "E: v"}})},
			"\x1b[31mTraceback\x1b[0m\nE: v\n"},
		{"error without traceback",
			[]string{logLine(1, "error", object{"ename": "E", "evalue": "v", "traceback": []string{}})}, "E: v\n"},
		{"a figure", []string{logLine(1, "display_data",
			object{"data": object{"text/plain": "<Figure>", "image/png": strings.Repeat("AAAA", 1024) + "\nAA==\n"}})},
			"<Figure> [image/png 3.0 KiB]\n"},
		{"a table", []string{logLine(1, "execute_result",
			object{"data": object{"text/plain": "a b\n1 2", "text/html": "<b>", "application/json": object{"a": 1}}})},
			"a b... [application/json 7 B, text/html 3 B, text/plain 7 B]\n"},
		{"a long line", []string{logLine(1, "execute_result", plain(long))}, long[:100] + "... [text/plain 150 B]\n"},
		{"no text", []string{logLine(1, "display_data", object{"data": object{"image/svg+xml": "<svg/>"}})},
			"[image/svg+xml 6 B]\n"},
		{"nothing", []string{logLine(1, "display_data", object{"data": object{}})}, "[empty]\n"},
		{"input", []string{logLine(1, "input_request", object{"prompt": "Name? ", "password": false})},
			"[waits for input: \"Name? \"]\n"},
		{"not for people", []string{logLine(1, "status", object{"execution_state": "idle"}), logLine(2, "comm_msg", object{}),
			logLine(3, "execute_reply", object{}),
			logLine(4, "execute_input", object{"code": "1"})}, ""},
		{"not what it says", []string{logLine(1, "stream", "x"), logLine(2, "error", 3), logLine(3, "display_data", nil),
			`{"number":4,"header":null}`}, "[empty]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			l := &logReader{out: w, printer: &logPrinter{out: w}}
			for _, line := range tt.lines {
				if err := l.print([]byte(line + "\n")); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil || out.String() != tt.want {
				t.Errorf("got %q, %v, want %q", out.String(), err, tt.want)
			}
		})
	}
}
