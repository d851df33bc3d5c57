package house

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// finding is an entry of a database, in the form of https://ossf.github.io/osv-schema: every version of a module is
// affected, if the code calls a function of one of its packages.
const finding = `{
	"schema_version": "1.3.1", "id": "GO-2000-0001", "modified": "2026-01-01T00:00:00Z",
	"published": "2026-01-01T00:00:00Z", "summary": "made for a test", "details": "made for a test",
	"database_specific": {"url": "https://pkg.go.dev/vuln/GO-2000-0001"},
	"affected": [{
		"package": {"name": "golang.org/x/sys", "ecosystem": "Go"},
		"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}]}],
		"ecosystem_specific": {"imports": [{"path": "golang.org/x/sys/unix", "symbols": ["FUNCTION"]}]}
	}]
}`

// TestVulncheck runs hack/vulncheck for one package with small databases. AdoptOrphans of that package calls Prctl.
func TestVulncheck(t *testing.T) {
	database := func(function string) string {
		dir := t.TempDir()
		text := strings.Replace(finding, "FUNCTION", function, 1)
		if err := os.WriteFile(filepath.Join(dir, "GO-2000-0001.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "file://" + dir
	}
	for _, c := range []struct {
		name, database string
		code           int
		want           string
	}{
		{"a function that is called", database("Prctl"), 3, "GO-2000-0001"},
		{"a function that is not called", database("Mlockall"), 0, "affected by 0 vulnerabilities"},
		{"no database", "file://" + filepath.Join(t.TempDir(), "none"), 1, "nothing was checked"},
		{"no server", "http://127.0.0.1:1", 1, "Set GOVULNDB to a copy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("../vulncheck", "./launcher/proctree")
			cmd.Env = append(os.Environ(), "GOVULNDB="+c.database)
			out, err := cmd.CombinedOutput()
			code := 0
			if ended, ok := errors.AsType[*exec.ExitError](err); ok {
				code = ended.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != c.code || !strings.Contains(string(out), c.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s", code, c.code, c.want, out)
			}
		})
	}
}
