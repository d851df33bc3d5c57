package flavor

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlLine    = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:)?\s*line (\d+): (.*)$`)
	yamlUnknown = regexp.MustCompile(`^field (.*) not found in type .*$`)
	yamlWrong   = regexp.MustCompile(`^cannot unmarshal (.*) into .*$`)
)

// DecodeYAML decodes the one document of an operator's file, such as the flavors or the policy, into the value that v
// points to. A key that is absent leaves the value unchanged. Unknown and repeated keys, wrong types and second
// documents are problems. root is the document, for LineOf; nil for an empty file. Each problem begins with its line,
// as in "3: unknown key x".
func DecodeYAML(data []byte, v any) (root *yaml.Node, problems []string) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(v); errors.Is(err, io.EOF) {
		return nil, nil // an empty file
	} else if err != nil {
		texts := []string{err.Error()}
		var wrong *yaml.TypeError
		if errors.As(err, &wrong) {
			texts = wrong.Errors
		}
		for i, text := range texts {
			texts[i] = problem(text)
		}
		return nil, texts
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, []string{" the file has more than one YAML document"}
	}
	root = &yaml.Node{}
	if err := yaml.Unmarshal(data, root); err != nil {
		return nil, []string{problem(err.Error())}
	}
	return root, nil
}

// problem turns an error of the YAML decoder into "line: text", without names of Go types.
func problem(text string) string {
	m := yamlLine.FindStringSubmatch(strings.ReplaceAll(text, "\n", " "))
	if m == nil {
		return " " + strings.TrimPrefix(text, "yaml: ")
	}
	text = m[2]
	if u := yamlUnknown.FindStringSubmatch(text); u != nil {
		text = "unknown key " + u[1]
	} else if u := yamlWrong.FindStringSubmatch(text); u != nil {
		text = strings.ReplaceAll(u[1], "!!", "") + " has the wrong type"
	}
	return m[1] + ": " + text
}

// LineOf returns the line of item i of the list at a path in a document that DecodeYAML has returned.
func LineOf(n *yaml.Node, i int, path ...string) int {
	if n == nil {
		return 1
	}
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	for _, key := range path {
		for j := 0; j+1 < len(n.Content); j += 2 {
			if n.Content[j].Value == key {
				n = n.Content[j+1]
				break
			}
		}
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode && i < len(n.Content) {
		n = n.Content[i]
	}
	return n.Line
}
