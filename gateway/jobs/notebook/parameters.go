package notebook

import (
	"bytes"
	"encoding/json"
	"regexp"
)

// Parameter is a value that is assigned to a variable of the notebook before its cells run.
type Parameter struct {
	Name  string
	Value json.RawMessage
}

// parameterName is the form of names. Anything else would not be a variable in the languages that are known.
var parameterName = regexp.MustCompile(`^[\pL_][\pL\pN_.]*$`)

// ParseParameters reads parameters from a JSON object, in its order. The error is an *InvalidError. null and no JSON at
// all are no parameters.
func ParseParameters(raw json.RawMessage) ([]Parameter, error) {
	if len(raw) == 0 || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return nil, nil
	}
	if why := fault(raw, maxContentDepth); why != "" {
		return nil, invalid("the parameters: %s", why)
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
		list = append(list, Parameter{Name: name, Value: o.values[name]})
	}
	return list, nil
}
