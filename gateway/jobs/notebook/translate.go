package notebook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/jupyter"
)

// language says how the values of parameters are written in a language. The forms are papermill's.
type language struct {
	comment  func(string) string
	assign   func(name, value string) string
	none     string // "" with noNone: the language has none
	noNone   bool
	yes, no  string
	text     func(string) string
	notReal  [3]string // not a number, infinity, minus infinity
	long     bool      // integers over 32 bits end in L
	list     [3]string // what begins, separates and ends a list
	pairs    func(keys, values []string) string
	mapKey   func(string) string // nil: text
	lineFeed string              // ends an assignment
}

var pythonReal = [3]string{"nan", "inf", "-inf"}

// languages are by the name of a kernelspec or of a language.
var languages = func() map[string]*language {
	hash, slashes := prefixed("# "), prefixed("// ")
	python := &language{comment: hash, assign: between("", " = "), none: "None", yes: "True", no: "False",
		text: quoted(`\"`), notReal: [3]string{"float('nan')", "float('inf')", "float('-inf')"},
		list: [3]string{"[", ", ", "]"}, pairs: pairs("{", "", ": ", "", ", ", "}")}
	r := &language{comment: hash, none: "NULL", yes: "TRUE", no: "FALSE", text: quoted(`\"`), notReal: pythonReal,
		assign: func(name, value string) string { return strings.TrimLeft(name, "_") + " = " + value },
		list:   [3]string{"list(", ", ", ")"}, pairs: pairs("list(", "", " = ", "", ", ", ")")}
	scala := &language{comment: slashes, assign: between("val ", " = "), none: "None", yes: "true", no: "false",
		text: quoted(`\"`), notReal: pythonReal, long: true,
		list: [3]string{"Seq(", ", ", ")"}, pairs: pairs("Map(", "", " -> ", "", ", ", ")")}
	return map[string]*language{
		"python": python, "pysparkkernel": python, "R": r, "sparkrkernel": r, "scala": scala, "sparkkernel": scala,
		"julia": {comment: hash, assign: between("", " = "), none: "nothing", yes: "true", no: "false",
			text: quoted(`\"`), notReal: pythonReal,
			list: [3]string{"[", ", ", "]"}, pairs: pairs("Dict(", "", " => ", "", ", ", ")")},
		"matlab": {comment: prefixed("% "), assign: between("", " = "), none: "NaN", yes: "true", no: "false",
			text: quoted(`""`), notReal: pythonReal, lineFeed: ";",
			list: [3]string{"{", ", ", "}"}, mapKey: matlabKey, pairs: func(keys, values []string) string {
				return "containers.Map({" + strings.Join(keys, ", ") + "}, {" + strings.Join(values, ", ") + "})"
			}},
		".net-csharp": {comment: slashes, noNone: true, yes: "true", no: "false", text: quoted(`\"`), notReal: pythonReal,
			assign: between("var ", " = "), lineFeed: ";", long: true, list: [3]string{"new [] { ", ", ", " }"},
			pairs: pairs("new Dictionary<string,Object>{ ", "{ ", " , ", " }", ", ", " }")},
		".net-fsharp": {comment: func(s string) string { return "(* " + s + " *)" }, assign: between("let ", " = "),
			none: "None", yes: "true", no: "false", text: quoted(`\"`), notReal: pythonReal, long: true,
			list: [3]string{"[ ", "; ", " ]"}, pairs: pairs("[ ", "(", ", ", " :> IComparable)", "; ", " ] |> Map.ofList")},
		".net-powershell": {comment: hash, assign: between("$", " = "), none: "$Null", yes: "$True", no: "$False",
			text: quoted("`\""), notReal: [3]string{"[double]::NaN", "[double]::PositiveInfinity", "[double]::NegativeInfinity"},
			list: [3]string{"@(", ", ", ")"}, pairs: pairs("@{", "", " = ", "", "\n ", "}")},
		"bash": {comment: hash, assign: between("", "="), yes: "true", no: "false", text: shellQuoted, notReal: pythonReal,
			list: [3]string{"(", " ", ")"}},
	}
}()

func prefixed(prefix string) func(string) string {
	return func(s string) string { return prefix + s }
}

func between(before, middle string) func(string, string) string {
	return func(name, value string) string { return before + name + middle + value }
}

func pairs(begin, before, middle, after, separator, end string) func(keys, values []string) string {
	return func(keys, values []string) string {
		list := make([]string, len(keys))
		for i := range keys {
			list[i] = before + keys[i] + middle + values[i] + after
		}
		return begin + strings.Join(list, separator) + end
	}
}

// code returns the source of the cell that assigns the parameters. The error is an *InvalidError.
func code(kernelName, languageName string, parameters []Parameter) (string, error) {
	l := languages[kernelName]
	if l == nil {
		l = languages[languageName]
	}
	if l == nil {
		return "", invalid("parameters cannot be given to the kernel %q: its language %q is not known", kernelName,
			languageName)
	}
	var b strings.Builder
	fmt.Fprintln(&b, l.comment("Parameters"))
	for _, p := range parameters {
		text, err := l.value(p.Value, 0)
		if err != nil {
			return "", invalid("parameter %.80q: %v", p.Name, err)
		}
		fmt.Fprintln(&b, l.assign(p.Name, text)+l.lineFeed)
	}
	return b.String(), nil
}

// maxParameterDepth bounds how deep a parameter's lists and maps are nested.
const maxParameterDepth = 50

// value writes a JSON value, which is depth lists and maps deep.
func (l *language) value(raw json.RawMessage, depth int) (string, error) {
	if depth > maxParameterDepth {
		return "", fmt.Errorf("it is nested more than %d times", maxParameterDepth)
	}
	switch string(raw) {
	case jupyter.NaN:
		return l.notReal[0], nil
	case jupyter.Infinity:
		return l.notReal[1], nil
	case jupyter.NegInfinity:
		return l.notReal[2], nil
	}
	if isList(raw) {
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return "", err
		}
		texts, err := l.values(list, depth+1)
		return l.list[0] + strings.Join(texts, l.list[1]) + l.list[2], err
	}
	if o, err := parseObject(raw); err == nil {
		return l.dictionary(o, depth+1)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	switch v := v.(type) {
	case nil:
		if l.noNone {
			return "", errors.New("the kernel's language has no null")
		}
		return l.none, nil
	case bool:
		if v {
			return l.yes, nil
		}
		return l.no, nil
	case string:
		return l.text(v), nil
	case json.Number:
		return l.number(string(v)), nil
	}
	return "", fmt.Errorf("it is a %T", v)
}

func (l *language) values(list []json.RawMessage, depth int) ([]string, error) {
	texts := make([]string, len(list))
	for i, v := range list {
		text, err := l.value(v, depth)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}

func (l *language) dictionary(o *object, depth int) (string, error) {
	if l.pairs == nil {
		return "", errors.New("the kernel's language has no maps")
	}
	key := l.text
	if l.mapKey != nil {
		key = l.mapKey
	}
	keys, values := make([]string, len(o.keys)), make([]json.RawMessage, len(o.keys))
	for i, name := range o.keys {
		keys[i], values[i] = key(name), o.values[name]
	}
	texts, err := l.values(values, depth)
	if err != nil {
		return "", err
	}
	return l.pairs(keys, texts), nil
}

// number writes a number as Python prints it.
func (l *language) number(n string) string {
	if !strings.ContainsAny(n, ".eE") {
		if n == "-0" {
			n = "0"
		}
		i, err := strconv.ParseInt(n, 10, 64)
		if l.long && (err != nil || i > math.MaxInt32 || i < math.MinInt32) {
			return n + "L"
		}
		return n
	}
	f, _ := strconv.ParseFloat(n, 64) // a number that is out of range is infinite, as in Python
	return l.real(f)
}

func (l *language) real(f float64) string {
	switch {
	case math.IsNaN(f):
		return l.notReal[0]
	case math.IsInf(f, 1):
		return l.notReal[1]
	case math.IsInf(f, -1):
		return l.notReal[2]
	}
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// escaped writes a text in ASCII, with the escapes that most languages share.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\\':
			b.WriteString(`\\`)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r >= ' ' && r < 0x7f:
			b.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}

// quoted returns a function that quotes texts, and writes their quotes as given.
func quoted(quote string) func(string) string {
	return func(s string) string { return `"` + strings.ReplaceAll(escaped(s), `"`, quote) + `"` }
}

func matlabKey(s string) string { return "'" + strings.ReplaceAll(escaped(s), "'", "''") + "'" }

var shellUnsafe = regexp.MustCompile(`[^\w@%+=:,./-]`)

func shellQuoted(s string) string {
	if s != "" && !shellUnsafe.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'"
}
