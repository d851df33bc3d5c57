package notebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// Parameter is a value that is assigned to a variable of the notebook before its cells run.
type Parameter struct {
	Name  string
	Value json.RawMessage
}

// parameterName is the form of names. Anything else would not be a variable in the languages that are known.
var parameterName = regexp.MustCompile(`^[\pL_][\pL\pN_.]*$`)

// maxParameterDepth bounds how deep a parameter's lists and maps are nested.
const maxParameterDepth = 50

// ParseParameters reads parameters from a JSON object, in its order. The error is an *InvalidError. null and no JSON at
// all are no parameters.
func ParseParameters(raw json.RawMessage) ([]Parameter, error) {
	if len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return nil, nil
	}
	if !json.Valid(raw) {
		return nil, invalid("the parameters are not valid JSON")
	}
	o, err := parseObject(raw)
	if err != nil {
		return nil, invalid("the parameters are not a JSON object")
	}
	var list []Parameter
	for _, name := range o.keys {
		if !parameterName.MatchString(name) {
			return nil, invalid("parameter %.80q: a name has letters, digits and underscores, and begins with no digit", name)
		}
		if _, err := parseValue(o.values[name]); err != nil {
			return nil, invalid("parameter %.80q: %v", name, err)
		}
		list = append(list, Parameter{Name: name, Value: o.values[name]})
	}
	return list, nil
}

// A value is nil, bool, string, json.Number, []any, or entries.
type entries []entry

type entry struct {
	key   string
	value any
}

// parseValue decodes a JSON value and keeps the order of its objects.
func parseValue(raw json.RawMessage) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is more than one JSON value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxParameterDepth {
		return nil, fmt.Errorf("it is nested more than %d times", maxParameterDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		list := entries{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, entry{key.(string), v}) // the decoder returns no other kind of key
		}
		_, err = d.Token()
		return list, err
	}
	return t, nil
}
