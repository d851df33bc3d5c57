package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestConfigImport_Token(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), "token")
	args := []string{"config", "import", "EG_AUTH_TOKEN=hunter2-hunter2", "--token-file", path, "--port", "9000"}
	code, stdout, stderr := ekg(t, args...)
	if code != 0 || !strings.Contains(stdout, "token-file: "+path) || !strings.Contains(stdout, "listen: 127.0.0.1:9000") {
		t.Fatalf("got %d %q %q", code, stdout, stderr)
	}
	if strings.Contains(stdout+stderr, "hunter2") {
		t.Errorf("the token is printed: %q %q", stdout, stderr)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "hunter2-hunter2\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("got %q, %v, mode %v", data, err, info.Mode())
	}
	if code, _, stderr = ekg(t, args...); code != 1 || !strings.Contains(stderr, "file exists") {
		t.Errorf("an existing file: got %d %q", code, stderr)
	}
}

func TestConfigImport_Refusals(t *testing.T) {
	clearEnvironment(t)
	tests := []struct {
		name, stderr string
		args         []string
	}{
		{"no argument", "an argument is missing", nil},
		{"no such file", "no such file", []string{"/nowhere/config.py"}},
		{"unknown option", "--Nope.x: is not an option of Enterprise Gateway 3.3", []string{"--Nope.x=hunter2"}},
		{"option without a value", "--ip: a value is missing", []string{"--ip"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := ekg(t, append([]string{"config", "import"}, tt.args...)...)
			if code != 2 || stdout != "" || !strings.Contains(stderr, tt.stderr) || strings.Contains(stderr, "hunter2") {
				t.Errorf("got %d %q %q", code, stdout, stderr)
			}
		})
	}
}

// Values for the chart have no token either. helm reads its file.
func TestConfigImport_Chart(t *testing.T) {
	clearEnvironment(t)
	path := filepath.Join(t.TempDir(), "token")
	code, stdout, stderr := ekg(t, "config", "import", "--chart", "EG_AUTH_TOKEN=hunter2-hunter2", "--token-file="+path,
		"EG_PORT=9000", "EG_MAX_KERNELS=7", "EG_NAMESPACE=eg")
	want := "ekg: settings: 4; without a counterpart: 0; not read: 0\n"
	if code != 0 || stderr != want || strings.Contains(stdout, "hunter2") ||
		!strings.Contains(stdout, "--set-file authToken="+path) {
		t.Errorf("got %d %q %q", code, stdout, stderr)
	}
	var values map[string]map[string]any
	if err := yaml.Unmarshal([]byte(stdout), &values); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	if !reflect.DeepEqual(values, map[string]map[string]any{"service": {"port": 9000}, "settings": {"max-kernels": "7"}}) {
		t.Errorf("got\n%s", stdout)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "hunter2-hunter2\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
