package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// TestFindGPUProgram: the program is beside the supervisor, even if that was given as a link. If it is needed and
// missing, the start fails with a reason.
func TestFindGPUProgram(t *testing.T) {
	real, linked := t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(real, "ekg-supervisor"), nil, 0o755),
		os.Symlink(filepath.Join(real, "ekg-supervisor"), filepath.Join(linked, "ekg-supervisor"))); err != nil {
		t.Fatal(err)
	}
	find := func(s settings.Sources) (string, error) {
		loaded, err := settings.Load(s)
		if err != nil {
			t.Fatal(err)
		}
		return findGPUProgram(loaded, filepath.Join(linked, "ekg-supervisor"))
	}
	configured := sourcesOf(map[string][]string{"cull-gpu": {"0.1"}}, nil)
	if path, err := find(sourcesOf(nil, nil)); err != nil || path != "" {
		t.Errorf("without --cull-gpu: %q, %v", path, err)
	}
	if path, err := find(configured); err == nil ||
		!strings.HasPrefix(err.Error(), "--cull-gpu: requires the program ekg-gpu beside the supervisor: ") {
		t.Errorf("not there: %q, %v", path, err)
	}
	program := filepath.Join(real, "ekg-gpu")
	if err := os.WriteFile(program, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := find(configured); err != nil || path != program {
		t.Errorf("there: %q, %v", path, err)
	}
}
