package settings

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRemoved: the flag, the key and the variable of each removed setting say what to use.
func TestRemoved(t *testing.T) {
	var environ []string
	for name, instead := range removed {
		if _, ok := optionNamed(name); ok || Removed(name) != instead || instead == "" {
			t.Errorf("%s is still a setting, or has no text", name)
		}
		file := yamlFile(t, "# comment\n"+name+": 1\n")
		want := fmt.Sprintf("%s:2: %s: was removed: %s", file, name, instead)
		if _, err := Load(from(map[string][]string{"config": {file}}, nil)); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		environ = append(environ, "EKG_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"=1")
	}
	slices.Sort(environ)
	got := RemovedVariables(append([]string{"EKG_LISTEN=x", "PATH=/bin"}, environ...))
	if len(got) != len(environ) {
		t.Errorf("of %d variables %d are removed ones", len(environ), len(got))
	}
	for i, v := range got {
		if v.Name+"=1" != environ[i] || v.Instead != removed[optionOf(v.Name)] {
			t.Errorf("got %+v for %s", v, environ[i])
		}
	}
	if stray := StrayVariables(environ); len(stray) > 0 {
		t.Errorf("%v are logged twice", stray)
	}
	if Removed("listen") != "" || len(RemovedVariables([]string{"EKG_KUBE_QPS="})) > 0 {
		t.Error("a setting, or an empty variable, is a removed one")
	}
}
