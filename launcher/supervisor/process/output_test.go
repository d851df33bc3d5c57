package process

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestTail(t *testing.T) {
	t.Run("is the end of everything written", rapid.MakeCheck(func(t *rapid.T) {
		var (
			got Tail
			all []byte
		)
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 3*tailLimit), 0, 8).Draw(t, "sizes") {
			b := bytes.Repeat([]byte{byte('a' + i)}, n)
			if _, err := got.Write(b); err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		limit := rapid.IntRange(0, 2*tailLimit).Draw(t, "limit")
		want := all[len(all)-min(len(all), limit, tailLimit):]
		if text := got.Text(limit); text != string(want) {
			t.Fatalf("%d bytes, want %d", len(text), len(want))
		}
		if cap(got.buf) > 4*tailLimit {
			t.Fatalf("keeps %d", cap(got.buf))
		}
	}))
	t.Run("begins with a whole line and is text", func(t *testing.T) {
		var got Tail
		_, _ = got.Write([]byte("first line\nsecond l\xffine\nthird ä\n"))
		for limit, want := range map[int]string{100: "first line\nsecond line\nthird ä\n",
			30: "second line\nthird ä\n", 11: "third ä\n", 4: " ä\n", 3: "ä\n", 2: "\n", 0: ""} {
			if text := got.Text(limit); text != want || !utf8.ValidString(text) {
				t.Errorf("%d: got %q, want %q", limit, text, want)
			}
		}
	})
}

func TestLastOutput_Since(t *testing.T) {
	begin := time.Now()
	at := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Second) }
	var stdout, stderr Tail
	stdout.WriteAt([]byte("out\n"), at(2))
	stderr.WriteAt([]byte("err\n"), at(1))
	stderr.WriteAt([]byte("0.00s - Debugger warning: frozen modules\n \x1b[0m\n"), at(9)) // no text
	for since, want := range map[int]string{0: "err\n", 1: "err\n", 2: "out\n", 3: ""} {
		if got := LastOutput(&stdout, &stderr, 100, at(since)); strings.SplitAfter(got, "\n")[0] != want {
			t.Errorf("since %d: got %q, want %q", since, got, want)
		}
	}
	if got := LastOutput(&stdout, &stderr, 100, time.Time{}); !strings.HasPrefix(got, "err\n") {
		t.Errorf("of all: %q", got)
	}
}
