package api

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Both expressions are compiled when they are needed, since most supervisors never need them.

// escapes matches terminal control: CSI sequences (colours), OSC sequences (titles, links) and the two-character ones.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]")
})

// debuggerLine matches what ipykernel's debugger prints when it is loaded, which may be long after the kernel's start:
// the time since then, and a warning about frozen modules.
var debuggerLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\s*\d+\.\d+s - `)
})

// unencrypted is what ipykernel since 7.3 warns of when it starts on TCP, as in every pod.
const unencrypted = "Kernel is running over TCP without encryption."

// ShellStatusFile is the name of a file in which bash runs a kernel's program. When the program was killed, bash says
// so with the file's name.
const ShellStatusFile = "ekg-status.bash"

// WithoutNoise removes the lines of a kernel's output that never explain how it ended.
func WithoutNoise(s string) string {
	if !strings.Contains(s, "s - ") && !strings.Contains(s, unencrypted) && !strings.Contains(s, ShellStatusFile) {
		return s
	}
	var kept strings.Builder
	for line := range strings.Lines(s) {
		if !debuggerLine().MatchString(line) && !strings.Contains(line, unencrypted) &&
			!strings.Contains(line, ShellStatusFile+": line ") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// PlainText removes terminal sequences and control characters from a line, and shortens it to limit bytes.
func PlainText(s string, limit int) string {
	s = strings.ToValidUTF8(s, "")
	if strings.Contains(s, "\x1b") {
		s = escapes().ReplaceAllString(s, "")
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return -1
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
