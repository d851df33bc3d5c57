package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/poll"
)

// A warm kernel has the kernelspec's own flavor, as the file says at that moment. A kernelspec whose flavor does not
// exist is left out. Profiles have no warm kernels.
func TestWanted(t *testing.T) {
	dir := t.TempDir()
	for name, ekg := range map[string]string{
		"cpu":  `{}`,
		"gpu":  `{"flavor": "t4", "warm": 1}`,
		"none": `{"flavor": "missing", "warm": 1}`,
		"many": `{"image": "a", "warm": 2, "profiles": [{"name": "big", "image": "b", "flavor": "t4"}]}`,
	} {
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
	got := func(w *wanted) (names []string) {
		for _, k := range w.warmKernels() {
			name := k.Start.Spec.Name
			if k.Start.Flavor != nil {
				name += "/" + k.Start.Flavor.Name
			}
			names = append(names, name)
		}
		return names
	}
	if with, want := got(&wanted{specs: specs, flavors: flavors}), []string{"gpu/t4", "many"}; !slices.Equal(with, want) {
		t.Errorf("got %q, want %q", with, want)
	}
	if without, want := got(&wanted{specs: specs}), []string{"many"}; !slices.Equal(without, want) {
		t.Errorf("without flavors: %q, want %q", without, want)
	}

	// A change of the file or of a kernelspec counts at once.
	w := &wanted{specs: specs, flavors: flavors}
	if err := os.WriteFile(file, []byte("flavors: [{name: missing, gpu: {}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if now, want := got(w), []string{"many", "none/missing"}; !slices.Equal(now, want) {
		t.Errorf("with other flavors: %q, want %q", now, want)
	}
	text := `{"argv": ["prog", "{connection_file}"], "display_name": "x", "language": "x", "metadata": {"ekg": {"warm": 3}}}`
	if err := os.WriteFile(filepath.Join(dir, "cpu", "kernel.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, "a kernelspec has changed", func() bool { return len(w.warmKernels()) == 3 })
	if warm := w.warmKernels()[0]; warm.Start.Spec.Name != "cpu" || warm.Count != 3 {
		t.Errorf("%+v", warm)
	}
}
