package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway"
)

// table is a generated part of a document: it stands between two lines that name it.
type table struct {
	name string
	text func() string
}

var (
	flagsTable   = table{"flags", flagTable}
	metricsTable = table{"metrics", metricTable}
)

func (t table) begin() string { return "<!-- " + t.name + " -->" }
func (t table) end() string   { return "<!-- /" + t.name + " -->" }

// metricTable is the table of metrics in docs/monitoring.md.
func metricTable() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | over replicas | meaning |\n| --- | --- | --- | --- | --- |\n")
	for _, m := range gateway.MetricList() {
		labels := make([]string, len(m.Labels))
		for i, l := range m.Labels {
			labels[i] = "`" + l + "`"
		}
		over := "sum"
		if m.Shared {
			over = "max"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, strings.Join(labels, ", "), over, escapeCell(m.Help))
	}
	return b.String()
}

// flagTable is the README's table of settings in Markdown.
func flagTable() string {
	var b strings.Builder
	b.WriteString("| flag and key | environment | default | meaning |\n| --- | --- | --- | --- |\n")
	row := func(o option) {
		env := make([]string, len(o.env))
		for i, name := range o.env {
			env[i] = "`" + name + "`"
		}
		def := o.defDoc
		if o.def != "" {
			def = "`" + o.def + "`"
		}
		flag := "`--" + o.name + "`"
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", flag, strings.Join(env, ", "), escapeCell(def), escapeCell(o.usage))
	}
	row(configOption)
	for _, o := range options {
		row(o)
	}
	return b.String()
}

// escapeCell keeps Markdown from reading a text as anything but text.
func escapeCell(t string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`).Replace(t)
}

// write replaces what stands between the two lines in a file.
func (t table) write(file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, after, err := t.split(string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(before+t.text()+after), 0o644)
}

// split cuts a document into the table and what stands before and after it, the two lines included.
func (t table) split(doc string) (before, text, after string, err error) {
	begin, rest, ok := strings.Cut(doc, t.begin()+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("there is no line %s", t.begin())
	}
	text, end, ok := strings.Cut(rest, t.end()+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("there is no line %s after %s", t.end(), t.begin())
	}
	return begin + t.begin() + "\n", text, t.end() + "\n" + end, nil
}
