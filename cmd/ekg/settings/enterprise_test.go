package settings

import (
	"slices"
	"testing"
)

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
			if err != nil || !slices.Equal(s.AllowedKernelspecs, want) {
				t.Errorf("%s=%s: %q, %v", name, text, s.AllowedKernelspecs, err)
			}
		}
	}
}
