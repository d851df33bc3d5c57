package enterprise

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxIterations bounds the lines that one template gives. Nested loops over long lists exceed it; no pod needs them.
const maxIterations = 10_000

// jnode is a part of a template.
type jnode struct {
	kind     string // text, output, if, for, set, unknown
	line     int
	text     string // of text; else what the tag says: the condition of an if, what a for iterates over
	name     string // the variable of a for or set
	branches []jbranch
	body     []*jnode
	seen     bool // a rendering has had it
}

// jbranch is one branch of an if. The last one may have no condition.
type jbranch struct {
	condition string
	isElse    bool
	line      int
	body      []*jnode
}

// jtag is a delimiter's part of a template as the lexer gives it.
type jtag struct {
	kind string // text, output, tag
	text string
	line int
}

// Delimiters. A minus in them takes away white space.
var (
	jOpen      = regexp.MustCompile(`\{[{%#][-+]?`)
	tagWord    = regexp.MustCompile(`^[a-z_]+`)
	setPattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.+)$`)
	forPattern = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)\s+in\s+(.+)$`)
)

// lexTemplate splits a template as Jinja2 does with trim_blocks and lstrip_blocks.
func lexTemplate(text string) ([]jtag, error) {
	var tags []jtag
	line, atStart := 1, true // atStart: the rest begins a line
	add := func(kind, part string) {
		if part != "" || kind != "text" {
			tags = append(tags, jtag{kind, part, line})
		}
	}
	for {
		at := jOpen.FindStringIndex(text)
		if at == nil {
			add("text", text)
			return tags, nil
		}
		before, open := text[:at[0]], text[at[0]:at[1]]
		kept := before
		lineStart := strings.LastIndexByte(before, '\n') + 1
		switch {
		case strings.HasSuffix(open, "-"):
			kept = strings.TrimRight(before, " \t\r\n")
		case open[1] != '{' && !strings.HasSuffix(open, "+") && strings.TrimSpace(before[lineStart:]) == "" &&
			(lineStart > 0 || atStart):
			kept = before[:lineStart]
		}
		add("text", kept)
		line += strings.Count(before, "\n")
		rest := text[at[1]:]
		closing := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[open[1]]
		end := closingAt(rest, closing)
		if end < 0 {
			return nil, fmt.Errorf("line %d: %s has no %s", line, open, closing)
		}
		inner := rest[:end]
		after := rest[end+len(closing):]
		trimmed := strings.TrimSuffix(strings.TrimSuffix(inner, "-"), "+")
		switch open[1] {
		case '{':
			add("output", strings.TrimSpace(trimmed))
		case '%':
			add("tag", strings.TrimSpace(trimmed))
		default:
			add("comment", "")
		}
		line += strings.Count(inner, "\n")
		switch {
		case strings.HasSuffix(inner, "-"):
			n := len(after) - len(strings.TrimLeft(after, " \t\r\n"))
			line += strings.Count(after[:n], "\n")
			after = after[n:]
		case open[1] != '{' && !strings.HasSuffix(inner, "+"):
			cut := strings.TrimPrefix(after, "\r")
			if strings.HasPrefix(cut, "\n") {
				line++
				after = cut[1:]
			}
		}
		atStart = strings.HasSuffix(text[:len(text)-len(after)], "\n")
		text = after
	}
}

// closingAt returns where a delimiter ends, or -1. Texts in quotes may contain it, but not those of comments.
func closingAt(text, closing string) int {
	var quote byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case closing == "#}" || quote == 0:
			if strings.HasPrefix(text[i:], closing) {
				return i
			}
			if closing != "#}" && (c == '\'' || c == '"') {
				quote = c
			}
		case c == '\\':
			i++
		case c == quote:
			quote = 0
		}
	}
	return -1
}

// jparser builds the parts of a template.
type jparser struct {
	tags []jtag
}

// parseTemplate reads a template.
func parseTemplate(text string) ([]*jnode, error) {
	tags, err := lexTemplate(text)
	if err != nil {
		return nil, err
	}
	p := jparser{tags: slices.DeleteFunc(tags, func(t jtag) bool { return t.kind == "comment" })}
	nodes, end, err := p.until()
	if err == nil && end.kind != "" {
		err = fmt.Errorf("line %d: {%% %s %%} ends no block", end.line, end.text)
	}
	return nodes, err
}

// until reads parts up to a tag that the caller knows. The zero tag is the end of the template.
func (p *jparser) until(words ...string) (nodes []*jnode, end jtag, err error) {
	for len(p.tags) > 0 {
		t := p.tags[0]
		p.tags = p.tags[1:]
		if t.kind != "tag" {
			nodes = append(nodes, &jnode{kind: t.kind, line: t.line, text: t.text})
			continue
		}
		word := tagWord.FindString(t.text)
		if slices.Contains(words, word) {
			return nodes, t, nil
		}
		n, err := p.block(word, t)
		if err != nil {
			return nil, t, err
		}
		if n == nil {
			return nodes, t, nil
		}
		nodes = append(nodes, n)
	}
	return nodes, jtag{}, nil
}

// block reads the block that a tag begins. It returns nil for a tag that begins none.
func (p *jparser) block(word string, t jtag) (*jnode, error) {
	rest := strings.TrimSpace(t.text[len(word):])
	unclosed := fmt.Errorf("line %d: {%% %s %%} has no end", t.line, t.text)
	switch word {
	case "if":
		n := &jnode{kind: "if", line: t.line, text: rest}
		branch := jbranch{condition: rest, line: t.line}
		for {
			body, end, err := p.until("elif", "else", "endif")
			if err != nil {
				return nil, err
			}
			branch.body = body
			n.branches = append(n.branches, branch)
			switch w := tagWord.FindString(end.text); w {
			case "endif":
				return n, nil
			case "elif", "else":
				branch = jbranch{condition: strings.TrimSpace(end.text[len(w):]), isElse: w == "else", line: end.line}
			default:
				return nil, unclosed
			}
		}
	case "for":
		body, end, err := p.until("endfor")
		if err != nil {
			return nil, err
		}
		if end.kind == "" || tagWord.FindString(end.text) != "endfor" {
			return nil, unclosed
		}
		m := forPattern.FindStringSubmatch(rest)
		if m == nil {
			return &jnode{kind: "unknown", line: t.line, text: t.text, body: body}, nil
		}
		return &jnode{kind: "for", line: t.line, name: m[1], text: m[2], body: body}, nil
	case "set":
		if m := setPattern.FindStringSubmatch(rest); m != nil {
			return &jnode{kind: "set", line: t.line, name: m[1], text: m[2]}, nil
		}
	case "", "elif", "else", "endif", "endfor":
		return nil, nil
	case "macro", "block", "filter", "call", "with", "autoescape", "trans", "raw":
		body, end, err := p.until("end" + word)
		if err != nil {
			return nil, err
		}
		if end.kind == "" || tagWord.FindString(end.text) != "end"+word {
			return nil, unclosed
		}
		return &jnode{kind: "unknown", line: t.line, text: t.text, body: body}, nil
	}
	if strings.HasPrefix(word, "end") {
		return nil, nil
	}
	return &jnode{kind: "unknown", line: t.line, text: t.text}, nil
}

// names returns the names that the expressions of a template use.
func names(nodes []*jnode) []string {
	var all []string
	each(nodes, func(n *jnode) {
		texts := []string{n.text}
		if n.kind == "text" {
			texts = nil
		}
		for _, b := range n.branches {
			texts = append(texts, b.condition)
		}
		for _, text := range texts {
			tokens, _ := tokenize(text)
			for _, t := range tokens {
				if variablePattern.MatchString(t) && !slices.Contains(all, t) {
					all = append(all, t)
				}
			}
		}
	})
	return all
}

// each calls do with all parts of a template.
func each(nodes []*jnode, do func(*jnode)) {
	for _, n := range nodes {
		do(n)
		each(n.body, do)
		for _, b := range n.branches {
			each(b.body, do)
		}
	}
}

// rendering is the text of a template for some variables.
type rendering struct {
	vars  map[string]tval
	marks *marks
	note  func(line int, format string, args ...any) // what is left out

	text  strings.Builder
	lines []int // of the template, by line of the text; 0 while a line is empty
	count int
}

// marks are the words that stand for values which are not known yet.
type marks struct {
	prefix string
	values []tval
}

// word returns the word for a runtime or opaque value.
func (m *marks) word(v tval) string {
	i := slices.IndexFunc(m.values, func(old tval) bool { return old.name == v.name && old.why == v.why })
	if i < 0 {
		i = len(m.values)
		m.values = append(m.values, v)
	}
	return fmt.Sprintf("%s%dq", m.prefix, i)
}

// put adds text that stands on a line of the template.
func (r *rendering) put(text string, line int) {
	for part := range strings.Lines(text) {
		if len(r.lines) == 0 {
			r.lines = append(r.lines, 0)
		}
		if last := &r.lines[len(r.lines)-1]; *last == 0 && strings.TrimSpace(part) != "" {
			*last = line
		}
		r.text.WriteString(part)
		if strings.HasSuffix(part, "\n") {
			r.lines = append(r.lines, 0)
			line++
		}
	}
}

// render adds parts of a template.
func (r *rendering) render(nodes []*jnode) {
	for _, n := range nodes {
		if r.count++; r.count > maxIterations {
			return
		}
		n.seen = true
		switch n.kind {
		case "text":
			r.put(n.text, n.line)
		case "output":
			r.output(n)
		case "set":
			v, err := evaluate(n.text, r.vars)
			if err != nil {
				r.note(n.line, "{%% set %s %%} %v", n.name, err)
			}
			r.vars[n.name] = v
		case "if":
			r.choose(n)
		case "for":
			r.loop(n)
		default:
			r.note(n.line, "{%% %s %%} is a tag that ekg does not read", n.text)
			r.leaveOut(n.body, n)
		}
	}
}

func (r *rendering) output(n *jnode) {
	v, err := evaluate(n.text, r.vars)
	switch {
	case err != nil:
		r.put(r.marks.word(tval{kind: tOpaque, why: fmt.Sprintf("{{ %s }} %v", n.text, err)}), n.line)
	case v.kind == tConstant:
		r.put(v.text(), n.line)
	case v.kind == tOpaque:
		v.why = fmt.Sprintf("{{ %s }} is not known before a kernel starts", n.text)
		r.put(r.marks.word(v), n.line)
	case v.kind == tRuntime:
		r.put(r.marks.word(v), n.line)
	}
}

// choose renders the branch of an if that holds. If that is not known, no branch does.
func (r *rendering) choose(n *jnode) {
	for _, b := range n.branches {
		if b.isElse {
			r.render(b.body)
			return
		}
		v, err := evaluate(b.condition, r.vars)
		yes, ok := v.truth()
		if err != nil || !ok {
			why := "depends on what is not known before a kernel starts"
			if err != nil {
				why = err.Error()
			}
			r.note(b.line, "{%% if %s %%} %s", b.condition, why)
			for _, other := range n.branches {
				r.leaveOut(other.body, n)
			}
			return
		}
		if yes {
			r.render(b.body)
			return
		}
	}
}

func (r *rendering) loop(n *jnode) {
	v, err := evaluate(n.text, r.vars)
	var items []tval
	switch list, isList := v.v.([]any); {
	case err == nil && v.kind == tUndefined:
		return
	case err == nil && v.kind == tConstant && isList:
		for _, item := range list {
			items = append(items, constant(item))
		}
	case err == nil && v.kind == tRuntime && v.list:
		items = []tval{{kind: tRuntime, name: v.name}}
	default:
		r.note(n.line, "{%% for %s in %s %%} is a loop that ekg does not read", n.name, n.text)
		r.leaveOut(n.body, n)
		return
	}
	before, there := r.vars[n.name]
	for _, item := range items {
		r.vars[n.name] = item
		r.render(n.body)
	}
	delete(r.vars, n.name)
	if there {
		r.vars[n.name] = before
	}
}

// leaveOut names the lines of parts that are not rendered because of an enclosing one.
func (r *rendering) leaveOut(nodes []*jnode, because *jnode) {
	each(nodes, func(n *jnode) {
		if n.kind == "text" {
			for i, part := range strings.Split(n.text, "\n") {
				if isContent(part) {
					r.note(n.line+i, "%s: depends on line %d", strings.TrimSpace(part), because.line)
				}
			}
		}
		n.seen = true
	})
}

// isContent reports whether a line is neither empty nor a comment of YAML.
func isContent(line string) bool {
	line = strings.TrimSpace(line)
	return line != "" && !strings.HasPrefix(line, "#")
}
