// Package house holds the rules of this repository that no compiler checks: directions of imports, package comments,
// names of packages, sizes, and links and test names in the documents. Its tests check them. The rules for imports are
// also the source of a table in docs/architecture.md, which hack/generate writes.
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
