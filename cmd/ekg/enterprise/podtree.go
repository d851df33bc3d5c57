package enterprise

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds how many values a template may give: aliases of YAML multiply them.
const maxNodes = 20_000

// tree is a value of a rendered template, with its line in the template.
type tree struct {
	line   int
	value  any // a scalar; nil for null
	fields []field
	items  []*tree
	kind   yaml.Kind
}

type field struct {
	key   string
	line  int
	value *tree
}

// field returns the value of a key, or nil.
func (t *tree) field(key string) *tree {
	if t == nil {
		return nil
	}
	for _, f := range t.fields {
		if f.key == key {
			return f.value
		}
	}
	return nil
}

func (t *tree) isNull() bool { return t == nil || t.kind == yaml.ScalarNode && t.value == nil }

// plain returns the value as JSON's types.
func (t *tree) plain() any {
	switch t.kind {
	case yaml.MappingNode:
		m := map[string]any{}
		for _, f := range t.fields {
			if !f.value.isNull() {
				m[f.key] = f.value.plain()
			}
		}
		return m
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range t.items {
			list = append(list, item.plain())
		}
		return list
	}
	return t.value
}

// scalars calls do with each text, and with the path of keys to it. The text is set to the result.
func (t *tree) scalars(path string, do func(path, text string) string) {
	if text, ok := t.value.(string); ok {
		t.value = do(path, text)
	}
	for i := range t.fields {
		f := &t.fields[i]
		f.key = do(path, f.key)
		f.value.scalars(path+"."+f.key, do)
	}
	for _, item := range t.items {
		item.scalars(path, do)
	}
}

// treeReader builds trees.
type treeReader struct {
	lines []int // of the template, by line of the rendered text
	nodes int
}

var yamlLine = regexp.MustCompile(`line ([0-9]+)`)

// readTrees reads the YAML documents of a rendered template.
func readTrees(text string, lines []int) ([]*tree, error) {
	r := treeReader{lines: lines}
	var docs []*tree
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var doc yaml.Node
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("what it gives is not YAML: %s", yamlLine.ReplaceAllStringFunc(
				strings.TrimPrefix(err.Error(), "yaml: "), func(m string) string {
					n, _ := strconv.Atoi(yamlLine.FindStringSubmatch(m)[1])
					return fmt.Sprintf("line %d", r.line(n))
				}))
		}
		if len(doc.Content) == 0 {
			continue
		}
		t, err := r.tree(doc.Content[0])
		if err != nil {
			return nil, err
		}
		if !t.isNull() {
			docs = append(docs, t)
		}
	}
}

// line returns the template's line of a line of the rendered text.
func (r *treeReader) line(rendered int) int {
	for i := min(rendered, len(r.lines)) - 1; i >= 0; i-- {
		if r.lines[i] > 0 {
			return r.lines[i]
		}
	}
	return 1
}

func (r *treeReader) tree(n *yaml.Node) (*tree, error) {
	if r.nodes++; r.nodes > maxNodes {
		return nil, fmt.Errorf("it gives more than %d values", maxNodes)
	}
	t := &tree{line: r.line(n.Line), kind: n.Kind}
	switch n.Kind {
	case yaml.AliasNode:
		return r.tree(n.Alias)
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.Value == "<<" {
				return nil, fmt.Errorf("line %d: this kind of key is not read; write the keys out", r.line(key.Line))
			}
			value, err := r.tree(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			t.fields = append(t.fields, field{key.Value, r.line(key.Line), value})
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			value, err := r.tree(item)
			if err != nil {
				return nil, err
			}
			t.items = append(t.items, value)
		}
	default:
		t.value = scalar(n)
	}
	return t, nil
}

// scalar returns the value that PyYAML, which follows YAML 1.1, gives a scalar.
func scalar(n *yaml.Node) any {
	if n.ShortTag() == "!!str" && n.Style == 0 {
		switch strings.ToLower(n.Value) {
		case "yes", "on":
			return true
		case "no", "off":
			return false
		}
	}
	switch n.ShortTag() {
	case "!!null", "!!bool", "!!int", "!!float":
		var v any
		if n.Decode(&v) == nil {
			return v
		}
	}
	return n.Value
}
