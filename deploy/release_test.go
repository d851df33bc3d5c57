package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// workflow is the part of the release workflow that the test needs.
type workflow struct {
	Jobs map[string]struct {
		Steps []struct{ ID, Run string }
	}
}

const (
	workflows       = "../.github/workflows/"
	releaseWorkflow = workflows + "release.yml"
)

// Each workflow names each action by a commit, and its version behind it. A tag could be moved to other code, which
// would then sign and publish. A workflow of this repository is the one of the same commit.
func TestRelease_Pinned(t *testing.T) {
	files, err := filepath.Glob(workflows + "*.yml")
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`uses: ([\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/\w+\.yml)$`)
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if !strings.Contains(line, "uses:") {
				continue
			}
			n++
			if !pinned.MatchString(line) {
				t.Errorf("%s: line %d: %q has no commit, or no version behind it", file, i+1, line)
			}
		}
	}
	if n == 0 {
		t.Error("the workflows use no action")
	}
}

// Pull requests, main and releases run what .ci/run runs, in one place. The nightly workflow runs the long form there.
func TestRelease_Tests(t *testing.T) {
	for file, lines := range map[string][]string{
		"test.yml":    {"  pull_request: {}\n", "  workflow_call:\n", "- run: ${{ inputs.run || '.ci/run' }}\n"},
		"release.yml": {"  test:\n    uses: ./.github/workflows/test.yml\n\n"},
		"nightly.yml": {"  schedule: [{cron: ", "    uses: ./.github/workflows/test.yml\n    with: {run: make chaos}\n"},
	} {
		text, err := os.ReadFile(workflows + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains(string(text), line) {
				t.Errorf("%s has no %q", file, line)
			}
		}
	}
}

// The release workflow accepts a tag only if the chart and the Python package have its number. A run by hand takes the
// chart's. The step is run in a shell, as GitHub does.
func TestRelease_Version(t *testing.T) {
	text, err := os.ReadFile(releaseWorkflow)
	if err != nil {
		t.Fatal(err)
	}
	var w workflow
	if err := yaml.Unmarshal(text, &w); err != nil {
		t.Fatal(err)
	}
	step := ""
	for _, s := range w.Jobs["version"].Steps {
		if s.ID == "version" {
			step = s.Run
		}
	}
	const chart = "deploy/helm/ekg/Chart.yaml"
	const python, migrate = "python/jupyter-ekg/jupyter_ekg/_version.py", "python/ekg-migrate/ekg_migrate/_version.py"
	read := func(file string) string {
		b, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for _, tt := range []struct {
		name          string
		python        string // its number; "": as committed
		kind, tag     string
		output, error string
	}{
		{"agreeing", "0.1.0", "tag", "v0.1.0", "version=0.1.0\n", ""},
		{"another tag", "0.1.0", "tag", "v0.1.1", "", "the tag is v0.1.1, the chart is 0.1.0"},
		{"another package", "0.1.0.dev0", "tag", "v0.1.0", "", "the Python packages are 0.1.0.dev0 and 0.1.0.dev0"},
		{"by hand", "", "branch", "main", "version=0.1.0\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			module := read(python)
			if tt.python != "" {
				module = "__version__ = \"" + tt.python + "\"\n"
			}
			for file, text := range map[string]string{chart: read(chart), python: module, migrate: module} {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("bash", "-e", "-c", step)
			cmd.Dir = dir
			output := filepath.Join(dir, "output")
			cmd.Env = append(os.Environ(), "GITHUB_REF_TYPE="+tt.kind, "GITHUB_REF_NAME="+tt.tag, "GITHUB_OUTPUT="+output)
			said, err := cmd.CombinedOutput()
			if (err != nil) != (tt.error != "") || !strings.Contains(string(said), tt.error) {
				t.Errorf("%v: %s", err, said)
			}
			if got, _ := os.ReadFile(output); string(got) != tt.output { // a step that fails leaves no file
				t.Errorf("the output is %q, want %q", got, tt.output)
			}
		})
	}
	// The committed files have the same number. The Python package adds a suffix until it is released.
	_, rest, _ := strings.Cut(read(python), `__version__ = "`)
	n, _, _ := strings.Cut(rest, `"`)
	if released, _, _ := strings.Cut(n, ".dev"); !strings.Contains(read(chart), "\nversion: "+released+"\n") {
		t.Errorf("the Python package is %s, and the chart has another number", n)
	}
}
