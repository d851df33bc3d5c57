package notebook

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// output is one output: a stream, whose text grows, or any other one as it stands in the file.
type output struct {
	stream string // its name, "" for others
	text   []byte
	other  *object
}

// outputCost is what an output costs besides its text, in bytes: a million outputs of one byte are not small.
const outputCost = 128

func (o *output) size() int64 {
	n := int64(outputCost + len(o.stream) + len(o.text))
	if o.other != nil {
		for _, v := range o.other.values {
			n += int64(len(v))
		}
	}
	return n
}

// append appends the output as files have it.
func (o *output) append(b []byte) []byte {
	if o.other != nil {
		return o.other.append(b)
	}
	b = append(append(append(b, `{"name":`...), encode(o.stream)...), `,"output_type":"stream","text":`...)
	return append(appendLines(b, strings.ToValidUTF8(string(o.text), "\uFFFD")), '}')
}

// batch is how much text appendLines encodes at once: a line has a header in memory, which is larger than a short line.
const batch = 64 << 10

// appendLines appends a text as a list of its lines.
func appendLines(b []byte, text string) []byte {
	b = append(b, '[')
	for first := true; text != ""; first = false {
		if !first {
			b = append(b, ',')
		}
		end := len(text)
		if end > batch {
			end = endOfLine(text, batch)
		}
		list := encode(split(text[:end]))
		b, text = append(b, list[1:len(list)-1]...), text[end:]
	}
	return append(b, ']')
}

func appendOutputs(b []byte, list []*output) []byte {
	b = append(b, '[')
	for i, out := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = out.append(b)
	}
	return append(b, ']')
}

func encodeOutputs(list []*output) json.RawMessage { return appendOutputs(nil, list) }

// parseOutputs reads the outputs of a cell. They are parts of raw.
func parseOutputs(raw json.RawMessage) (all []*output) {
	list, err := viewList(raw)
	if err != nil {
		return nil
	}
	for _, r := range list {
		obj, err := viewObject(r)
		if err != nil {
			continue
		}
		out := &output{other: obj}
		if text, err := joined(obj.values["text"]); err == nil && obj.text("output_type") == "stream" {
			out = &output{stream: obj.text("name"), text: []byte(text)}
		}
		all = append(all, out)
	}
	return all
}

// appendOutput appends an output. Text is appended to the last output if that is the same stream: a file has one output
// for consecutive text.
func appendOutput(list []*output, next *output) []*output {
	if n := len(list); n > 0 && next.other == nil && list[n-1].other == nil && list[n-1].stream == next.stream {
		list[n-1].text = append(list[n-1].text, next.text...)
		return list
	}
	return append(list, next)
}

// bundle returns a bundle of media types as files have it: some texts are lists of lines.
func bundle(raw json.RawMessage) json.RawMessage {
	in, err := viewObject(raw)
	if err != nil {
		return json.RawMessage("{}")
	}
	slices.Sort(in.keys) // as Jupyter does
	b := append(make([]byte, 0, len(raw)+len(raw)/8), '{')
	for i, name := range in.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, encode(name)...), ':')
		var text string
		value := in.values[name]
		if isSplit(name) && bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil {
			b = appendLines(b, text)
		} else {
			b = append(b, value...)
		}
	}
	return append(b, '}')
}

// isSplit reports whether Jupyter writes the texts of a media type as lists of lines.
func isSplit(mediaType string) bool {
	return strings.HasPrefix(mediaType, "text/") || mediaType == "application/javascript" || mediaType == "image/svg+xml"
}

// objectOr returns a copy of an object, or an empty one for another value.
func objectOr(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) || bytes.TrimLeft(raw, jsonSpace)[0] != '{' {
		return json.RawMessage("{}")
	}
	return bytes.Clone(raw)
}
