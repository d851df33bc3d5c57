package client

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// shortText is how much of a display's text is printed, in characters.
const shortText = 100

// logMessage holds the fields of a log line that are printed.
type logMessage struct {
	Number uint64 `json:"number"`
	Lost   uint64 `json:"lost"`
	Header struct {
		MsgType string `json:"msg_type"`
	} `json:"header"`
	Content json.RawMessage `json:"content"`
}

// logPrinter prints a kernel's output for people. Streams are printed unchanged, so that progress bars and colours
// work. Everything else has its own lines.
type logPrinter struct {
	out     *bufio.Writer
	midLine bool // the last stream did not end with a newline
}

// print prints a message of interest to people. Any program may have written the message, so a content that does not
// match its type is ignored.
func (p *logPrinter) print(m *logMessage) error {
	switch m.Header.MsgType {
	case "stream":
		var c struct{ Text string }
		if json.Unmarshal(m.Content, &c) == nil && c.Text != "" {
			p.midLine = !strings.HasSuffix(c.Text, "\n")
			_, err := p.out.WriteString(c.Text)
			return err
		}
	case "error":
		var c struct {
			Ename, Evalue string
			Traceback     []string
		}
		if json.Unmarshal(m.Content, &c) == nil {
			if len(c.Traceback) == 0 {
				c.Traceback = []string{c.Ename + ": " + c.Evalue}
			}
			return p.line(strings.Join(c.Traceback, "\n"))
		}
	case "execute_result", "display_data", "update_display_data":
		var c struct{ Data map[string]json.RawMessage }
		if json.Unmarshal(m.Content, &c) == nil {
			return p.line(displayLine(c.Data))
		}
	case "input_request":
		var c struct{ Prompt string }
		if json.Unmarshal(m.Content, &c) == nil {
			return p.line(fmt.Sprintf("[waits for input: %q]", c.Prompt))
		}
	}
	return nil
}

// line prints a text on its own lines.
func (p *logPrinter) line(text string) error {
	if p.midLine {
		p.midLine = false
		if err := p.out.WriteByte('\n'); err != nil {
			return err
		}
	}
	_, err := p.out.WriteString(strings.TrimSuffix(text, "\n") + "\n")
	return err
}

// displayLine returns a display as one line: its shortened text, and its other formats in brackets.
func displayLine(data map[string]json.RawMessage) string {
	var plain string
	if json.Unmarshal(data["text/plain"], &plain) != nil {
		plain = ""
	}
	shown, all := shorten(plain)
	var kinds []string
	for _, mime := range slices.Sorted(maps.Keys(data)) {
		if mime == "text/plain" && all {
			continue
		}
		kinds = append(kinds, mime+" "+formatBytes(dataSize(mime, data[mime])))
	}
	switch {
	case len(kinds) == 0 && shown == "":
		return "[empty]"
	case len(kinds) == 0:
		return shown
	case shown == "":
		return "[" + strings.Join(kinds, ", ") + "]"
	}
	return shown + " [" + strings.Join(kinds, ", ") + "]"
}

// shorten returns the beginning of a text, and whether that is the whole text.
func shorten(text string) (short string, all bool) {
	text = strings.TrimRight(text, "\n")
	short, _, more := strings.Cut(text, "\n")
	if utf8.RuneCountInString(short) > shortText {
		short, more = string([]rune(short)[:shortText]), true
	}
	if more {
		short += "..."
	}
	return short, !more
}

// dataSize returns the size of a display's data in bytes. Images and other binary data are decoded from base64.
func dataSize(mime string, raw json.RawMessage) int {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return len(raw)
	}
	kind, _, _ := strings.Cut(mime, "/")
	if mime == "image/svg+xml" || mime != "application/pdf" && kind != "image" && kind != "audio" && kind != "video" {
		return len(text)
	}
	n := len(text) - strings.Count(text, "\n")
	return n*3/4 - strings.Count(text[max(0, len(text)-3):], "=")
}

func formatBytes(n int) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
