package jupyter

import "bytes"

// What JSON has in the place of the numbers that only Python's json writes and reads. No encoder escapes these letters,
// so no other text is spelled so.
const (
	NaN         = `"\u004e\u0061\u004e"`
	Infinity    = `"\u0049\u006e\u0066"`
	NegInfinity = `"\u002d\u0049\u006e\u0066"`
)

var notNumbers = []struct{ python, text []byte }{
	{[]byte(`NaN`), []byte(NaN)},
	{[]byte(`Infinity`), []byte(Infinity)},
	{[]byte(`-Infinity`), []byte(NegInfinity)},
}

// HideNaN replaces NaN, Infinity and -Infinity of Python's json by texts that JSON has. Else the text stays as it is.
func HideNaN(data []byte) []byte {
	if !bytes.Contains(data, []byte("NaN")) && !bytes.Contains(data, []byte("Infinity")) {
		return data
	}
	hidden := make([]byte, 0, len(data)+64)
	quoted, escaped := false, false
next:
	for i := 0; i < len(data); i++ {
		b := data[i]
		switch {
		case escaped:
			escaped = false
		case quoted && b == '\\':
			escaped = true
		case b == '"':
			quoted = !quoted
		case !quoted && (b == 'N' || b == 'I' || b == '-'):
			for _, n := range notNumbers {
				if bytes.HasPrefix(data[i:], n.python) {
					hidden = append(hidden, n.text...)
					i += len(n.python) - 1
					continue next
				}
			}
		}
		hidden = append(hidden, b)
	}
	return hidden
}

// ShowNaN is the opposite of HideNaN. A name of a member, and text within another, stay as they are.
func ShowNaN(data []byte) []byte {
	if !bytes.Contains(data, []byte(`"\u00`)) {
		return data
	}
	for _, n := range notNumbers {
		var shown []byte
		rest := data
		for {
			before, after, found := bytes.Cut(rest, n.text)
			if !found {
				break
			}
			shown = append(shown, before...)
			within := bytes.HasSuffix(before, []byte{'\\'})
			if name := bytes.HasPrefix(bytes.TrimLeft(after, " \t\r\n"), []byte{':'}); within || name {
				shown = append(shown, n.text...)
			} else {
				shown = append(shown, n.python...)
			}
			rest = after
		}
		if shown != nil {
			data = append(shown, rest...)
		}
	}
	return data
}
