package deploy_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestHelm_Imported renders the chart with what `ekg config import --chart` and `ekg kernelspec convert --chart` print,
// for all options of Enterprise Gateway and all kernelspecs of their tests.
func TestHelm_Imported(t *testing.T) {
	const enterprise = "../cmd/ekg/enterprise/testdata/"
	program := filepath.Join(t.TempDir(), "ekg")
	if out, err := exec.Command("go", "build", "-o", program, "../cmd/ekg").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ekg := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(program, args...)
		var exit *exec.ExitError
		out, err := cmd.Output()
		if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 3) { // lines without a counterpart
			t.Fatalf("ekg %s: %v", args, err)
		}
		return string(out)
	}
	options, err := os.ReadFile(enterprise + "options.txt")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"config", "import", "--chart"}
	for _, name := range strings.Fields(string(options)) {
		if strings.HasSuffix(name, ".config_file") {
			continue // it names a file that is read
		}
		arg := name + "=1"
		if strings.Contains(name, ".") {
			arg = "--" + arg
		}
		args = append(args, arg)
	}
	dir := t.TempDir()
	ekg("kernelspec", "convert", "--output", dir, enterprise+"convert")
	all := mustTemplate(t, ekg(args...)+ekg("kernelspec", "convert", "--chart", enterprise+"convert"))

	var settings map[string]any
	config := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-config")
	if err := yaml.Unmarshal([]byte(config.Data["ekg.yaml"]), &settings); err != nil || len(settings) < 10 {
		t.Errorf("%v: the settings are %v", err, settings)
	}
	if s := object[corev1.Service](t, all, "Service ekg/ekg").Spec; s.Ports[0].Port != 1 {
		t.Errorf("the service is %+v", s)
	}
	specs := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-kernelspecs").Data
	files, err := filepath.Glob(filepath.Join(dir, "*", "kernel.json"))
	if err != nil || len(files) < 5 || len(files) != len(specs) {
		t.Errorf("%v: there are %d kernelspecs, and the chart has %d", err, len(files), len(specs))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		var got, want any
		name := filepath.Base(filepath.Dir(file))
		err = errors.Join(err, json.Unmarshal(text, &want), json.Unmarshal([]byte(specs[name+".json"]), &got))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v: got %v, want %v", name, err, got, want)
		}
	}
}
