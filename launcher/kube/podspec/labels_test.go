package podspec

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Every name is a valid value, and no two names have the same one.
func TestLabelValue(t *testing.T) {
	hashed := LabelValue("ann@example.com")
	names := []string{"ann", "Ann", "a.b_c-d", "ann@example.com", hashed, "-ann", "", "Ünal", strings.Repeat("a", 63),
		strings.Repeat("a", 64), "ann ", "sha256-"}
	seen := map[string]string{}
	for _, name := range names {
		value := LabelValue(name)
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			t.Errorf("%q becomes %q: %v", name, value, problems)
		}
		if other, ok := seen[value]; ok {
			t.Errorf("%q and %q both become %q", name, other, value)
		}
		seen[value] = name
	}
	if LabelValue("ann") != "ann" {
		t.Errorf("a valid name becomes %q", LabelValue("ann"))
	}
	// printf %s ann@example.com | sha256sum
	if want := "sha256-71d4f55f72fa128dfb468a1a3901507c804b7431"; hashed != want {
		t.Errorf("got %s, want %s", hashed, want)
	}
}
