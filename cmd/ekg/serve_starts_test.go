package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// A plain start has the kernelspec's own flavor, as the file says at that moment. A kernelspec whose flavor does not
// exist is left out.
func TestBackend_PlainStarts(t *testing.T) {
	dir := t.TempDir()
	for name, ekg := range map[string]string{"cpu": `{}`, "gpu": `{"flavor": "t4"}`, "none": `{"flavor": "missing"}`} {
		text := `{"argv": ["prog", "{connection_file}"], "display_name": "x", "language": "x", "metadata": {"ekg": ` + ekg + `}}`
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	specs, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer specs.Close() //nolint:errcheck // nothing was written
	file := filepath.Join(t.TempDir(), "flavors.yaml")
	if err := os.WriteFile(file, []byte("flavors: [{name: t4, gpu: {}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flavors, err := flavor.Open(file, discard)
	if err != nil {
		t.Fatal(err)
	}
	starts := backend{specs: specs, flavors: flavors}.plainStarts()
	if len(starts) != 2 || starts[0].Spec.Name != "cpu" || starts[0].Flavor != nil || starts[1].Spec.Name != "gpu" ||
		starts[1].Flavor == nil || starts[1].Flavor.Name != "t4" {
		t.Errorf("got %+v", starts)
	}
	if starts = (backend{specs: specs}).plainStarts(); len(starts) != 1 || starts[0].Spec.Name != "cpu" {
		t.Errorf("without flavors: %+v", starts)
	}
}
