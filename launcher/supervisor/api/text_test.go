package api

import (
	"regexp"
	"testing"
)

// TestPlainText: sequences and control characters go. A text without them costs no regular expression.
func TestPlainText(t *testing.T) {
	compiled := false
	was := escapes
	escapes = func() *regexp.Regexp { compiled = true; return was() }
	defer func() { escapes = was }()
	for _, tt := range []struct {
		text, want string
		compiles   bool
	}{
		{" a\tb\n\u202e ", "a b", false},
		{"\xffab\u2028", "ab", false},
		{"ünïcödé", "ünïc…", false},
		{"\x1b[31mred\x1b[0m", "red", true},
		{"\x1b]0;title\x07a", "a", true},
		{"\xff\x1b(Bx", "x", true},
	} {
		compiled = false
		if got := PlainText(tt.text, 10); got != tt.want || compiled != tt.compiles {
			t.Errorf("%q: got %q, want %q; a regular expression was used: %v", tt.text, got, tt.want, compiled)
		}
	}
}
