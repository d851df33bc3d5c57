// Package enterprise lists the options of Jupyter Enterprise Gateway 3.3, in options.json. The settings of ekg read
// there which variables they take from Enterprise Gateway. The other reader is ekg-migrate, the Python package around
// this folder, which translates all options.
package enterprise

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strings"
)

//go:embed options.json
var text []byte

// Option is one option of Enterprise Gateway. Its traits and variables are names of the same option.
type Option struct {
	Group     string   `json:"group"`  // key of Table.Classes, to each of which a trait can be given; "": no trait
	Traits    []string `json:"traits"` // "*" stands for any
	Variables []string `json:"variables"`
	List      bool     `json:"list"`
	Setting   string   `json:"setting"` // of ekg, which the variables set; "": none
	Why       *string  `json:"why"`     // not nil: why ekg-migrate writes no setting; "" if that depends on the value
	Reason    string   `json:"reason"`  // the same as a key of Table.Reasons
}

// Unmatched reports whether the option has no counterpart that ekg-migrate could write.
func (o Option) Unmatched() bool { return o.Why != nil || o.Reason != "" }

// Table is the content of options.json.
type Table struct {
	About   []string            `json:"about"`
	Classes map[string][]string `json:"classes"`
	Aliases map[string]string   `json:"aliases"` // short forms of the command line
	Toggles map[string]string   `json:"toggles"` // flags without a value; "": without an effect on a server
	Reasons map[string]string   `json:"reasons"`
	Options []Option            `json:"options"` // in the order of ekg's settings
}

// Read returns the table.
func Read() Table {
	var t Table
	if err := json.Unmarshal(text, &t); err != nil {
		panic("options.json: " + err.Error()) // it is a part of the program, and tested
	}
	return t
}

// Variables returns the variables EG_* that set a setting of ekg.
func (t Table) Variables(setting string) (names []string) {
	for _, o := range t.Options {
		if o.Setting != setting {
			continue
		}
		for _, name := range o.Variables {
			if strings.HasPrefix(name, "EG_") {
				names = append(names, name)
			}
		}
	}
	return names
}

// Find returns the option with a name: Class.trait, or a variable. It returns nil if there is none.
func (t Table) Find(name string) *Option {
	class, trait, dotted := strings.Cut(name, ".")
	i := slices.IndexFunc(t.Options, func(o Option) bool {
		if !dotted {
			return slices.Contains(o.Variables, name)
		}
		return slices.Contains(t.Classes[o.Group], class) &&
			(slices.Contains(o.Traits, trait) || slices.Contains(o.Traits, "*"))
	})
	if i < 0 {
		return nil
	}
	return &t.Options[i]
}
