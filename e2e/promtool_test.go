//go:build e2e

package e2e

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestE2E_Promtool checks a gateway's metrics, the alerts and the dashboard's queries with Prometheus' own tool.
func TestE2E_Promtool(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	tool := func(t *testing.T, stdin io.Reader, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(in.dir, "bin", "promtool"), args...)
		cmd.Dir, cmd.Stdin = filepath.Join(in.repository, "deploy", "monitoring"), stdin
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	t.Run("metrics", func(t *testing.T) {
		address := freeAddress(t, "127.0.0.3")
		g := newGateway(t, "--metrics-listen", address)
		g.dial(t, g.kernel("python3"), "s", true).says("print(1)", "1\n")
		text := scrape(t, address)
		if !strings.Contains(text, `ekg_kernel_start_seconds_count{spec="python3"} 1`) {
			t.Fatal(text)
		}
		tool(t, strings.NewReader(text), "check", "metrics")
	})
	t.Run("alerts", func(t *testing.T) {
		tool(t, nil, "check", "rules", "rules.yaml")
		tool(t, nil, "test", "rules", "rules_test.yaml")
	})
	t.Run("dashboard", func(t *testing.T) {
		var board struct {
			Panels []struct{ Targets []struct{ Expr string } }
		}
		text, err := os.ReadFile(filepath.Join(in.repository, "deploy", "monitoring", "dashboard.json"))
		if err == nil {
			err = json.Unmarshal(text, &board)
		}
		if err != nil {
			t.Fatal(err)
		}
		var rules []map[string]string // each query is checked as a recording rule
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				rules = append(rules,
					map[string]string{"record": "query", "expr": strings.ReplaceAll(q.Expr, "$__rate_interval", "5m")})
			}
		}
		if len(rules) < 20 {
			t.Fatalf("%d queries: the test proves nothing", len(rules))
		}
		group := map[string]any{"name": "dashboard", "rules": rules}
		text, err = json.Marshal(map[string]any{"groups": []any{group}}) // JSON is YAML
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "dashboard.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		tool(t, nil, "check", "rules", "--lint=none", path) // the rules share a name, which the linter would report
	})
}
