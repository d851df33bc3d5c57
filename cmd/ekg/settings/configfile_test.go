package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// yamlFile writes a config file.
func yamlFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ekg.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigFile_Refuses(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "listen: 127.0.0.1:1\nlisten_: x\n", "%s:2: listen_: no such setting"},
		{"itself", "config: x\n", "%s:1: config: no such setting"},
		{"several", "a: 1\nb: 2\n", "%[1]s:1: a: no such setting\n%[1]s:2: b: no such setting"},
		{"twice", "token: a\n\ntoken: b\n", "%s:3: token: is given twice, first in line 1"},
		{"a list", "listen: [a]\n", "%s:1: listen: is not a single value"},
		{"a mapping", "allow-origin: {a: b}\n", "%s:1: allow-origin: is not a list"},
		{"a list of lists", "allow-origin: [[a]]\n", "%s:1: allow-origin: has no value"},
		{"nothing", "token:\n", "%s:1: token: has no value"},
		{"no YAML", "a: [\n", "%s: yaml: line 1: did not find expected node content"},
		{"no mapping", "- a\n", "%s:1: is not a mapping of settings"},
		{"two documents", "token: a\n---\ntoken: b\n", "%s: holds more than one document"},
		{"bad value", "# x\nstart-wait: 5\n", "%s:2: start-wait: \"5\" is not a duration like 5s, 1m30s or 500ms"},
		{"bad boolean", "no-auth: perhaps\n", "%s:1: no-auth: \"perhaps\" is not true, false or remote"},
		{"gateway's own check", "allow-host: a/b\n",
			"%s:1: allow-host: \"a/b\" is not a host name or address without a port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := yamlFile(t, tt.text)
			want := fmt.Sprintf(tt.want, file)
			if _, err := Load(from(map[string][]string{"config": {file}}, nil)); err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		if _, err := Load(from(map[string][]string{"config": {yamlFile(t, text)}}, nil)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	t.Run("numbers and references as written", func(t *testing.T) {
		file := yamlFile(t, "token: 0123\nmax-body: 1048576\nallow-host: &h [a, b]\nclient-env: *h\n")
		s, err := Load(from(map[string][]string{"config": {file}}, nil))
		if err != nil || s.Gateway.Token != "0123" || s.Gateway.MaxBody != 1<<20 ||
			!slices.Equal(s.Gateway.ClientEnv, []string{"a", "b"}) {
			t.Errorf("got %+v, %v", s, err)
		}
	})
}
