package settings

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Table returns the tables of settings in docs/configuration.md, one for each task of an operator.
func Table() string {
	var b strings.Builder
	for _, g := range Groups() {
		writeTable(&b, g)
	}
	return b.String()
}

func writeTable(b *strings.Builder, g Group) {
	fmt.Fprintf(b, "### %s\n\n| flag and key | environment | default | meaning |\n| --- | --- | --- | --- |\n", g.Heading)
	for _, o := range g.Options {
		env := make([]string, len(o.Env))
		for i, name := range o.Env {
			env[i] = "`" + name + "`"
		}
		def := o.defDoc
		if o.def != "" {
			def = "`" + o.def + "`"
		}
		fmt.Fprintf(b, "| `--%s` | %s | %s | %s |\n", o.Name, strings.Join(env, ", "), EscapeCell(def), EscapeCell(o.Usage))
	}
	b.WriteString("\n")
}

// EscapeCell escapes characters with a meaning in Markdown.
func EscapeCell(t string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`).Replace(t)
}

// Schema returns the JSON schema of all settings but --config, for the Helm chart's value "settings": the lines between
// the description and the next value.
func Schema() string {
	var b strings.Builder
	b.WriteString("      \"type\": \"object\",\n      \"additionalProperties\": false,\n      \"properties\": {")
	for i, o := range options {
		kind := any([]string{"string", "number", "boolean"})
		if o.value.shape == Many {
			kind = "array"
		}
		text, err := json.Marshal(map[string]any{"type": kind, "description": o.Usage})
		if err != nil {
			panic(err) // texts and lists of texts can always be written
		}
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n        %q: %s", o.Name, text)
	}
	b.WriteString("\n      }\n")
	return b.String()
}
