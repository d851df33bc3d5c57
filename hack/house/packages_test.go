package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/architecture.md says of every package what it is, and of no package that does not exist. Folders outside of the
// layers (deploy, e2e, hack and those below) are described as folders.
func TestDocs_Packages(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "\n## Packages\n")
	tables, _, found := strings.Cut(rest, "<!-- imports -->")
	if !found {
		t.Fatal("docs/architecture.md has no section of packages with the table of imports")
	}
	described := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .+ \\|$").FindAllStringSubmatch(tables, -1) {
		described[m[1]] = true
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Errorf("docs/architecture.md describes %s, which does not exist", m[1])
		}
	}
	for name := range mayImport {
		if top, _, _ := strings.Cut(name, "/"); slices.Contains([]string{"deploy", "e2e", "hack"}, top) {
			name = top
		}
		if !described[name] {
			t.Errorf("docs/architecture.md does not say what %s is", name)
		}
	}
}

// docs/architecture.md has a row for each program of cmd, and says how many there are.
func TestDocs_Programs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "\n| program | what it is | linked |\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	mains, err := filepath.Glob("../../cmd/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, main := range mains {
		if name := filepath.Base(filepath.Dir(main)); !strings.Contains(table, "\n| `"+name+"` |") {
			t.Errorf("docs/architecture.md does not say what the program %s is", name)
		}
	}
	number := map[int]string{3: "three", 4: "four", 5: "five"}[len(mains)]
	if !strings.Contains(string(doc), "There are "+number+" programs:") {
		t.Errorf("docs/architecture.md does not say that there are %s programs", number)
	}
}
