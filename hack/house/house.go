// Package house holds the rules of this repository that no compiler checks: directions of imports, package comments,
// names of packages, and links and test names in the documents. Its tests check them. The rules for imports are the
// source of a table in docs/architecture.md and of the linter's rules; hack/generate writes both.
package house

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ImportTable returns the table of packages and what they import, in Markdown.
func ImportTable() string {
	var b strings.Builder
	b.WriteString("| package | imports |\n| --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(mayImport)) {
		imports := make([]string, len(mayImport[name]))
		for i, imported := range mayImport[name] {
			imports[i] = "`" + imported + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", name, strings.Join(imports, ", "))
	}
	fmt.Fprintf(&b, "\nEvery package may import `%s`.\n", strings.Join(forAll, "`, `"))
	return b.String()
}

// DepguardRules returns the rules for imports in the form that .golangci.yml has them under
// linters.settings.depguard.rules.
func DepguardRules() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(mayImport)) {
		fmt.Fprintf(&b, "        %s:\n          list-mode: lax\n          files: [\"**/%s\", \"!$test\"]\n",
			name, files(name))
		fmt.Fprintf(&b, "          deny:\n            - {pkg: %s, "+
			"desc: \"add it to hack/house/imports.go if %s may import it\"}\n", module, name)
		b.WriteString("          allow:\n")
		for _, allowed := range slices.Concat(mayImport[name], forAll) {
			fmt.Fprintf(&b, "            - %s/%s$\n", module, allowed)
		}
		if strings.HasSuffix(files(name), "/**") { // a program below the package imports it
			fmt.Fprintf(&b, "            - %s/%s$\n", module, name)
		}
	}
	for _, d := range doors {
		for _, kind := range []struct {
			name, files string
			packages    []string
		}{{"code", "!$test", d.code}, {"tests", "$test", slices.Concat(d.code, d.tests)}} {
			fmt.Fprintf(&b, "        %s %s:\n          list-mode: lax\n          files:\n            - \"%s\"\n",
				slug(d.dependency), kind.name, kind.files)
			for _, p := range kind.packages {
				fmt.Fprintf(&b, "            - \"!**/%s\"\n", files(p))
			}
			fmt.Fprintf(&b, "          deny:\n            - {pkg: %s, desc: \"see doors in hack/house/imports.go\"}\n",
				d.dependency)
		}
	}
	return b.String()
}

// slug makes a rule's name of a dependency's path: the linter's configuration takes a dot in a name for a separator.
func slug(dependency string) string {
	return strings.ReplaceAll(strings.Trim(dependency, "/"), ".", "-")
}

// files is the pattern of a package's files. The programs below launcher/launchertest obey its rule; see roof.
func files(pkg string) string {
	if pkg == "launcher/launchertest" {
		return pkg + "/**"
	}
	return pkg + "/*.go"
}
