package kernelspecs

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func specWith(ekg string) Spec {
	return Spec{Name: "torch", DisplayName: "PyTorch", Env: map[string]string{"A": "own", "B": "own"},
		Metadata: json.RawMessage(`{"debugger": true, "ekg": ` + ekg + `}`)}
}

// A profile changes what it names, and nothing else. The spec itself stays as it is.
func TestSpec_WithProfile(t *testing.T) {
	const profiles = `"profiles": [
		{"name": "all", "displayName": "All", "image": "y", "flavor": "t4", "cpu": "8", "memory": "64Gi", "env": {"A": "1"}},
		{"name": "none"}]`
	for _, tt := range []struct{ name, ekg, profile, want string }{
		{"over settings", `{"image": "x", "flavor": "a", "resources": {"requests": {"memory": "1Gi", "x.com/y": 1},
			"limits": {"cpu": 2}, "claims": []}, "env": [{"name": "A", "value": "2"}, {"name": "C"}], ` + profiles + `}`, "all",
			`{"debugger":true,"ekg":{"env":[{"name":"C"}],"flavor":"t4","image":"y","resources":{"claims":[],` +
				`"limits":{"cpu":"8","memory":"64Gi"},"requests":{"cpu":"8","memory":"64Gi","x.com/y":1}}}}`},
		{"over nothing", `{` + profiles + `}`, "all", `{"debugger":true,"ekg":{"flavor":"t4","image":"y","resources":{` +
			`"limits":{"memory":"64Gi"},"requests":{"cpu":"8","memory":"64Gi"}}}}`},
		{"with nothing", `{"image": "x", ` + profiles + `}`, "none", `{"debugger":true,"ekg":{"image":"x"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := specWith(tt.ekg)
			before := string(spec.Metadata)
			with, ok, err := spec.WithProfile(tt.profile)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if got := string(with.Metadata); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			env := map[string]string{"A": "own", "B": "own"}
			if !maps.Equal(spec.Env, env) || string(spec.Metadata) != before {
				t.Error("the spec has changed")
			}
			if tt.profile == "all" {
				env["A"] = "1"
			}
			if !maps.Equal(with.Env, env) || with.Name != "torch" || with.Profile != tt.profile {
				t.Errorf("got %+v", with)
			}
		})
	}
	for _, ekg := range []string{`{}`, `{` + profiles + `}`} {
		if _, ok, err := specWith(ekg).WithProfile("other"); ok || err != nil {
			t.Errorf("%s has the profile: %v, %v", ekg, ok, err)
		}
	}
	if got := specWith(`{` + profiles + `}`).Profiles(); len(got) != 2 || got[0].Title() != "All" || got[1].Title() != "none" {
		t.Errorf("got %+v", got)
	}
}

// Bad profiles are reported with their line, and their kernelspec is not served.
func TestReadSpec_Profiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spec")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for profiles, want := range map[string]string{
		`[{"name": "a--b"}]`: `:2: metadata.ekg.profiles[0].name: "a--b" is not a name of small letters`,
		`[{"name": "A"}]`:    `:2: metadata.ekg.profiles[0].name: "A" is not a name`,
		`[{"name": "a-"}]`:   `:2: metadata.ekg.profiles[0].name: "a-" is not a name`,
		`[{}]`:               `:2: metadata.ekg.profiles[0].name: "" is not a name`,
		"[{\"name\": \"a\"},\n{\"name\": \"a\"}]": `:3: metadata.ekg.profiles[1].name: "a" is given twice`,
		`[{"name": "a", "memory": "lots"}]`:       `:2: metadata.ekg.profiles[0].memory: "lots" is not an amount like 2`,
		`[{"name": "a", "cpu": "-1"}]`:            `:2: metadata.ekg.profiles[0].cpu: "-1" is not an amount`,
		`[{"name": "a", "cpu": 1}]`:               `metadata.ekg.profiles[0].cpu: is a number, not a string`,
		`[{"name": "a", "env": {"A=B": "x"}}]`:    `:2: metadata.ekg.profiles[0].env: "A=B" cannot be a variable`,
		`[{"name": "a", "Image": "x"}]`:           `metadata.ekg.profiles[0].Image: cannot be set; valid keys: cpu, displayName`,
		`{"a": {}}`:                               `metadata.ekg.profiles: is an object, not an array`,
		`[` + strings.Repeat("{},", 32) + `{}]`:   `:2: metadata.ekg.profiles: has 33 profiles; at most 32 are allowed`,
		`[{"name": "a.b_c-d1"}]`:                  ``,
	} {
		text := `{"argv": ["x"], "display_name": "x", "language": "x",` + "\n" + `"metadata": {"ekg": {"profiles": ` + profiles +
			`}}}`
		if err := os.WriteFile(filepath.Join(dir, "kernel.json"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range Check(dir, "", nil) {
			if strings.Contains(p.Key, "profiles") {
				got = append(got, p.String())
			}
		}
		if (len(got) == 0) != (want == "") || !slices.ContainsFunc(append(got, ""),
			func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("%s: got %q, want %q", profiles, got, want)
		}
	}
}
