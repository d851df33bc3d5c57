package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// A plain start has the kernelspec's own flavor, as the file says at that moment. A kernelspec whose flavor does not
// exist is left out. Each profile has a start of its own, with its own flavor.
func TestBackend_PlainStarts(t *testing.T) {
	dir := t.TempDir()
	for name, ekg := range map[string]string{"cpu": `{}`, "gpu": `{"flavor": "t4"}`, "none": `{"flavor": "missing"}`,
		"many": `{"image": "a", "profiles": [{"name": "big", "image": "b", "flavor": "t4"}, {"name": "lost",
			"flavor": "missing"}]}`} {
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
	got := func(b backend) (names []string) {
		for _, r := range b.plainStarts() {
			name := r.Spec.Name + "/" + r.Spec.Profile
			if r.Flavor != nil {
				name += "/" + r.Flavor.Name
			}
			names = append(names, name)
		}
		return names
	}
	if with, want := got(backend{specs: specs, flavors: flavors}), []string{"cpu/", "gpu//t4", "many/",
		"many/big/t4"}; !slices.Equal(with, want) {
		t.Errorf("got %q, want %q", with, want)
	}
	if without, want := got(backend{specs: specs}), []string{"cpu/", "many/"}; !slices.Equal(without, want) {
		t.Errorf("without flavors: %q, want %q", without, want)
	}
}
