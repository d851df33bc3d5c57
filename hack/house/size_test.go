package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
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

// near is the part of a bound from which TestHouse_Size names what has so much.
const near = 0.9

// TestHouse_Size: nothing grows beyond its bound. It prints what is near.
func TestHouse_Size(t *testing.T) {
	for kind, sizes := range measured(t) {
		bound := bounds[kind]
		var close []string
		for name, n := range sizes {
			if n > bound {
				t.Errorf("%s has %d %s, not at most %d: divide it, or make it smaller", name, n, kind, bound)
			} else if float64(n) >= near*float64(bound) {
				close = append(close, fmt.Sprintf("%5d  %s", n, name))
			}
		}
		slices.Sort(close)
		slices.Reverse(close)
		t.Logf("near the bound of %d %s:\n%s", bound, kind, strings.Join(close, "\n"))
	}
}

// TestHouse_Locked: a method whose name ends with Locked is called with its type's lock held and returns with it held.
// It unlocks only what it has locked itself.
func TestHouse_Locked(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.GoFiles {
			files := token.NewFileSet()
			parsed, err := parser.ParseFile(files, filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(fn.Name.Name, "Locked") {
					unlocked(fn.Body, func(mutex string, at token.Pos) {
						t.Errorf("%s: %s unlocks %s, which its caller has locked", files.Position(at), fn.Name.Name, mutex)
					})
				}
			}
		}
	}
}

// unlocked reports each Unlock of a mutex that is not locked before in the same function. A function in it runs on its
// own, and counts as one.
func unlocked(body *ast.BlockStmt, report func(mutex string, at token.Pos)) {
	locks := map[string]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			unlocked(n.Body, report)
			return false
		case *ast.CallExpr:
			method, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			mutex := types.ExprString(method.X)
			switch method.Sel.Name {
			case "Lock", "RLock":
				locks[mutex] = true
			case "Unlock", "RUnlock":
				if !locks[mutex] {
					report(mutex, n.Pos())
				}
			}
		}
		return true
	})
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
