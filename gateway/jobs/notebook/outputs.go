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

func (o *output) encoded() json.RawMessage {
	if o.other != nil {
		return o.other.append(nil)
	}
	text := strings.ToValidUTF8(string(o.text), "\uFFFD")
	return encode(map[string]any{"output_type": "stream", "name": o.stream, "text": split(text)})
}

func encodeOutputs(list []*output) json.RawMessage {
	b := []byte{'['}
	for i, out := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, out.encoded()...)
	}
	return append(b, ']')
}

// parseOutputs reads the outputs of a cell.
func parseOutputs(raw json.RawMessage) (all []*output) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, r := range list {
		obj, err := parseObject(r)
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
	in, err := parseObject(raw)
	if err != nil {
		return json.RawMessage("{}")
	}
	slices.Sort(in.keys) // as Jupyter does
	for name, value := range in.values {
		var text string
		if isSplit(name) && bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil {
			in.values[name] = encode(split(text))
		}
	}
	return in.append(nil)
}

// isSplit reports whether Jupyter writes the texts of a media type as lists of lines.
func isSplit(mediaType string) bool {
	return strings.HasPrefix(mediaType, "text/") || mediaType == "application/javascript" || mediaType == "image/svg+xml"
}

func objectOr(raw json.RawMessage) json.RawMessage {
	if _, err := parseObject(raw); err != nil {
		return json.RawMessage("{}")
	}
	return raw
}
