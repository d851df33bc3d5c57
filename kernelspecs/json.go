package kernelspecs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
)

// maxDepth bounds how deeply a kernel.json may be nested. The deepest real ones (pod templates in metadata) have ten
// levels.
const maxDepth = 100

// node is a JSON value with the line it begins on, which encoding/json does not report.
type node struct {
	kind    string // "object", "array", "string", "number", "boolean" or "null"
	line    int
	text    string // a string's value
	raw     []byte // any other value as it stands in the file
	members []member
	items   []*node
}

// member is one key of an object.
type member struct {
	key   string
	line  int
	value *node
}

// member returns the value of key, or nil if n is not an object with that key. The last of repeated keys counts, as in
// Python.
func (n *node) member(key string) *node {
	if n == nil {
		return nil
	}
	for i := len(n.members) - 1; i >= 0; i-- {
		if n.members[i].key == key {
			return n.members[i].value
		}
	}
	return nil
}

// syntaxError is an error in a file's syntax.
type syntaxError struct {
	line int
	msg  string
}

func (e *syntaxError) Error() string { return e.msg }

// parse reads one JSON document. Its error is a *syntaxError.
func parse(data []byte) (*node, error) {
	lines := lineIndex(data)
	// The token reader below accepts some syntax that no Jupyter client accepts, such as a trailing comma.
	var whole json.RawMessage
	if err := json.Unmarshal(data, &whole); err != nil {
		at := len(data)
		var syn *json.SyntaxError
		if errors.As(err, &syn) {
			// Offset is the number of bytes read, including the invalid one.
			at = max(int(syn.Offset)-1, 0)
		}
		return nil, &syntaxError{line: lines.at(at), msg: "not valid JSON: " + err.Error()}
	}
	p := parser{dec: json.NewDecoder(bytes.NewReader(data)), data: data, lines: lines}
	p.dec.UseNumber()
	return p.value(0)
}

type parser struct {
	dec   *json.Decoder
	data  []byte
	lines offsets
}

// value reads the next value.
func (p *parser) value(depth int) (*node, error) {
	tok, err := p.dec.Token()
	if err != nil {
		return nil, p.fail(err)
	}
	return p.rest(tok, depth)
}

// rest reads the rest of the value that begins with tok.
func (p *parser) rest(tok json.Token, depth int) (*node, error) {
	end := int(p.dec.InputOffset())
	n := &node{line: p.lines.at(end - 1)}
	var err error
	switch t := tok.(type) {
	case string:
		n.kind, n.text = "string", t
	case json.Number:
		n.kind, n.raw = "number", []byte(t)
	case bool:
		n.kind, n.raw = "boolean", strconv.AppendBool(nil, t)
	case nil:
		n.kind = "null"
	case json.Delim:
		if depth >= maxDepth {
			return nil, &syntaxError{line: n.line, msg: fmt.Sprintf("nested more than %d levels deep", maxDepth)}
		}
		if t == '{' {
			n.kind, err = "object", p.object(n, depth+1)
		} else {
			n.kind, err = "array", p.array(n, depth+1)
		}
		n.raw = p.data[end-1 : p.dec.InputOffset()]
	}
	return n, err
}

func (p *parser) object(n *node, depth int) error {
	for p.dec.More() {
		tok, err := p.dec.Token()
		if err != nil {
			return p.fail(err)
		}
		m := member{key: tok.(string), line: p.lines.at(int(p.dec.InputOffset()) - 1)} // parse has checked the syntax
		if m.value, err = p.value(depth); err != nil {
			return err
		}
		n.members = append(n.members, m)
	}
	_, err := p.dec.Token()
	return p.fail(err)
}

func (p *parser) array(n *node, depth int) error {
	for p.dec.More() {
		item, err := p.value(depth)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, err := p.dec.Token()
	return p.fail(err)
}

func (p *parser) fail(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &syntaxError{line: p.lines.at(int(p.dec.InputOffset())), msg: "not valid JSON: " + err.Error()}
}

// offsets holds the offsets at which the lines begin, except the first.
type offsets []int

func lineIndex(data []byte) offsets {
	var o offsets
	for i, b := range data {
		if b == '\n' {
			o = append(o, i+1)
		}
	}
	return o
}

// at returns the 1-based line of a byte offset.
func (o offsets) at(offset int) int {
	return 1 + sort.Search(len(o), func(i int) bool { return o[i] > offset })
}
