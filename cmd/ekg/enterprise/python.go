package enterprise

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	// assignment matches c.Class.trait = at the beginning of a line.
	assignment = regexp.MustCompile(`^c\.([A-Za-z_]\w*\.[A-Za-z_]\w*)[ \t]*(=|[.+|[])`)
	// harmless matches lines of each generated configuration.
	harmless = regexp.MustCompile(`^(c\s*=\s*get_config\(\)|import [\w., ]+|from [\w.]+ import [\w, ]+)\s*(#.*)?$`)
	number   = regexp.MustCompile(`^[+-]?(\d[\d_]*(\.\d*)?([eE][+-]?\d+)?|\.\d+)`)
	word     = regexp.MustCompile(`^[A-Za-z_]\w*`)
)

var errNotConstant = errors.New("the value is not a constant; Python is not executed")

// python reads assignments of constants. Everything else is reported with its line, and without its contents.
func (im *Import) python(text, name string) {
	p := &scanner{text: text}
	for {
		p.blank()
		if p.pos == len(p.text) {
			return
		}
		place := fmt.Sprintf("%s:%d", name, 1+strings.Count(p.text[:p.pos], "\n"))
		line, _, _ := strings.Cut(p.text[p.pos:], "\n")
		indented := p.pos > 0 && p.text[p.pos-1] != '\n'
		m := assignment.FindStringSubmatch(line)
		switch {
		case m != nil && indented:
			im.unreadable(place, "%s stands in a block, which may not be executed", m[1])
		case m != nil && m[2] == "=" && !strings.HasPrefix(line[len(m[0]):], "="):
			p.pos += len(m[0])
			v, err := p.statement()
			if err == nil {
				im.assign(m[1], place, inFile, v)
				continue
			}
			im.unreadable(place, "%s: %v", m[1], err)
		case m != nil:
			im.unreadable(place, "%s is changed, and not assigned a constant", m[1])
		case strings.ContainsAny(line[:1], `'"`):
			if _, err := p.literal(0); err == nil && p.endOfLine() {
				continue // a text that only documents
			}
			im.unreadable(place, "is not an assignment of a constant")
		case !harmless.MatchString(strings.TrimRight(line, "\r")):
			im.unreadable(place, "is not an assignment of a constant")
		}
		p.skipStatement(line)
	}
}

// skipStatement goes to the end of the line, or to that of a text of several lines that begins in it. What looks like
// an assignment in such a text is none.
func (p *scanner) skipStatement(line string) {
	for _, quote := range []string{`"""`, `'''`} {
		if strings.Count(line, quote)%2 == 0 {
			continue
		}
		begin := strings.Index(p.rest(), quote)
		if begin < 0 {
			continue // the scanner is behind it
		}
		p.pos += begin + len(quote)
		if end := strings.Index(p.rest(), quote); end >= 0 {
			p.pos += end + len(quote)
		} else {
			p.pos = len(p.text)
		}
	}
	p.skipLine()
}

// parseLiteral reads a text that is one Python constant.
func parseLiteral(text string) (value, error) {
	p := &scanner{text: text}
	return p.statement()
}

// scanner reads constants of Python: texts, numbers, True, False, None, and lists, tuples and sets of them.
type scanner struct {
	text string
	pos  int
}

// rest returns what is not read.
func (p *scanner) rest() string { return p.text[p.pos:] }

// blank skips white space and comments.
func (p *scanner) blank() {
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case strings.IndexByte(" \t\r\n\f", c) >= 0:
			p.pos++
		case c == '#':
			p.skipLine()
		default:
			return
		}
	}
}

// skipLine goes to the end of the line, or of the text.
func (p *scanner) skipLine() {
	if n := strings.IndexByte(p.rest(), '\n'); n >= 0 {
		p.pos += n
	} else {
		p.pos = len(p.text)
	}
}

// endOfLine skips spaces and a comment. It reports whether the statement ends there.
func (p *scanner) endOfLine() bool {
	p.pos += len(p.rest()) - len(strings.TrimLeft(p.rest(), " \t\r"))
	return p.rest() == "" || strings.IndexByte("\n#", p.rest()[0]) >= 0
}

// statement reads the constant after the equals sign, to the end of the line.
func (p *scanner) statement() (value, error) {
	p.pos += len(p.rest()) - len(strings.TrimLeft(p.rest(), " \t"))
	v, err := p.literal(0)
	if err == nil && !p.endOfLine() {
		err = errNotConstant
	}
	return v, err
}

// maxDepth bounds how deep brackets are nested.
const maxDepth = 10

func (p *scanner) literal(depth int) (value, error) {
	rest := p.rest()
	switch {
	case rest == "" || depth > maxDepth:
		return value{}, errNotConstant
	case strings.IndexByte("[({", rest[0]) >= 0:
		return p.collection(depth)
	}
	if v, ok, err := p.texts(depth > 0); ok || err != nil {
		return v, err
	}
	if n := number.FindString(rest); n != "" {
		p.pos += len(n)
		return value{texts: []string{strings.ReplaceAll(n, "_", "")}}, nil
	}
	switch w := word.FindString(rest); w {
	case "True", "False":
		p.pos += len(w)
		return value{texts: []string{strings.ToLower(w)}}, nil
	case "None":
		p.pos += len(w)
		return value{none: true, texts: []string{""}}, nil
	case "set":
		if strings.HasPrefix(rest, "set()") {
			p.pos += len("set()")
			return value{list: true}, nil
		}
	}
	return value{}, errNotConstant
}

// collection reads a list, a tuple, a set, or one constant in parentheses.
func (p *scanner) collection(depth int) (value, error) {
	end := map[byte]byte{'[': ']', '(': ')', '{': '}'}[p.text[p.pos]]
	v := value{list: true}
	p.pos++
	commas := 0
	for {
		p.blank()
		if p.rest() != "" && p.rest()[0] == end {
			p.pos++
			if end == ')' && commas == 0 && len(v.texts) == 1 {
				v.list = false
			}
			return v, nil
		}
		item, err := p.literal(depth + 1)
		if err != nil {
			return v, err
		}
		if item.list || item.none {
			return v, errors.New("the value is not a list of texts and numbers")
		}
		v.texts = append(v.texts, item.texts...)
		p.blank()
		switch {
		case p.rest() == "":
			return v, errors.New("a bracket is not closed")
		case p.rest()[0] == ',':
			commas++
			p.pos++
		case p.rest()[0] != end:
			return v, errNotConstant // an operator, or a mapping
		}
	}
}

// texts reads texts beside each other, which Python joins, in brackets also over lines. ok is false if there is none.
func (p *scanner) texts(brackets bool) (v value, ok bool, err error) {
	var b strings.Builder
	for {
		m := textStart.FindString(p.rest())
		if m == "" {
			return value{texts: []string{b.String()}}, ok, nil
		}
		prefix := strings.ToLower(strings.TrimRight(m, `'"`))
		if strings.ContainsAny(prefix, "fb") {
			return v, true, errNotConstant
		}
		p.pos += len(m)
		quote := m[len(prefix):]
		if err := p.quoted(&b, quote, prefix == "r"); err != nil {
			return v, true, err
		}
		if ok = true; brackets {
			p.blank()
			continue
		}
		p.pos += len(p.rest()) - len(strings.TrimLeft(p.rest(), " \t"))
	}
}

var textStart = regexp.MustCompile(`^[rRuUbBfF]{0,2}("""|'''|"|')`)

// quoted reads up to the closing quote.
func (p *scanner) quoted(b *strings.Builder, quote string, raw bool) error {
	for {
		rest := p.rest()
		switch {
		case rest == "" || rest[0] == '\n' && len(quote) == 1:
			return errors.New("a text is not closed")
		case strings.HasPrefix(rest, quote):
			p.pos += len(quote)
			return nil
		case rest[0] != '\\':
			b.WriteByte(rest[0])
			p.pos++
		case raw && len(rest) > 1:
			b.WriteString(rest[:2])
			p.pos += 2
		case len(rest) > 1 && rest[1] == '\n':
			p.pos += 2
		default:
			q := quote[0]
			r, _, tail, err := strconv.UnquoteChar(rest, q)
			if len(rest) > 1 && strings.IndexByte(`'"`, rest[1]) >= 0 {
				r, tail, err = rune(rest[1]), rest[2:], nil
			}
			if err != nil {
				return errors.New("a text has an escape that is not read")
			}
			b.WriteRune(r)
			p.pos += len(rest) - len(tail)
		}
	}
}
