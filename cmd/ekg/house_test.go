package main_test

import (
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

const module = "github.com/elastic-kernel-gateway/ekg"

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
	cmd := exec.Command("go", "list", "-tags", "e2e", "-json=ImportPath,Name,Dir,GoFiles,Imports,TestImports,XTestImports", module+"/...")
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

// rel is a package's path inside the module ("gateway/wire"), or "" for one that is not of this module.
func rel(importPath string) string {
	r, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return r
}

// mayImport says which packages of this module each package's own code may import. It is the drawing of the
// Architecture section as a table: an arrow that is not here is a fault. A package that is missing here is one too.
var mayImport = map[string][]string{
	"cmd/ekg":               {"gateway", "gateway/identity", "gateway/wire", "kernelspecs", "launcher", "launcher/kube", "launcher/local", "launcher/supervisor"},
	"cmd/ekg-supervisor":    {"launcher/supervisor"},
	"cmd/ekg-gpu":           {"launcher/gpu"},
	"deploy":                {},
	"gateway":               {"gateway/identity", "gateway/wire", "kernelspecs", "launcher"},
	"gateway/identity":      {},
	"gateway/wire":          {},
	"kernelspecs":           {},
	"launcher":              {"kernelspecs"},
	"launcher/gpu":          {},
	"launcher/local":        {"kernelspecs", "launcher", "launcher/supervisor"},
	"launcher/kube":         {"kernelspecs", "launcher", "launcher/supervisor"},
	"launcher/supervisor":   {"gateway/wire", "kernelspecs", "launcher/gpu"}, // the child reads those of its image
	"launcher/launchertest": {"gateway/wire", "kernelspecs", "launcher", "launcher/supervisor"},
}

// doors says where each outside dependency may be imported: its prefix, the packages that may in their own code, and
// those that may in their tests besides.
var doors = []struct {
	dependency string
	code       []string
	tests      []string
}{
	{"github.com/urfave/cli/", []string{"cmd/ekg"}, nil},
	{"github.com/go-zeromq/zmq4", []string{"launcher/supervisor", "launcher/launchertest"}, nil},
	{"github.com/gorilla/websocket", []string{"gateway", "launcher/supervisor", "launcher/launchertest"},
		[]string{"cmd/ekg", "cmd/ekg-supervisor", "launcher/local"}},
	{"github.com/hashicorp/golang-lru/", []string{"gateway", "gateway/identity", "launcher/kube", "launcher/supervisor"}, nil},
	{"github.com/NVIDIA/go-nvml/", []string{"cmd/ekg-gpu"}, nil},
	{"github.com/coreos/go-oidc/", []string{"gateway/identity"}, nil},
	{"github.com/go-jose/", nil, []string{"gateway/identity"}},
	{"golang.org/x/time/", []string{"gateway"}, nil},
	{"golang.org/x/sync/", []string{"gateway/identity"}, nil},
	{"github.com/prometheus/client_golang/", []string{"gateway"}, nil},
	{"github.com/getkin/kin-openapi", nil, []string{"gateway"}},
	{"pgregory.net/rapid", nil, []string{"gateway", "gateway/wire", "launcher/kube", "launcher/supervisor", "kernelspecs"}},
	{"go.yaml.in/yaml/", []string{"cmd/ekg", "gateway", "gateway/identity", "launcher/kube"}, []string{"deploy"}}, // it knows lines
	{"sigs.k8s.io/", []string{"launcher/kube"}, nil},                                                              // Kubernetes' own YAML
	{"k8s.io/", []string{"launcher/kube"}, []string{"cmd/ekg", "deploy"}},
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
			if r := rel(i); r != "" && roof(r) != name && !slices.Contains(allowed, r) {
				t.Errorf("%s imports %s, which points the wrong way", name, r)
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

func TestHouse_PackageComments(t *testing.T) {
	for _, p := range packages(t) {
		var with []string
		for _, f := range p.GoFiles {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.PackageClauseOnly|parser.ParseComments)
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

// Every guarantee of docs/security.md names tests, and there are such tests.
func TestDocs_Security(t *testing.T) {
	doc, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "<!-- guarantees -->\n")
	table, _, ended := strings.Cut(rest, "<!-- /guarantees -->")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if !ended || len(rows) < 20 {
		t.Fatalf("there is no table of guarantees, or only %d rows", len(rows))
	}
	there := map[string]bool{}
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
				there[string(m[1])] = true
			}
		}
	}
	for _, row := range rows[2:] {
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		if len(cells) != 3 {
			t.Errorf("%d cells in: %s", len(cells), row)
			continue
		}
		names := strings.Split(cells[2], ", ")
		for _, name := range names {
			if !there[strings.Trim(name, "`")] || len(name) < 3 || name[0] != '`' {
				t.Errorf("there is no test %s, which is to hold: %s", name, cells[0])
			}
		}
	}
}
