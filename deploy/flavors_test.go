package deploy_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

// The shipped examples are valid, and the gateway reads them from the folder that is mounted.
func TestFlavors(t *testing.T) {
	m := find[*corev1.ConfigMap](t, flavors, "ekg-flavors")
	path := filepath.Join(t.TempDir(), "flavors.yaml")
	if err := os.WriteFile(path, []byte(m.Data["flavors.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := flavor.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(file.List()); n < 3 {
		t.Errorf("%d flavors", n)
	}
}

// An operator's overlay replaces the examples as the component's file says.
func TestFlavors_Replaced(t *testing.T) {
	here, err := filepath.Abs("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in := func(part string) string {
		rel, err := filepath.Rel(dir, filepath.Join(here, part))
		if err != nil {
			t.Fatal(err)
		}
		return rel
	}
	text := "resources: [" + in("overlays/token") + "]\ncomponents: [" + in("components/flavors") + "]\n" +
		"patches: [path: flavors.yaml]\n"
	const mine = "{apiVersion: v1, kind: ConfigMap, metadata: {name: ekg-flavors, namespace: ekg}, " +
		"data: {flavors.yaml: \"flavors: []\\n\"}}\n"
	for name, text := range map[string]string{"kustomization.yaml": text, "flavors.yaml": mine} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, r := range made.Resources() {
		if r.GetKind() != "ConfigMap" || r.GetName() != "ekg-flavors" {
			continue
		}
		found = true
		if got := r.GetDataMap()["flavors.yaml"]; got != "flavors: []\n" {
			t.Errorf("the flavors are %q", got)
		}
	}
	if !found {
		t.Error("there is no ConfigMap ekg-flavors")
	}
}
