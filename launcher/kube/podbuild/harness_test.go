package podbuild

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const testID = "0f1e2d3c-4b5a-4968-8778-695a4b3c2d1e"

// testOptions returns the options of the tests' pods.
func testOptions() Options {
	return Options{Namespace: "kernels", SupervisorImage: "registry.example/ekg:1.0"}
}

func testRecord(spec string) podspec.Record {
	return podspec.Record{ID: testID, Generation: 1, Owner: "ann", SpecName: spec,
		Created:  time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		Protocol: 1, KeyVersion: 1}
}

// readSpec reads a kernelspec of testdata, which must have no problems.
func readSpec(t *testing.T, name string, o Options) kernelspecs.Spec {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join("testdata", name, "kernel.json"))
	if err != nil {
		t.Fatal(err)
	}
	return writeSpec(t, dir, name, string(text), o)
}

// writeSpec writes and reads a kernelspec, which must have no problems.
func writeSpec(t *testing.T, dir, name, text string, o Options) kernelspecs.Spec {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name, "kernel.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range kernelspecs.Check(filepath.Join(dir, name), "", o.Check(nil)) {
		t.Errorf("kernelspec: %v", p)
	}
	f, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Check: o.Check(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	spec, ok := f.Get(name)
	if !ok {
		t.Fatalf("no kernelspec %s: %v", name, f.Problems())
	}
	return spec
}

// specOf returns a kernelspec with a metadata.ekg.
func specOf(ekg string) kernelspecs.Spec {
	return kernelspecs.Spec{Name: "test", Argv: []string{"prog", "{connection_file}"},
		Metadata: json.RawMessage(`{"ekg": ` + ekg + `}`)}
}

// golden compares an object with its file, and the strictly decoded file with the object.
func golden(t *testing.T, name string, object, decoded any) {
	t.Helper()
	got, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; run with -update and read the difference. got:\n%s", file, got)
	}
	if err := yaml.UnmarshalStrict(want, decoded); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	if !apiequality.Semantic.DeepEqual(object, decoded) {
		t.Errorf("%s does not say all that the object holds", file)
	}
}

// expand follows the kubelet's rule for env values and commands, from the description of EnvVar.value: $(NAME) is
// replaced by a variable's value, or stays if there is no such variable; $$ becomes $, so that $$(NAME) is never
// replaced.
func expand(text string, vars map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		if text[i+1] == '$' {
			b.WriteByte('$')
			i++
			continue
		}
		end := strings.IndexByte(text[i:], ')')
		if text[i+1] != '(' || end < 0 {
			b.WriteByte('$')
			continue
		}
		if value, ok := vars[text[i+2:i+end]]; ok {
			b.WriteString(value)
		} else {
			b.WriteString(text[i : i+end+1])
		}
		i += end
	}
	return b.String()
}

// configOf returns the configuration that the supervisor reads after the kubelet's expansion.
func configOf(t interface {
	Helper()
	Fatal(...any)
}, pod *corev1.Pod) api.Config {
	t.Helper()
	var cfg api.Config
	for _, e := range pod.Spec.Containers[0].Env {
		if e.Name == api.PodConfigVariable {
			if err := json.Unmarshal([]byte(expand(e.Value, map[string]string{"HOME": "/expanded"})), &cfg); err != nil {
				t.Fatal(err)
			}
		}
	}
	return cfg
}
