package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// The plain scalars of YAML 1.1, as PyYAML has them. papermill reads no timestamps.
var (
	yamlBool  = regexp.MustCompile(`^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$`)
	yamlNull  = regexp.MustCompile(`^(?:~|null|Null|NULL|)$`)
	yamlFloat = regexp.MustCompile(`^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?` +
		`|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	yamlInt = regexp.MustCompile(`^(?:[-+]?0b[0-1_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+` +
		`|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+)$`)
)

// values are parameters in their order. One that is set again keeps its place, as in Python.
type values struct {
	names  []string
	byName map[string]json.RawMessage
}

func (v *values) set(name string, value json.RawMessage) {
	if v.byName == nil {
		v.byName = map[string]json.RawMessage{}
	}
	if _, has := v.byName[name]; !has {
		v.names = append(v.names, name)
	}
	v.byName[name] = value
}

// MarshalJSON writes an object.
func (v *values) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, name := range v.names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, quoted(name)...), ':'), v.byName[name]...)
	}
	return append(b, '}'), nil
}

func quoted(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil { // a string is always JSON
		panic(err)
	}
	return b
}

// readYAML adds the parameters of a YAML or JSON text, as papermill reads it.
func (v *values) readYAML(text []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 {
		return nil // an empty file
	}
	r, root := &yamlReader{}, doc.Content[0] // no alias: what it would name comes before
	if root.Kind != yaml.MappingNode {
		raw, err := r.value(root, 0)
		if err != nil || string(raw) == "null" {
			return err
		}
		return errors.New("it has no object with parameters")
	}
	members, err := r.members(root, 0)
	if err != nil {
		return err
	}
	for _, name := range members.names {
		v.set(name, members.byName[name])
	}
	return nil
}

// yamlReader makes JSON of YAML.
type yamlReader struct{ nodes int }

// Bounds of a YAML text, whose aliases can repeat what they name.
const (
	yamlDepth = 100
	yamlNodes = 1 << 20
)

func (r *yamlReader) value(n *yaml.Node, depth int) (json.RawMessage, error) {
	if r.nodes++; depth > yamlDepth || r.nodes > yamlNodes {
		return nil, errors.New("it is nested too deep, or too large")
	}
	switch n.Kind {
	case yaml.AliasNode:
		return r.value(n.Alias, depth+1)
	case yaml.MappingNode:
		members, err := r.members(n, depth)
		if err != nil {
			return nil, err
		}
		return members.MarshalJSON()
	case yaml.SequenceNode:
		b := []byte{'['}
		for i, item := range n.Content {
			raw, err := r.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, raw...)
		}
		return append(b, ']'), nil
	}
	return scalar(n)
}

// members returns the members of a map. Those that << names come first, and own ones override them.
func (r *yamlReader) members(n *yaml.Node, depth int) (*values, error) {
	own, all := &values{}, &values{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.Value == "<<" && isPlain(key) {
			if err := r.merge(all, value, depth+1); err != nil {
				return nil, err
			}
			continue
		}
		for key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a name is not a text", key.Line)
		}
		raw, err := r.value(value, depth+1)
		if err != nil {
			return nil, err
		}
		name, err := scalar(key)
		if err != nil {
			return nil, err
		}
		own.set(pythonText(name), raw)
	}
	for _, name := range own.names {
		all.set(name, own.byName[name])
	}
	return all, nil
}

// merge adds the members of a map, or of a list of maps whose first ones win.
func (r *yamlReader) merge(all *values, n *yaml.Node, depth int) error {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode {
		for i := len(n.Content) - 1; i >= 0; i-- {
			if err := r.merge(all, n.Content[i], depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	if r.nodes++; n.Kind != yaml.MappingNode || depth > yamlDepth || r.nodes > yamlNodes {
		return fmt.Errorf("line %d: << needs a map", n.Line)
	}
	members, err := r.members(n, depth)
	if err != nil {
		return err
	}
	for _, name := range members.names {
		all.set(name, members.byName[name])
	}
	return nil
}

// isPlain reports whether a scalar has neither quotes nor a tag.
func isPlain(n *yaml.Node) bool {
	return n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) == 0
}

func scalar(n *yaml.Node) (json.RawMessage, error) {
	text, tag := n.Value, n.Tag
	if n.Style&yaml.TaggedStyle == 0 {
		switch {
		case !isPlain(n):
			tag = "!!str"
		case yamlBool.MatchString(text):
			tag = "!!bool"
		case yamlNull.MatchString(text):
			tag = "!!null"
		case yamlFloat.MatchString(text):
			tag = "!!float"
		case yamlInt.MatchString(text):
			tag = "!!int"
		case text == "=":
			tag = "!!value"
		default:
			tag = "!!str"
		}
	}
	switch tag {
	case "!!str", "!":
		return quoted(text), nil
	case "!!null":
		return json.RawMessage("null"), nil
	case "!!bool":
		switch strings.ToLower(text) {
		case "yes", "true", "on":
			return json.RawMessage("true"), nil
		case "no", "false", "off":
			return json.RawMessage("false"), nil
		}
	case "!!int":
		if i, ok := yamlInteger(text); ok {
			return json.RawMessage(i.String()), nil
		}
	case "!!float":
		if f, ok := yamlReal(text); ok {
			return jsonReal(f), nil
		}
	}
	return nil, fmt.Errorf("line %d: papermill does not read the value %.80q", n.Line, text)
}

// yamlInteger reads an integer of any size: decimal, binary, octal with a leading 0, hexadecimal or sexagesimal.
func yamlInteger(text string) (*big.Int, bool) {
	text = strings.ReplaceAll(text, "_", "")
	digits := strings.TrimLeft(text, "+-")
	i, ok := new(big.Int), true
	switch {
	case strings.HasPrefix(digits, "0b"):
		i, ok = i.SetString(digits[2:], 2)
	case strings.HasPrefix(digits, "0x"):
		i, ok = i.SetString(digits[2:], 16)
	case len(digits) > 1 && digits[0] == '0':
		i, ok = i.SetString(digits, 8)
	case strings.Contains(digits, ":"):
		for part := range strings.SplitSeq(digits, ":") {
			next, is := new(big.Int).SetString(part, 10)
			if ok = ok && is; !ok {
				break
			}
			i.Add(i.Mul(i, big.NewInt(60)), next)
		}
	default:
		i, ok = i.SetString(digits, 10)
	}
	if ok && strings.HasPrefix(text, "-") {
		i.Neg(i)
	}
	return i, ok
}

func yamlReal(text string) (float64, bool) {
	text = strings.ToLower(strings.ReplaceAll(text, "_", ""))
	sign, digits := 1.0, strings.TrimLeft(text, "+-")
	if strings.HasPrefix(text, "-") {
		sign = -1
	}
	switch {
	case digits == ".inf":
		return math.Inf(int(sign)), true
	case digits == ".nan":
		return math.NaN(), true
	case strings.Contains(digits, ":"):
		sum := 0.0
		for part := range strings.SplitSeq(digits, ":") {
			f, err := strconv.ParseFloat(part, 64)
			if err != nil {
				return 0, false
			}
			sum = sum*60 + f
		}
		return sign * sum, true
	}
	return pythonFloat(text)
}

// pythonFloat reads a number as Python's float does: one that is out of range is infinite.
func pythonFloat(text string) (float64, bool) {
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil || errors.Is(err, strconv.ErrRange)
}

// jsonReal writes a number that stays a float.
func jsonReal(f float64) json.RawMessage {
	switch {
	case math.IsNaN(f):
		return json.RawMessage(jupyter.NaN)
	case math.IsInf(f, 1):
		return json.RawMessage(jupyter.Infinity)
	case math.IsInf(f, -1):
		return json.RawMessage(jupyter.NegInfinity)
	}
	text := strconv.FormatFloat(f, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return json.RawMessage(text)
}

// Numbers as Python's int and float read them.
var (
	pythonInt  = regexp.MustCompile(`^[-+]?[0-9]+(?:_[0-9]+)*$`)
	pythonReal = regexp.MustCompile(`^[-+]?(?:(?:[0-9]+(?:_[0-9]+)*(?:\.(?:[0-9]+(?:_[0-9]+)*)?)?` +
		`|\.[0-9]+(?:_[0-9]+)*)(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?|(?i:nan|inf|infinity))$`)
)

// maxPythonDigits is how long integers are that Python's int reads.
const maxPythonDigits = 4300

// typed returns the value that papermill takes from a text: True, False, None and numbers have their type.
func typed(text string) (json.RawMessage, error) {
	switch text {
	case "True":
		return json.RawMessage("true"), nil
	case "False":
		return json.RawMessage("false"), nil
	case "None":
		return json.RawMessage("null"), nil
	}
	number := strings.ReplaceAll(strings.TrimSpace(text), "_", "")
	if pythonInt.MatchString(strings.TrimSpace(text)) && len(strings.TrimLeft(number, "+-")) <= maxPythonDigits {
		if i, ok := new(big.Int).SetString(number, 10); ok {
			return json.RawMessage(i.String()), nil
		}
	}
	if pythonReal.MatchString(strings.TrimSpace(text)) {
		if f, ok := pythonFloat(number); ok {
			return jsonReal(f), nil
		}
	}
	return quoted(text), nil
}

// pythonText returns the text that Python makes of a scalar in JSON.
func pythonText(raw json.RawMessage) (text string) {
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		return text
	}
	switch string(raw) {
	case "null":
		return "None"
	case "true":
		return "True"
	case "false":
		return "False"
	}
	return string(raw)
}
