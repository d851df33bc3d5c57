package notebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
	"github.com/elastic-kernel-gateway/ekg/jupyter/notice"
)

const (
	// maxDepth bounds how deep the values in a notebook are nested. Widgets nest them a few times.
	maxDepth = 200
	// maxContentDepth bounds the values of a message. A notebook has them at most ten levels deeper.
	maxContentDepth = maxDepth - 10
	// maxDigits bounds a number's text. Python reads no longer integer.
	maxDigits = 4300

	maxNameSize     = 1 << 10  // bytes of a display's id, a comm's id, a stream's name, and an error's class
	maxSentence     = 4 << 10  // bytes of a text in a reason, which lists of jobs have
	maxErrorValue   = 64 << 10 // bytes of an error's text in an output
	maxLanguageInfo = 64 << 10 // bytes of what the kernel says of its language
)

// fault returns why Python's json would not read JSON text back, or why it must not reach a decoder: a part of a
// sentence about a text. It is "" for none. It does not look at the syntax.
func fault(data []byte, depth int) string {
	if !utf8.Valid(data) {
		return "it is not UTF-8"
	}
	open, digits, quoted, escaped := 0, 0, false, false
	for _, b := range data {
		if quoted {
			switch {
			case escaped:
				escaped = false
			case b == '\\':
				escaped = true
			case b == '"':
				quoted = false
			}
			continue
		}
		switch b {
		case '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+', '-', '.', 'e', 'E':
			if digits++; digits > maxDigits {
				return fmt.Sprintf("a number has more than %d digits", maxDigits)
			}
			continue
		case '"':
			quoted = true
		case '{', '[':
			if open++; open > depth {
				return fmt.Sprintf("values are nested more than %d times", depth)
			}
		case '}', ']':
			open--
		}
		digits = 0
	}
	return ""
}

// judge reads the content of a message. It is the one place where what a kernel sends enters a notebook: what passes
// can be stored, and be read back by Python's json. Else fault is not "", and says why. Bytes that are not UTF-8 are
// replaced, as for browsers. ok is false for content that no front end shows.
func judge(m *jupyter.Message) (c content, ok bool, why string) {
	if !utf8.Valid(m.Content) {
		m.Content = bytes.ToValidUTF8(m.Content, []byte("\uFFFD"))
	}
	m.Content = jupyter.HideNaN(m.Content)
	if why = fault(m.Content, maxContentDepth); why != "" {
		return c, false, why
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(m.Content, &c); errors.As(err, &syntax) {
		return c, false, "it is not JSON"
	} else if err != nil {
		return c, false, ""
	}
	all, err := viewObject(m.Content)
	if err != nil {
		return c, false, err.Error()
	}
	c.Data, c.Metadata, c.Traceback = all.values["data"], all.values["metadata"], all.values["traceback"]
	c.ExecutionCount = integer(c.ExecutionCount)
	if c.Transient != nil && len(c.Transient.DisplayID) > maxNameSize {
		c.Transient = nil // it is shown, and not updated
	}
	if len(c.CommID) > maxNameSize {
		c.CommID = ""
	}
	c.Name, c.Ename, c.Evalue = short(c.Name, maxNameSize), short(c.Ename, maxNameSize), short(c.Evalue, maxErrorValue)
	return c, true, ""
}

// integer returns a JSON integer, or nil for any other value.
func integer(raw json.RawMessage) json.RawMessage {
	if n := new(int64); json.Unmarshal(raw, &n) != nil || n == nil {
		return nil
	}
	return raw
}

// short bounds a text.
func short(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}

// leftOut writes a notice in the place of what a message would have shown.
func (r *run) leftOut(at int, msgType, why string) {
	r.addText(at, "stderr", fmt.Sprintf("%sA message of the kernel (%.80q) is left out, because no notebook can have "+
		"it: %s.\n", notice.Prefix, msgType, why))
}
