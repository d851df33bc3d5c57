package wish

import (
	"os"
	"path/filepath"
	"testing"
)

// policyOf reads a policy, which must be valid.
func policyOf(t testing.TB, text string) *Policy {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ReadPolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
