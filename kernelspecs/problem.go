package kernelspecs

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Problem is an error in a kernelspec, or in a directory of kernelspecs, with its place.
type Problem struct {
	Spec    string `json:"-"`       // name of the spec; "" if the problem concerns no single spec
	File    string `json:"file"`    // absolute path of the file or directory; "" if the problem is a setting's
	Line    int    `json:"line"`    // 1-based line in File; 0 if unknown
	Key     string `json:"key"`     // in kernel.json, like env.PATH or argv[0]; "" if it concerns no single key
	Message string `json:"message"` // what is wrong, in lower case
	Warning bool   `json:"warning"` // the spec is usable, and a part of it has no effect
}

// String returns file:line: key: message, without unknown parts. A warning has "warning: " before the key. The text is
// Printable, because it contains keys that the author of the file has chosen, and may be printed on a terminal.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	return Printable(b.String())
}

// Printable returns a text in which line breaks and other characters that do not print are written as in a Go string:
// \n, \x1b.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		switch _, size := utf8.DecodeRuneInString(text[i:]); {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
