package notebook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// object is a JSON object that keeps the order of its members and the spelling of their values. So a notebook that is
// written again differs only where it was changed.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

// parseObject reads an object. A member that occurs twice has the last value, as in Python.
func parseObject(raw []byte) (*object, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("it is not a JSON object")
	}
	o := &object{values: map[string]json.RawMessage{}}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		name := key.(string) // the decoder returns no other kind of key
		if _, known := o.values[name]; !known {
			o.keys = append(o.keys, name)
		}
		o.values[name] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	return o, nil
}

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
	t := bytes.TrimLeft(raw, " \t\r\n")
	return len(t) > 0 && t[0] == '['
}
