// Command generate writes the generated parts of documents and of the chart's schema. `make generate` runs it in the
// repository's root. A generated part stands between two lines that name it. The test of this package fails where a
// file differs from what would be written.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/gateway/metrics"
	"github.com/elastic-kernel-gateway/ekg/hack/house"
)

func main() {
	for _, p := range parts {
		if err := p.write("."); err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}

// part is a generated part of a file.
type part struct {
	file       string
	begin, end string // the lines around it, without line breaks
	text       func() string
}

var parts = []part{
	document("docs/configuration.md", "flags", settings.Table),
	document("docs/monitoring.md", "metrics", metricTable),
	document("docs/architecture.md", "imports", house.ImportTable),
	{"deploy/helm/ekg/values.schema.json",
		`      "description": "Settings of ekg serve by name; docs/configuration.md lists them",`, `    },`, settings.Schema},
}

// document is a part of a Markdown file between comments.
func document(file, name string, text func() string) part {
	return part{file, "<!-- " + name + " -->", "<!-- /" + name + " -->", text}
}

// write replaces the part in its file.
func (p part) write(root string) error {
	file := filepath.Join(root, p.file)
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, after, err := p.split(string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", p.file, err)
	}
	return os.WriteFile(file, []byte(before+p.text()+after), 0o644)
}

// split cuts a file into the part and the text before and after it. The lines around the part belong to the latter.
func (p part) split(text string) (before, generated, after string, err error) {
	before, rest, ok := strings.Cut(text, p.begin+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("no line %q", p.begin)
	}
	generated, after, ok = strings.Cut(rest, p.end+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("no line %q after %q", p.end, p.begin)
	}
	return before + p.begin + "\n", generated, p.end + "\n" + after, nil
}

// metricTable returns the table of metrics, in Markdown.
func metricTable() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | over replicas | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range metrics.List() {
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = "`" + l + "`"
		}
		over := "sum"
		if m.Shared {
			over = "max"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), over,
			settings.EscapeCell(m.Help))
	}
	return b.String()
}
