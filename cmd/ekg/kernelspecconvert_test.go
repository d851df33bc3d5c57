package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// convertible is a folder of kernelspecs of Enterprise Gateway.
const convertible = "enterprise/testdata/convert"

// copySpec copies a kernelspec with its template, and gives it a logo.
func copySpec(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(convertible, name))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "logo-64x64.png"), []byte("logo"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A converted kernelspec is written into a new folder with its logo, and can be rendered. Files that exist are replaced
// with --force only.
func TestKernelspecConvert_Output(t *testing.T) {
	clearEnvironment(t)
	dir, out := copySpec(t, "gpu"), t.TempDir()
	want, err := os.ReadFile(filepath.Join(dir, "want.json"))
	if err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ekg(t, "kernelspec", "convert", "--output", out, dir)
	if code != 0 || stdout != "" || !strings.HasSuffix(stderr, "converted: "+dir+"; lines without a counterpart: 0\n") {
		t.Fatalf("got %d %q %q", code, stdout, stderr)
	}
	file := filepath.Join(out, "gpu", "kernel.json")
	if got, err := os.ReadFile(file); err != nil || string(got) != string(want) {
		t.Errorf("got %s, %v", got, err)
	}
	if logo, err := os.ReadFile(filepath.Join(out, "gpu", "logo-64x64.png")); err != nil || string(logo) != "logo" {
		t.Errorf("got %q, %v", logo, err)
	}
	if _, err := os.Stat(filepath.Join(out, "gpu", "scripts")); err == nil {
		t.Error("the template was copied")
	}
	code, stdout, stderr = ekg(t, "kernelspec", "render", "gpu", "--kernelspec-dir", out)
	if code != 0 || !strings.Contains(stdout, "image: registry.example/kernels/torch:2.9") {
		t.Errorf("render: got %d %q %q", code, stdout, stderr)
	}
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = ekg(t, "kernelspec", "convert", "--output", out, dir)
	if got, _ := os.ReadFile(file); code != 1 || string(got) != "mine" || !strings.Contains(stderr, "--force replaces") {
		t.Errorf("again: got %d %q %q", code, got, stderr)
	}
	code, _, _ = ekg(t, "kernelspec", "convert", "--force", "--output", out, dir)
	if got, _ := os.ReadFile(file); code != 0 || string(got) != string(want) {
		t.Errorf("with --force: got %d %q", code, got)
	}
	code, _, stderr = ekg(t, "kernelspec", "convert", "--force", "--output", filepath.Dir(dir), dir)
	if code != 1 || !strings.Contains(stderr, "is the kernelspec itself") {
		t.Errorf("onto itself: got %d %q", code, stderr)
	}
}

// The exit status says whether something was left out, and whether something could not be converted. What only the
// policy refuses is a note.
func TestKernelspecConvert_ExitStatus(t *testing.T) {
	clearEnvironment(t)
	homes, gpu := filepath.Join(convertible, "homes"), filepath.Join(convertible, "gpu")
	local := t.TempDir()
	if err := os.WriteFile(filepath.Join(local, "kernel.json"), []byte(`{"argv": ["k", "{connection_file}"]}`),
		0o644); err != nil {
		t.Fatal(err)
	}
	allowed := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(allowed, []byte("kernelspecs: {secrets: [object-store]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const note = "the policy refuses metadata.ekg.env[2].valueFrom.secretKeyRef.name"
	tests := []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"complete", []string{"--dry-run", gpu}, 0, "lines without a counterpart: 0\n"},
		{"lines left out", []string{"--dry-run", homes}, 3, "kernel-pod.yaml.j2:78: spec.volumes node: hostPath: "},
		{"a policy that does not allow it", []string{"--dry-run", homes}, 3, note},
		{"a policy that allows it", []string{"--dry-run", "--kube-policy", allowed, homes}, 3, ""},
		{"one cannot be converted", []string{"--dry-run", gpu, local}, 1, "starts no launcher of Enterprise Gateway"},
		{"another command", []string{"--dry-run", "--command", `["bash", "{connection_file}"]`, gpu}, 0, ""},
		{"a folder without a kernelspec", []string{"--dry-run", t.TempDir()}, 1, "has no kernel.json"},
		{"a template that is not there", []string{"--dry-run", "--template", "/nowhere", gpu}, 1, "no such file"},
		{"no folder", []string{"--dry-run"}, 2, "an argument is missing"},
		{"neither", []string{gpu}, 2, "give one of --output, --dry-run and --chart"},
		{"both", []string{"--dry-run", "--output", "x", gpu}, 2, "give one of --output, --dry-run and --chart"},
		{"both of another kind", []string{"--dry-run", "--chart", gpu}, 2, "give one of --output, --dry-run and --chart"},
		{"a command that is not a list", []string{"--dry-run", "--command", "bash", gpu}, 2, "--command: is not a list"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := ekg(t, append([]string{"kernelspec", "convert"}, tt.args...)...)
			if code != tt.code || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("got %d %q", code, stderr)
			}
			if strings.Contains(stderr, note) && tt.name == "a policy that allows it" {
				t.Errorf("got %q", stderr)
			}
			if (code == 0 || code == 3) != strings.Contains(stdout, `"ekg": {`) && tt.name != "one cannot be converted" {
				t.Errorf("got %q", stdout)
			}
			if tt.name == "another command" && !strings.Contains(stdout, `"bash",`) {
				t.Errorf("got %q", stdout)
			}
		})
	}
}

// Values for the chart have all kernelspecs that could be converted, and none of the chart's examples. They have no
// files, which a note says.
func TestKernelspecConvert_Chart(t *testing.T) {
	clearEnvironment(t)
	gpu, homes := copySpec(t, "gpu"), filepath.Join(convertible, "homes")
	upper := filepath.Join(t.TempDir(), "GPU")
	if err := os.CopyFS(upper, os.DirFS(gpu)); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := ekg(t, "kernelspec", "convert", "--chart", gpu, homes)
	if code != 3 || !strings.Contains(stderr, "note: "+gpu+": values of the chart have no files, so these are left out: "+
		"logo-64x64.png\n") {
		t.Errorf("got %d %q", code, stderr)
	}
	var values struct {
		Kernelspecs struct{ Specs map[string]any }
	}
	if err := yaml.Unmarshal([]byte(stdout), &values); err != nil {
		t.Fatalf("%v in\n%s", err, stdout)
	}
	var want any
	text, err := os.ReadFile(filepath.Join(gpu, "want.json"))
	if err == nil {
		err = yaml.Unmarshal(text, &want) // JSON is YAML
	}
	if err != nil {
		t.Fatal(err)
	}
	specs := values.Kernelspecs.Specs
	_, without := specs["python3-gpu"]
	if len(specs) != 4 || specs["homes"] == nil || specs["python3"] != nil || !without {
		t.Errorf("got\n%s", stdout)
	}
	if got := specs["gpu"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	code, stdout, stderr = ekg(t, "kernelspec", "convert", "--chart", gpu, upper)
	if code != 1 || !strings.Contains(stderr, upper+": not converted: there is a kernelspec gpu already") ||
		!strings.Contains(stdout, "\n    gpu:\n") {
		t.Errorf("two of one name: got %d %q %q", code, stdout, stderr)
	}
	missing := filepath.Join(t.TempDir(), "python3")
	if err := os.CopyFS(missing, os.DirFS(gpu)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(missing, "scripts")); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr = ekg(t, "kernelspec", "convert", "--chart", missing); code != 1 || stdout != "" {
		t.Errorf("none: got %d %q %q", code, stdout, stderr)
	}
}
