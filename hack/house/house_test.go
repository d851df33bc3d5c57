package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is what this test needs of go list's description of one package.
type listed struct {
	ImportPath, Name, Dir string
	GoFiles               []string
	Imports               []string
	TestImports           []string
	XTestImports          []string
}

// packages lists every package of the module, with the e2e files counted among the tests.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags", "e2e", "-json=ImportPath,Name,Dir,GoFiles,Imports,TestImports,XTestImports",
		module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages: the test would prove nothing", len(all))
	}
	return all
}

// rel is a package's path inside the module ("jupyter"), or "" for one that is not of this module.
func rel(importPath string) string {
	r, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return r
}

// roof is the rule's name of a package: programs and packages below launcher/launchertest (the fake kernel's own
// program) obey the same rule as their parent.
func roof(p string) string {
	if strings.HasPrefix(p, "launcher/launchertest/") {
		return "launcher/launchertest"
	}
	return p
}

func TestHouse_Imports(t *testing.T) {
	for _, p := range packages(t) {
		name := roof(rel(p.ImportPath))
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("%s has no rule: add what it may import to mayImport, and to the Architecture section", p.ImportPath)
			continue
		}
		for _, i := range p.Imports {
			if r := rel(i); r != "" && roof(r) != name && !slices.Contains(allowed, r) && !slices.Contains(forAll, r) {
				t.Errorf("%s imports %s, which points the wrong way", name, r)
			}
			if slices.Contains(mustNotImport[name], i) {
				t.Errorf("%s imports %s", name, i)
			}
			checkDoor(t, name, i, false)
		}
		for _, i := range slices.Concat(p.TestImports, p.XTestImports) {
			checkDoor(t, name, i, true)
		}
	}
}

func checkDoor(t *testing.T, pkg, imported string, test bool) {
	t.Helper()
	for _, d := range doors {
		if !strings.HasPrefix(imported, d.dependency) {
			continue
		}
		if slices.Contains(d.code, pkg) || test && slices.Contains(d.tests, pkg) {
			continue
		}
		t.Errorf("%s imports %s (in a test: %v): that dependency has another door", pkg, imported, test)
	}
}

// TestHouse_Gateway checks that the gateway's program links no ZeroMQ library: only supervisors speak to kernels. It
// also links no informer or lister of client-go's: these take a quarter of a build from nothing.
func TestHouse_Gateway(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/cmd/ekg").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dependency := range strings.Lines(string(out)) {
		dependency = strings.TrimSpace(dependency)
		if strings.Contains(dependency, "zmq4") || dependency == module+"/launcher/supervisor" ||
			dependency == "k8s.io/client-go/informers" || strings.HasPrefix(dependency, "k8s.io/client-go/listers/") {
			t.Errorf("cmd/ekg links %s", dependency)
		}
	}
}

// TestHouse_Bench: hack/bench is a module of its own, so a build of all packages does not notice that it no longer fits
// them.
func TestHouse_Bench(t *testing.T) {
	if out, err := exec.Command("go", "vet", "-C", "../bench", "./...").CombinedOutput(); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}

func TestHouse_PackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var with []string
		for _, f := range p.GoFiles {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil,
				parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Errorf("%s: %v", f, err)
				continue
			}
			if parsed.Doc != nil {
				with = append(with, f)
			}
		}
		main := path.Base(p.ImportPath) + ".go"
		if p.Name == "main" {
			main = "main.go"
		}
		switch {
		case len(p.GoFiles) == 0: // only tests
		case len(with) != 1:
			t.Errorf("%s has %d package comments, not one: %v", p.ImportPath, len(with), with)
		case with[0] != main:
			t.Errorf("%s has its package comment in %s, not in %s", p.ImportPath, with[0], main)
		}
	}
}

func TestHouse_Names(t *testing.T) {
	for _, p := range packages(t) {
		for _, part := range strings.Split(rel(p.ImportPath), "/") {
			switch strings.TrimSuffix(part, "s") {
			case "util", "common", "type", "helper", "manager", "misc", "pkg":
				t.Errorf("%s: %q says nothing about what is in it", p.ImportPath, part)
			}
		}
	}
}

// testNames returns the names of all tests and fuzz targets of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, p := range packages(t) {
		files, err := filepath.Glob(filepath.Join(p.Dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllSubmatch(b, -1) {
				names[string(m[1])] = true
			}
		}
	}
	return names
}

// Go's test command succeeds if its pattern matches no test, so a renamed test would no longer run unnoticed.
func TestHouse_MakefileTests(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	names := testNames(t)
	patterns := regexp.MustCompile(`-run '([^']*)'`).FindAllSubmatch(makefile, -1)
	if all := bytes.Count(makefile, []byte("-run ")); all < 5 || len(patterns) != all {
		t.Fatalf("%d of %d patterns of tests are in single quotes", len(patterns), all)
	}
	for _, m := range patterns {
		pattern := strings.ReplaceAll(string(m[1]), "$$", "$")
		if pattern == "^$" {
			continue // benchmarks alone
		}
		matched := false
		for name := range names {
			matched = matched || regexp.MustCompile(pattern).MatchString(name)
		}
		if !matched {
			t.Errorf("the Makefile runs tests that match %s, and there are none", pattern)
		}
	}
}

// Every guarantee in the documents names tests, and there are such tests.
func TestDocs_Guarantees(t *testing.T) {
	there := testNames(t)
	for file, columns := range map[string]int{"docs/security.md": 3, "docs/architecture.md": 2} {
		doc, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(doc), "<!-- guarantees -->\n")
		table, _, ended := strings.Cut(rest, "<!-- /guarantees -->")
		rows := strings.Split(strings.TrimSpace(table), "\n")
		if !ended || len(rows) < 12 {
			t.Fatalf("%s: there is no table of guarantees, or only %d rows", file, len(rows))
		}
		for _, row := range rows[2:] {
			cells := strings.Split(strings.Trim(row, "| "), " | ")
			if len(cells) != columns {
				t.Errorf("%s: %d cells in: %s", file, len(cells), row)
				continue
			}
			names := strings.Split(cells[columns-1], ", ")
			for _, name := range names {
				if !there[strings.Trim(name, "`")] || len(name) < 3 || name[0] != '`' {
					t.Errorf("%s: there is no test %s, which is to hold: %s", file, name, cells[0])
				}
			}
		}
	}
}
