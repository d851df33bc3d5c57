package notebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// object is a JSON object that keeps the order of its members and the spelling of their values. So a notebook that is
// written again differs only where it was changed.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

// What the package takes apart costs many times its text. Values that it passes on as they are may have more.
const (
	maxMembers  = 100_000 // of an object
	maxElements = 1_000_000
)

// parseObject reads an object. A member that occurs twice has the last value, as in Python.
func parseObject(raw []byte) (*object, error) {
	o, err := viewObject(raw)
	if err != nil {
		return nil, err
	}
	for name, value := range o.values {
		o.values[name] = bytes.Clone(value)
	}
	return o, nil
}

// viewObject is parseObject without copies: the values are parts of raw.
func viewObject(raw []byte) (*object, error) {
	if !json.Valid(raw) {
		return nil, errors.New("it is not JSON")
	}
	rest, is := bytes.CutPrefix(bytes.TrimLeft(raw, jsonSpace), []byte{'{'})
	if !is {
		return nil, errors.New("it is not a JSON object")
	}
	o := &object{values: map[string]json.RawMessage{}}
	for {
		rest = bytes.TrimLeft(rest, jsonSpace+",")
		if rest[0] == '}' {
			return o, nil
		}
		keyEnd, err := jupyter.ValueEnd(rest)
		if err != nil {
			return nil, err
		}
		var name string
		if err := json.Unmarshal(rest[:keyEnd], &name); err != nil {
			return nil, err
		}
		rest = bytes.TrimLeft(rest[keyEnd:], jsonSpace+":")
		end, err := jupyter.ValueEnd(rest)
		if err != nil {
			return nil, err
		}
		if _, known := o.values[name]; !known {
			if len(o.keys) == maxMembers {
				return nil, fmt.Errorf("it has more than %d members", maxMembers)
			}
			o.keys = append(o.keys, name)
		}
		o.values[name] = rest[:end:end]
		rest = rest[end:]
	}
}

// viewList returns the elements of a list, as parts of raw.
func viewList(raw []byte) (all []json.RawMessage, err error) {
	if !json.Valid(raw) || !isList(raw) {
		return nil, errors.New("it is not a JSON list")
	}
	rest := bytes.TrimLeft(raw, jsonSpace)[1:]
	for {
		rest = bytes.TrimLeft(rest, jsonSpace+",")
		if rest[0] == ']' {
			return all, nil
		}
		if len(all) == maxElements {
			return nil, fmt.Errorf("it has more than %d elements", maxElements)
		}
		end, err := jupyter.ValueEnd(rest)
		if err != nil {
			return nil, err
		}
		all = append(all, rest[:end:end])
		rest = rest[end:]
	}
}

const jsonSpace = " \t\r\n"

// newObject returns an object with sorted members, as Jupyter writes them.
func newObject(members map[string]any) *object {
	o := &object{values: map[string]json.RawMessage{}}
	for name, value := range members {
		o.set(name, value)
	}
	return o
}

// set changes a member. One that is new stands before the first that is greater: Jupyter sorts members.
func (o *object) set(name string, value any) {
	if _, known := o.values[name]; !known {
		at := slices.IndexFunc(o.keys, func(k string) bool { return k > name })
		if at < 0 {
			at = len(o.keys)
		}
		o.keys = slices.Insert(o.keys, at, name)
	}
	o.values[name] = encode(value)
}

// text returns a string member, "" if it is missing or another value.
func (o *object) text(name string) (s string) {
	if json.Unmarshal(o.values[name], &s) != nil {
		return ""
	}
	return s
}

// child returns a member that is an object: an empty one if it is missing or another value.
func (o *object) child(name string) *object {
	if c, err := parseObject(o.values[name]); err == nil {
		return c
	}
	return newObject(nil)
}

// MarshalJSON writes the members in their order.
func (o *object) MarshalJSON() ([]byte, error) { return o.append(nil), nil }

func (o *object) append(b []byte) []byte {
	b = append(b, '{')
	for i, name := range o.keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, encode(name)...), ':'), o.values[name]...)
	}
	return append(b, '}')
}

// encode is JSON without the escapes for HTML. Values are the package's own, or JSON that was checked.
func encode(value any) json.RawMessage {
	switch v := value.(type) {
	case json.RawMessage:
		return v
	case *object:
		return v.append(nil)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(fmt.Sprintf("notebook: a value that JSON cannot have: %v", err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}

// isList reports whether a JSON value is a list.
func isList(raw []byte) bool {
	t := bytes.TrimLeft(raw, jsonSpace)
	return len(t) > 0 && t[0] == '['
}
