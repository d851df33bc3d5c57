package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// TestMasterKeys: the keys are read from their files. A second file that does not exist means that there is no second
// key. The error of a bad key names its setting.
func TestMasterKeys(t *testing.T) {
	dir := t.TempDir()
	one, two := strings.Repeat("1", 32), strings.Repeat("2", 40)
	for name, text := range map[string]string{"one": one + "\n", "two": two, "same": one, "short": "abc", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	for _, tt := range []struct {
		first, second string
		want          string // both keys, or the error
	}{
		{"one", "", one + " "},
		{"one", "two", one + " " + two},
		{"one", "missing", one + " "},
		{"one", "same", "--second-master-key-file: " + path("same") + " holds the same key as --master-key-file"},
		{"one", "short", "--second-master-key-file: " + path("short") + " has 3 characters, 32 are needed"},
		{"one", "empty", "--second-master-key-file: " + path("empty") + " does not hold exactly one word"},
		{"one", ".", "--second-master-key-file: read " + path("") + ": is a directory"},
		{"short", "two", "--master-key-file: " + path("short") + " has 3 characters, 32 are needed"},
		{"missing", "two", "--master-key-file: open " + path("missing") + ": no such file or directory"},
	} {
		flags := map[string][]string{"master-key-file": {path(tt.first)}}
		if tt.second != "" {
			flags["second-master-key-file"] = []string{path(tt.second)}
		}
		s, err := settings.Load(sourcesOf(flags, nil))
		if err != nil {
			t.Fatal(err)
		}
		key, second, err := masterKeys(s, true)
		got := string(key) + " " + string(second)
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s and %q: got %q, want %q", tt.first, tt.second, got, tt.want)
		}
	}
	state := map[string][]string{"state-dir": {t.TempDir()}}
	s, err := settings.Load(sourcesOf(state, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := masterKeys(s, true); err == nil || !strings.HasPrefix(err.Error(), "--master-key-file: ") {
		t.Errorf("in the cluster without a key: %v", err)
	}
	made, _, err := masterKeys(s, false)
	if again, _, err2 := masterKeys(s, false); err != nil || err2 != nil || string(made) != string(again) {
		t.Errorf("a generated key: %v, %v", err, err2)
	}
}
