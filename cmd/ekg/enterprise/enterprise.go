// Package enterprise translates what operators of Jupyter Enterprise Gateway 3 have. Import reads its settings, and
// writes a configuration file or chart values of ekg: `ekg config import`. ConvertSpec translates a kernelspec with its
// pod template: `ekg kernelspec convert`.
//
// The input is a command line, environment variables, a configuration file in Python or JSON, or a template in a subset
// of Jinja2. Files are parsed and never executed. The output has no secret. Begin with Import.Arguments and table.go,
// which lists all settings; of kernelspecs, with ConvertSpec and podconvert.go.
package enterprise

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileSize bounds a file that is read, in bytes. A generated configuration of Enterprise Gateway has 40 KiB.
const maxFileSize = 1 << 20

// rank is the precedence of a source in Enterprise Gateway. A higher one counts.
type rank int

const (
	inEnvironment rank = iota
	inFile
	onCommandLine
)

// value is a constant of an option, as texts.
type value struct {
	texts []string
	list  bool
	none  bool // Python's None, or JSON's null
}

// given is one assignment of an option.
type given struct {
	option *option
	name   string // as it was written: Class.trait, or the variable
	place  string // file:line, or the command line
	rank   rank
	value  value
}

// Import holds what was read from Enterprise Gateway's settings. Methods must not be called concurrently.
type Import struct {
	given  []given
	unread []string // place: reason; without contents, which may be secret
}

// unreadable records what could not be read.
func (im *Import) unreadable(place, format string, args ...any) {
	im.unread = append(im.unread, place+": "+fmt.Sprintf(format, args...))
}

// assign records the value of Class.trait.
func (im *Import) assign(name, place string, from rank, v value) {
	o := optionOf(name)
	if o == nil {
		im.unreadable(place, "%s is not an option of Enterprise Gateway 3.3", name)
		return
	}
	if strings.TrimLeft(place, "-") == name {
		place = "command line"
	}
	im.given = append(im.given, given{option: o, name: name, place: place, rank: from, value: v})
}

// Arguments reads files, Enterprise Gateway's options, and NAME=VALUE for its variables. "-" is a list of variables on
// stdin. An error is a file that cannot be opened, or an argument that is neither.
func (im *Import) Arguments(args []string, stdin io.Reader) error {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "-":
			if err := im.read(stdin, "-"); err != nil {
				return err
			}
		case strings.HasPrefix(arg, "-"):
			var err error
			if args, err = im.flag(strings.TrimLeft(arg, "-"), args); err != nil {
				return err
			}
		case variableLine.MatchString(arg) && !strings.Contains(strings.SplitN(arg, "=", 2)[0], "."):
			im.variable(arg, "environment")
		default:
			if err := im.file(arg); err != nil {
				return err
			}
		}
	}
	return nil
}

// flag reads one option of the command line. It returns the arguments that follow it.
func (im *Import) flag(text string, rest []string) ([]string, error) {
	name, v, given := strings.Cut(text, "=")
	if toggle, ok := toggles[name]; ok {
		if toggle != "" {
			im.assign(toggle, "--"+name, onCommandLine, value{texts: []string{"DEBUG"}})
		}
		return rest, nil
	}
	if !given {
		if len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
			return nil, fmt.Errorf("--%s: a value is missing", name)
		}
		v, rest = rest[0], rest[1:]
	}
	if name == "config" || strings.HasSuffix(name, ".config_file") {
		return rest, im.file(v)
	}
	full := cmp.Or(aliases[name], name)
	o := optionOf(full)
	if o == nil {
		return nil, fmt.Errorf("--%s: is not an option of Enterprise Gateway 3.3", name)
	}
	read := value{texts: []string{v}}
	if strings.ContainsAny(v[:min(len(v), 1)], "[({") {
		literal, err := parseLiteral(v)
		if err != nil {
			im.unreadable("--"+name, "%v", err)
			return rest, nil
		}
		read = literal
	} else if o.list {
		read.list = true
		// A list is given as one option for each of its entries.
		for i, g := range im.given {
			if g.rank == onCommandLine && g.option == o && g.value.list {
				im.given[i].value.texts = append(g.value.texts, v)
				return rest, nil
			}
		}
	}
	im.assign(full, "--"+name, onCommandLine, read)
	return rest, nil
}

func (im *Import) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	return im.read(f, path)
}

func (im *Import) read(r io.Reader, name string) error {
	data, err := io.ReadAll(io.LimitReader(r, maxFileSize+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxFileSize {
		return fmt.Errorf("%s: larger than %d bytes", name, maxFileSize)
	}
	switch filepath.Ext(name) {
	case ".py":
		im.python(string(data), name)
	case ".json":
		return im.json(data, name)
	default:
		for i, line := range strings.Split(string(data), "\n") {
			im.variable(strings.TrimSpace(line), fmt.Sprintf("%s:%d", name, i+1))
		}
	}
	return nil
}

// variable reads NAME=VALUE. Variables that are not Enterprise Gateway's are ignored.
func (im *Import) variable(line, place string) {
	line = strings.TrimPrefix(line, "export ")
	name, v, ok := strings.Cut(line, "=")
	if !strings.HasPrefix(name, "EG_") && !strings.HasPrefix(name, "KG_") {
		return
	}
	if !ok {
		im.unreadable(place, "is not NAME=VALUE")
		return
	}
	if len(v) > 1 && (v[0] == '"' || v[0] == '\'') && v[len(v)-1] == v[0] {
		v = v[1 : len(v)-1]
	}
	o := variableOf(name)
	switch {
	case o == nil && serviceVariable.MatchString(name) || v == "" || v == "null" && o != nil && o.list:
		return // Kubernetes sets the first kind for a service; Enterprise Gateway reads the others as its default
	case o == nil:
		im.unreadable(place, "%s is not a variable of Enterprise Gateway 3.3", name)
		return
	case name == "EG_PORT" && strings.HasPrefix(v, "tcp://"):
		return // Kubernetes sets it beside a service named "eg"
	}
	read := value{texts: []string{v}}
	if o.list {
		read.list, read.texts = true, nil
		for t := range strings.SplitSeq(strings.Trim(v, "[]"), ",") {
			if t = strings.Trim(t, ` '"`); t != "" {
				read.texts = append(read.texts, t)
			}
		}
	}
	im.given = append(im.given, given{option: o, name: name, place: place, rank: inEnvironment, value: read})
}

// json reads a configuration in JSON, which is YAML as well. So the lines are known.
func (im *Import) json(data []byte, name string) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: is not JSON", name) // the parser's error may show a value
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return fmt.Errorf("%s: is not an object", name)
	}
	classes := doc.Content[0].Content
	for i := 0; i+1 < len(classes); i += 2 {
		class, traits := classes[i], classes[i+1]
		if traits.Kind != yaml.MappingNode {
			if class.Value != "version" {
				im.unreadable(fmt.Sprintf("%s:%d", name, class.Line), "%s is not an object", class.Value)
			}
			continue
		}
		for j := 0; j+1 < len(traits.Content); j += 2 {
			full := class.Value + "." + traits.Content[j].Value
			place := fmt.Sprintf("%s:%d", name, traits.Content[j].Line)
			if v, err := nodeValue(traits.Content[j+1]); err != nil {
				im.unreadable(place, "%s %v", full, err)
			} else {
				im.assign(full, place, inFile, v)
			}
		}
	}
	return nil
}

func nodeValue(n *yaml.Node) (value, error) {
	switch {
	case n.Kind == yaml.ScalarNode:
		return value{texts: []string{n.Value}, none: n.Tag == "!!null"}, nil
	case n.Kind == yaml.SequenceNode:
		v := value{list: true}
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return v, errors.New("is not a list of constants")
			}
			v.texts = append(v.texts, item.Value)
		}
		return v, nil
	}
	return value{}, errors.New("is not a constant or a list")
}

// chosen returns the assignments that count, in the order of the table, and those that others override.
func (im *Import) chosen() (counts, overridden []given) {
	last := map[*option][]given{} // one assignment for each setting; only the option of all other traits has several
	for _, g := range im.given {
		i := slices.IndexFunc(last[g.option], g.sameSetting)
		switch {
		case i < 0:
			last[g.option] = append(last[g.option], g)
		case g.rank >= last[g.option][i].rank:
			overridden = append(overridden, last[g.option][i])
			last[g.option][i] = g
		default:
			overridden = append(overridden, g)
		}
	}
	for i := range table {
		counts = append(counts, last[&table[i]]...)
	}
	slices.SortStableFunc(overridden, func(a, b given) int { return cmp.Compare(a.name, b.name) })
	return counts, overridden
}

// sameSetting reports whether both assignments of one option set the same. They have the same name if the option
// stands for any trait.
func (g given) sameSetting(other given) bool {
	return !slices.Contains(g.option.traits, "*") || g.name == other.name
}
