package settings

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// migrated has the outputs of ekg-migrate config; its tests hold them equal.
const migrated = "../../../testdata/enterprise/migrate/"

// ekg loads the files that ekg-migrate writes. Files of certificates and users need not exist.
func TestLoad_Migrated(t *testing.T) {
	for _, name := range []string{"python", "json", "chart", "precedence", "nothing"} {
		text, err := os.ReadFile(migrated + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "ekg.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		// An installation of Enterprise Gateway has no source of users.
		users := strings.Contains("\n"+string(text), "\nauthorized-user:") ||
			strings.Contains(string(text), "\nunauthorized-user:")
		_, err = Load(Sources{
			Flags: func(name string) ([]string, bool) {
				return []string{path}, name == "config" || name == "users-file" && users
			},
			Getenv: func(name string) string { return map[string]string{"HOME": "/home/u"}[name] },
		})
		if err != nil {
			t.Errorf("%s.yaml: %v", name, err)
		}
	}
}

// Each setting that the table of Enterprise Gateway's options names exists, and has its variables after its own.
func TestOptions_Enterprise(t *testing.T) {
	want := map[string][]string{
		"kube-namespace": {"EKG_KUBE_NAMESPACE", "EG_NAMESPACE"},
		"client-env":     {"EKG_CLIENT_ENV", "EG_CLIENT_ENVS", "EG_ENV_WHITELIST"},
		"cull-interval":  {"EKG_CULL_INTERVAL", "EG_CULL_INTERVAL"},
		"cull-busy":      {"EKG_CULL_BUSY", "EG_CULL_BUSY"},
		"token":          {"EKG_TOKEN", "EG_AUTH_TOKEN"},
		"listen":         {"EKG_LISTEN"}, // EG_IP and EG_PORT are joined
	}
	for name, variables := range want {
		if o, ok := optionNamed(name); !ok || !slices.Equal(o.Env, variables) {
			t.Errorf("%s: got %v", name, o.Env)
		}
	}
	for _, e := range enterpriseTable.Options {
		if e.Setting == "" {
			continue
		}
		o, ok := optionNamed(e.Setting)
		if !ok {
			t.Errorf("%v: there is no setting %s", e.Traits, e.Setting)
		}
		for _, name := range enterpriseTable.Variables(e.Setting) {
			if o.Name != "listen" && !slices.Contains(o.Env, name) {
				t.Errorf("%s lacks %s", o.Name, name)
			}
		}
	}
	if names := enterpriseTable.Variables("listen"); !slices.Equal(names, []string{"EG_IP", "EG_PORT"}) {
		t.Errorf("listen: got %v", names)
	}
}

// EG_ALLOWED_KERNELS is a list in JSON as Enterprise Gateway's chart writes it, or one of its documents' forms.
func TestLoad_EnterpriseLists(t *testing.T) {
	for text, want := range map[string][]string{
		`["r_kubernetes","python_kubernetes"]`: {"r_kubernetes", "python_kubernetes"},
		"'r_docker','python_docker'":           {"r_docker", "python_docker"},
		"a, b":                                 {"a", "b"},
		"null":                                 nil,
		"[]":                                   nil,
	} {
		for _, name := range []string{"EG_ALLOWED_KERNELS", "EG_KERNEL_WHITELIST"} {
			s, err := Load(from(nil, map[string]string{name: text}))
			if err != nil || !slices.Equal(s.Specs.Allowed, want) {
				t.Errorf("%s=%s: %q, %v", name, text, s.Specs.Allowed, err)
			}
		}
	}
}
