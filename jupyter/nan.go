package jupyter

import "bytes"

// What JSON has in the place of the numbers that only Python's json writes and reads. No encoder escapes these letters,
// so no other text is spelled so.
const (
	NaN         = `"\u004e\u0061\u004e"`
	Infinity    = `"\u0049\u006e\u0066"`
	NegInfinity = `"\u002d\u0049\u006e\u0066"`
)

// notNumber is one of them: as Python's json writes it, and as a text.
type notNumber struct{ python, text []byte }

var notNumbers = []notNumber{
	{[]byte(`NaN`), []byte(NaN)},
	{[]byte(`Infinity`), []byte(Infinity)},
	{[]byte(`-Infinity`), []byte(NegInfinity)},
}

// HideNaN replaces NaN, Infinity and -Infinity of Python's json by texts that JSON has. Else the text stays as it is.
func HideNaN(data []byte) []byte {
	hidden, _ := replaceNaN(data, func(n *notNumber) []byte { return n.text })
	return hidden
}

var null = []byte("null")

// NullNaN replaces NaN, Infinity and -Infinity by null, for readers of JSON. It reports false, and returns the same
// text, if there is none.
func NullNaN(data []byte) (_ []byte, replaced bool) {
	return replaceNaN(data, func(*notNumber) []byte { return null })
}

// HasNaN reports whether JSON text has NaN, Infinity or -Infinity.
func HasNaN(data []byte) bool {
	if !mayHaveNaN(data) {
		return false
	}
	_, found := nextNaN(data, 0)
	return found != nil
}

// mayHaveNaN costs next to nothing. Most messages end here.
func mayHaveNaN(data []byte) bool {
	return bytes.Contains(data, notNumbers[0].python) || bytes.Contains(data, notNumbers[1].python)
}

// nextNaN returns the next of them from an index on that is not within a string, and where it begins. It is nil if
// there is none.
func nextNaN(data []byte, from int) (int, *notNumber) {
	for i := from; i < len(data); i++ {
		switch data[i] {
		case '"':
			end, err := skipString(data, i)
			if err != nil {
				return 0, nil // it is no JSON
			}
			i = end - 1
		case 'N', 'I', '-':
			for k := range notNumbers {
				if bytes.HasPrefix(data[i:], notNumbers[k].python) {
					return i, &notNumbers[k]
				}
			}
		}
	}
	return 0, nil
}

func replaceNaN(data []byte, by func(*notNumber) []byte) (_ []byte, replaced bool) {
	if !mayHaveNaN(data) {
		return data, false
	}
	begin, found := nextNaN(data, 0)
	if found == nil {
		return data, false
	}
	text, from := make([]byte, 0, len(data)+64), 0
	for ; found != nil; begin, found = nextNaN(data, from) {
		text = append(append(text, data[from:begin]...), by(found)...)
		from = begin + len(found.python)
	}
	return append(text, data[from:]...), true
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
