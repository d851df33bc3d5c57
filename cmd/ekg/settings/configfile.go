package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// fileValue is an option's value in a config file.
type fileValue struct {
	texts []string
	line  int
}

// readConfigFile reads a YAML file whose keys are options. It rejects anything else with its place.
func readConfigFile(path string) (map[string]fileValue, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // empty
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: holds more than one document", path)
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil // only comments
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: is not a mapping of settings", path, root.Line)
	}
	values := map[string]fileValue{}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s:%d: %s: %s",
				path, key.Line, kernelspecs.Printable(key.Value), fmt.Sprintf(format, args...)))
		}
		o, ok := optionNamed(key.Value)
		before, twice := values[key.Value]
		switch {
		case Removed(key.Value) != "":
			fail("was removed: %s", Removed(key.Value))
			continue
		case !ok:
			fail("no such setting")
			continue
		case twice:
			fail("is given twice, first in line %d", before.line)
			continue
		}
		texts, err := fileTexts(o, node)
		if err != nil {
			fail("%v", err)
		}
		values[key.Value] = fileValue{texts: texts, line: key.Line}
	}
	return values, errors.Join(errs...)
}

func optionNamed(name string) (Option, bool) {
	for _, o := range options {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}

// fileTexts returns a value of the file as texts. Scalars keep their spelling: only the option knows whether 010 is a
// number.
func fileTexts(o Option, node *yaml.Node) ([]string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	items := []*yaml.Node{node}
	switch {
	case node.Kind == yaml.SequenceNode && o.value.shape == Many:
		items = node.Content
	case node.Kind != yaml.ScalarNode && o.value.shape == Many:
		return nil, errors.New("is not a list")
	case node.Kind != yaml.ScalarNode:
		return nil, errors.New("is not a single value")
	}
	var texts []string
	for _, item := range items {
		if item.Kind == yaml.AliasNode {
			item = item.Alias
		}
		if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
			return nil, errors.New("has no value")
		}
		if item.ShortTag() == "!!binary" {
			return nil, errors.New("is not a text")
		}
		texts = append(texts, item.Value)
	}
	return texts, nil
}
