package settings

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestPrintSettings_RoundTrip: `ekg config` prints a config file with the same meaning.
func TestPrintSettings_RoundTrip(t *testing.T) {
	flags := map[string][]string{
		"listen":            {"unix:/run/x y.sock"},
		"no-auth":           {"true"},
		"kernelspec-dir":    {"/a, b", "/#c", "no"},
		"client-env":        {"TRUE", "null"},
		"start-wait":        {"90s"},
		"log-limit":         {"1000"},
		"max-body":          {"1536KiB"},
		"default-kernel":    {"true"},
		"log-level":         {"WARNING"},
		"state-dir":         {"rel"},
		"cull-idle-timeout": {"90"},
		"cull-gpu":          {"0.25"},
		"cull-connected":    {"false"},
	}
	s, err := Load(from(flags, nil))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, s); err != nil {
		t.Fatal(err)
	}
	file := yamlFile(t, out.String())
	again, err := Load(from(map[string][]string{"config": {file}}, nil))
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	s.origins, again.origins, again.Config = nil, nil, ""
	if !reflect.DeepEqual(again, s) {
		t.Errorf("got  %+v\nwant %+v\n%s", again, s, out.String())
	}
}

func TestPrintSettings(t *testing.T) {
	s, err := Load(from(map[string][]string{"listen": {"127.0.0.1:0"}}, map[string]string{"EG_AUTH_TOKEN": "canary"}))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, s); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "canary") {
		t.Error("the token is in it")
	}
	for name, source := range map[string]string{
		"listen: 127.0.0.1:0": "flag", `token: "********"`: "EG_AUTH_TOKEN", "log-limit: auto": "default",
		"allow-origin: []": "default", "state-dir: /home/u/.local/state/ekg": "default",
	} {
		if line := fmt.Sprintf("%-40s # %s\n", name, source); !strings.Contains(out.String(), line) {
			t.Errorf("no line %q in\n%s", line, out.String())
		}
	}
}
