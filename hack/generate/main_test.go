package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Every generated part of a file is the one that `make generate` would write.
func TestDocs_Current(t *testing.T) {
	for _, p := range parts {
		text, err := os.ReadFile(filepath.Join("../..", p.file))
		if err != nil {
			t.Fatal(err)
		}
		_, got, _, err := p.split(string(text))
		if err != nil || got != p.text() {
			t.Errorf("%s differs from the code (%v); run: make generate", p.file, err)
		}
	}
}

func TestDocs_Written(t *testing.T) {
	root := t.TempDir()
	p := document("doc.md", "x", func() string { return "new\n" })
	file := filepath.Join(root, p.file)
	if err := os.WriteFile(file, []byte("# A\n<!-- x -->\nold\n<!-- /x -->\nB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time changes nothing
		if err := p.write(root); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if want := "# A\n<!-- x -->\nnew\n<!-- /x -->\nB\n"; err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}
