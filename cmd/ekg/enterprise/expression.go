package enterprise

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// errNotUnderstood says that an expression of Jinja2 is beyond the subset that is read here.
var errNotUnderstood = errors.New("is an expression that ekg does not read")

// maxTokens bounds an expression: parentheses in parentheses use the stack.
const maxTokens = 500

// tval is a value of an expression.
type tval struct {
	kind tkind
	v    any    // of a constant: string, int64, float64, bool, nil, []any, map[string]any
	name string // of a runtime value: the variable
	list bool   // a runtime value is a list
	why  string // of an opaque value in a rendering: what is the matter
}

type tkind int

const (
	tUndefined tkind = iota
	tConstant
	tRuntime // known only when a kernel starts
	tOpaque  // ekg cannot say anything about it
)

func constant(v any) tval { return tval{kind: tConstant, v: v} }

// truth returns the value as a condition. ok is false if it cannot be known.
func (v tval) truth() (yes, ok bool) {
	switch v.kind {
	case tUndefined:
		return false, true
	case tRuntime:
		return true, true // none of them is empty
	case tOpaque:
		return false, false
	}
	switch c := v.v.(type) {
	case nil:
		return false, true
	case bool:
		return c, true
	case string:
		return c != "", true
	case int64:
		return c != 0, true
	case float64:
		return c != 0, true
	case []any:
		return len(c) > 0, true
	case map[string]any:
		return len(c) > 0, true
	}
	return false, false
}

// text returns a constant as the template prints it.
func (v tval) text() string {
	switch c := v.v.(type) {
	case nil:
		return "None"
	case string:
		return c
	case bool:
		if c {
			return "True"
		}
		return "False"
	}
	return flowText(v.v)
}

// flowText returns a value as JSON, which is YAML in flow style.
func flowText(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return ""
	}
	return strings.TrimSpace(b.String())
}

// tokens of an expression: names, numbers, texts, operators.
var expressionToken = regexp.MustCompile(`^(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?:\.[0-9]+)?|'[^'\\]*'|"[^"\\]*"|==|!=|` +
	`[|(),\[\]])`)

// tokenize splits an expression. ok is false if a part of it is not a token.
func tokenize(text string) (tokens []string, ok bool) {
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		t := expressionToken.FindString(text)
		if t == "" {
			return nil, false
		}
		tokens = append(tokens, t)
		text = text[len(t):]
	}
	return tokens, true
}

// evaluator evaluates one expression while it parses it.
type evaluator struct {
	tokens []string
	vars   map[string]tval
}

// evaluate returns the value of an expression. The error is errNotUnderstood.
func evaluate(text string, vars map[string]tval) (tval, error) {
	tokens, ok := tokenize(text)
	if !ok || len(tokens) == 0 || len(tokens) > maxTokens {
		return tval{kind: tOpaque}, errNotUnderstood
	}
	e := evaluator{tokens: tokens, vars: vars}
	v, err := e.or()
	if err == nil && len(e.tokens) > 0 {
		err = errNotUnderstood
	}
	if err != nil {
		return tval{kind: tOpaque}, err
	}
	return v, nil
}

// take removes the next token if it is this one.
func (e *evaluator) take(token string) bool {
	if len(e.tokens) == 0 || e.tokens[0] != token {
		return false
	}
	e.tokens = e.tokens[1:]
	return true
}

func (e *evaluator) next() string {
	if len(e.tokens) == 0 {
		return ""
	}
	t := e.tokens[0]
	e.tokens = e.tokens[1:]
	return t
}

func (e *evaluator) or() (tval, error)  { return e.chain("or", true, e.and) }
func (e *evaluator) and() (tval, error) { return e.chain("and", false, e.not) }

// chain evaluates operands of an operator. As in Python, the first operand that decides is the value.
func (e *evaluator) chain(operator string, decides bool, operand func() (tval, error)) (tval, error) {
	v, err := operand()
	for err == nil && e.take(operator) {
		var right tval
		if right, err = operand(); err != nil {
			break
		}
		switch yes, ok := v.truth(); {
		case !ok:
			if y, known := right.truth(); !known || y != decides {
				v = tval{kind: tOpaque}
			} else {
				v = right
			}
		case yes != decides:
			v = right
		}
	}
	return v, err
}

func (e *evaluator) not() (tval, error) {
	if !e.take("not") {
		return e.comparison()
	}
	v, err := e.not()
	if err != nil {
		return v, err
	}
	yes, ok := v.truth()
	if !ok {
		return tval{kind: tOpaque}, nil
	}
	return constant(!yes), nil
}

func (e *evaluator) comparison() (tval, error) {
	v, err := e.filtered()
	if err != nil {
		return v, err
	}
	switch {
	case e.take("=="):
		return e.equal(v, true)
	case e.take("!="):
		return e.equal(v, false)
	case e.take("is"):
		return e.test(v)
	}
	return v, nil
}

// equal compares with the next operand.
func (e *evaluator) equal(v tval, want bool) (tval, error) {
	right, err := e.filtered()
	if err != nil {
		return v, err
	}
	if v.kind == tUndefined || right.kind == tUndefined {
		return constant((v.kind == right.kind) == want), nil
	}
	if v.kind != tConstant || right.kind != tConstant {
		return tval{kind: tOpaque}, nil
	}
	return constant((flowText(v.v) == flowText(right.v)) == want), nil
}

// test applies a test after "is".
func (e *evaluator) test(v tval) (tval, error) {
	negated := e.take("not")
	name := e.next()
	if v.kind == tOpaque {
		return v, nil
	}
	switch name {
	case "defined":
		return constant((v.kind != tUndefined) != negated), nil
	case "undefined":
		return constant((v.kind == tUndefined) != negated), nil
	case "none":
		return constant((v.kind == tConstant && v.v == nil) != negated), nil
	}
	return v, errNotUnderstood
}

func (e *evaluator) filtered() (tval, error) {
	v, err := e.primary()
	for err == nil && e.take("|") {
		name := e.next()
		var args []tval
		if e.take("(") {
			for !e.take(")") {
				var arg tval
				if arg, err = e.or(); err != nil {
					return v, err
				}
				args = append(args, arg)
				if !e.take(",") && (len(e.tokens) == 0 || e.tokens[0] != ")") {
					return v, errNotUnderstood
				}
			}
		}
		v, err = filter(name, v, args)
	}
	return v, err
}

func (e *evaluator) primary() (tval, error) {
	t := e.next()
	switch {
	case t == "":
		return tval{}, errNotUnderstood
	case t == "(":
		v, err := e.or()
		if err == nil && !e.take(")") {
			err = errNotUnderstood
		}
		return v, err
	case t == "[":
		return e.list()
	case t[0] == '\'' || t[0] == '"':
		return constant(t[1 : len(t)-1]), nil
	case '0' <= t[0] && t[0] <= '9':
		if n, err := strconv.ParseInt(t, 10, 64); err == nil {
			return constant(n), nil
		}
		f, err := strconv.ParseFloat(t, 64)
		return constant(f), err
	case t == "true" || t == "True":
		return constant(true), nil
	case t == "false" || t == "False":
		return constant(false), nil
	case t == "none" || t == "None":
		return constant(nil), nil
	case !variablePattern.MatchString(t) || t == "if" || t == "in" || t == "loop":
		return tval{}, errNotUnderstood
	}
	return e.vars[t], nil
}

func (e *evaluator) list() (tval, error) {
	items := []any{}
	for !e.take("]") {
		v, err := e.or()
		if err != nil {
			return v, err
		}
		if v.kind != tConstant || !e.take(",") && (len(e.tokens) == 0 || e.tokens[0] != "]") {
			return v, errNotUnderstood
		}
		items = append(items, v.v)
	}
	return constant(items), nil
}

// filter applies a filter.
func filter(name string, v tval, args []tval) (tval, error) {
	if name == "default" || name == "d" {
		if len(args) == 0 || len(args) > 2 {
			return v, errNotUnderstood
		}
		empty := v.kind == tUndefined
		if len(args) == 2 {
			yes, ok := v.truth()
			if !ok {
				return tval{kind: tOpaque}, nil
			}
			empty = empty || !yes
		}
		if empty {
			return args[0], nil
		}
		return v, nil
	}
	if len(args) > 0 {
		return v, errNotUnderstood
	}
	text, isText := v.v.(string)
	switch name {
	case "yaml_safe", "tojson":
		switch v.kind {
		case tConstant:
			return constant(flowText(v.v)), nil
		case tUndefined:
			return tval{kind: tOpaque}, nil // EG's launcher fails
		}
		return v, nil
	case "int":
		switch {
		case v.kind == tUndefined:
			return constant(int64(0)), nil
		case v.kind != tConstant:
			return v, nil
		case isText:
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return v, errNotUnderstood
			}
			return constant(n), nil
		}
		return v, nil
	case "string", "trim":
		if v.kind == tConstant {
			return constant(strings.TrimSpace(v.text())), nil
		}
		return v, nil
	case "lower", "upper":
		if v.kind == tUndefined {
			return v, nil
		}
		if v.kind != tConstant {
			return v, fmt.Errorf("changes a value that is not known before a kernel starts: %w", errNotUnderstood)
		}
		if name == "lower" {
			return constant(strings.ToLower(v.text())), nil
		}
		return constant(strings.ToUpper(v.text())), nil
	}
	return v, errNotUnderstood
}

// variablePattern matches a name in an expression.
var variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
