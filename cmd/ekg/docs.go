package main

import (
	"fmt"
	"os"
	"strings"
)

// The lines in the README between which the table stands.
const (
	tableBegin = "<!-- flags -->"
	tableEnd   = "<!-- /flags -->"
)

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

// writeTable replaces what stands between the two lines in a file.
func writeTable(file string) error {
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, after, err := splitTable(string(old))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(before+flagTable()+after), 0o644)
}

// splitTable cuts a document into the table and what stands before and after it, the two lines included.
func splitTable(doc string) (before, table, after string, err error) {
	begin, rest, ok := strings.Cut(doc, tableBegin+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("there is no line %s", tableBegin)
	}
	table, end, ok := strings.Cut(rest, tableEnd+"\n")
	if !ok {
		return "", "", "", fmt.Errorf("there is no line %s after %s", tableEnd, tableBegin)
	}
	return begin + tableBegin + "\n", table, tableEnd + "\n" + end, nil
}
