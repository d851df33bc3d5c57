package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Bounds of what is shipped: all but tests, hack and launcher/launchertest. More is hard to read, and hard to change.
var bounds = map[string]int{
	"methods of a type":  80,
	"fields of a type":   40,
	"lines of a package": 5000,
	"lines of a file":    500,
}

// exceptions have more than their bound, each with the number that it had on 2026-11-28. A number only becomes smaller:
// a smaller one is written here, and an entry within its bound goes. Lines are rounded up, to 20 of a file and 200 of a
// package, so that a comment can be corrected.
var exceptions = map[string]map[string]int{}

// step is how far a number may be below its exception before the exception has to follow.
var step = map[string]int{
	"methods of a type": 1, "fields of a type": 1, "lines of a package": 200, "lines of a file": 20,
}

// near is the part of a bound from which TestHouse_Size names what has so much.
const near = 0.9

// TestHouse_Size: nothing grows beyond its bound, or beyond the number of its exception, and exceptions follow.
func TestHouse_Size(t *testing.T) {
	for kind, sizes := range measured(t) {
		bound := bounds[kind]
		for name := range exceptions[kind] {
			if sizes[name] <= bound {
				t.Errorf("%s has %d %s: it needs no exception", name, sizes[name], kind)
			}
		}
		var close []string
		for name, n := range sizes {
			most := max(bound, exceptions[kind][name])
			switch {
			case n > most:
				t.Errorf("%s has %d %s, not at most %d: divide it, or make it smaller", name, n, kind, most)
			case n <= most-step[kind] && n > bound:
				t.Errorf("%s has %d %s, and its exception says %d: write the smaller number", name, n, kind, most)
			case float64(n) >= near*float64(bound):
				close = append(close, fmt.Sprintf("%5d  %s", n, name))
			}
		}
		slices.Sort(close)
		slices.Reverse(close)
		t.Logf("near the bound of %d, or an exception to it, %s:\n%s", bound, kind, strings.Join(close, "\n"))
	}
}

// measured returns what bounds count, by name.
func measured(t *testing.T) map[string]map[string]int {
	all := map[string]map[string]int{}
	for kind := range bounds {
		all[kind] = map[string]int{}
	}
	for _, p := range packages(t) {
		name := rel(p.ImportPath)
		if strings.HasPrefix(name, "hack/") || strings.HasPrefix(name, "launcher/launchertest") {
			continue
		}
		for _, f := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Count(text, []byte("\n"))
			all["lines of a file"][name+"/"+f] = lines
			all["lines of a package"][name] += lines
			parsed, err := parser.ParseFile(token.NewFileSet(), f, text, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					if d.Recv != nil {
						all["methods of a type"][name+"."+receiver(d.Recv.List[0].Type)]++
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						if is, ok := spec.(*ast.TypeSpec); ok {
							if of, ok := is.Type.(*ast.StructType); ok {
								all["fields of a type"][name+"."+is.Name.Name] = of.Fields.NumFields()
							}
						}
					}
				}
			}
		}
	}
	return all
}

// receiver returns the name of the type of a method's receiver, without its pointer and its parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "" // the compiler rejects any other
}
