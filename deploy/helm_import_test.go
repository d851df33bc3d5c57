package deploy_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestHelm_Imported renders the chart with what ekg-migrate prints with --chart, for all options of Enterprise Gateway
// and all kernelspecs of its tests. Those tests hold the files equal to its output.
func TestHelm_Imported(t *testing.T) {
	const data = "../testdata/enterprise/migrate/"
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(data + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	all := mustTemplate(t, read("all-values.yaml")+read("specs.yaml"))

	var settings map[string]any
	config := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-config")
	if err := yaml.Unmarshal([]byte(config.Data["ekg.yaml"]), &settings); err != nil || len(settings) < 10 {
		t.Errorf("%v: the settings are %v", err, settings)
	}
	if s := object[corev1.Service](t, all, "Service ekg/ekg").Spec; s.Ports[0].Port != 1 {
		t.Errorf("the service is %+v", s)
	}
	specs := object[corev1.ConfigMap](t, all, "ConfigMap ekg/ekg-kernelspecs").Data
	files, err := filepath.Glob(data + "convert/*/want.json")
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
