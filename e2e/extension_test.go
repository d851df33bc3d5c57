//go:build e2e

package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// This file tests python/jupyter-ekg, the extension for Jupyter Server.

// installExtension installs the checkout's extension into a folder, once, and returns the folder.
var installExtension = sync.OnceValues(func() (string, error) {
	in, err := install()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(in.artifacts, "extension")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if out, err := exec.Command(filepath.Join(in.repository, "hack/env/extension"), dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("hack/env/extension: %w\n%s", err, out)
	}
	return dir, nil
})

func theExtension(t *testing.T) string {
	t.Helper()
	dir, err := installExtension()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestE2E_Away interrupts the path between JupyterLab and the kernel, with the extension and without it.
func TestE2E_Away(t *testing.T) { away(t) }

// TestChaos_Away runs the same test with longer interruptions, in `make chaos`.
func TestChaos_Away(t *testing.T) { away(t, "EKG_LONG=1") }

func away(t *testing.T, env ...string) {
	in := theInstallation(t)
	columns := map[string]string{"with jupyter-ekg": theExtension(t), "without": ""}
	results := filepath.Join(in.artifacts, t.Name())
	t.Cleanup(func() { measuredTable(t, results) })
	for name, dir := range columns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, control := killable(t)
			env := slices.Concat(control, env, []string{
				"EKG_EXTENSION=" + dir,
				"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
			})
			g.script(20*time.Minute, env, "node", filepath.Join(in.repository, "e2e/testdata/browser/away.mjs"))
		})
	}
}

// measuredTable writes the scripts' measurements side by side into a Markdown file.
func measuredTable(t *testing.T, results string) {
	t.Helper()
	rows := map[string][2]string{}
	for i, column := range []string{"with_jupyter-ekg", "without"} {
		b, err := os.ReadFile(filepath.Join(results+"-"+column, "measured.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not run, or failed before it measured anything
		}
		var measured map[string]string
		if err := cmp.Or(err, json.Unmarshal(b, &measured)); err != nil {
			t.Error(err)
		}
		for scenario, what := range measured {
			row := rows[scenario]
			row[i] = what
			rows[scenario] = row
		}
	}
	table := "| | with jupyter-ekg | without |\n| --- | --- | --- |\n"
	for _, scenario := range slices.Sorted(maps.Keys(rows)) {
		table += fmt.Sprintf("| %s | %s | %s |\n", scenario, rows[scenario][0], rows[scenario][1])
	}
	if err := os.WriteFile(results+".md", []byte(table), 0o644); err != nil {
		t.Error(err)
	}
}

// killable returns a gateway that a script may kill, and the environment that the script needs to do so.
func killable(t *testing.T, args ...string) (*gateway, []string) {
	t.Helper()
	g := prepare(t, "", args...)
	g.moveTo("127.0.0.2") // no other program takes its port while it is down
	g.start()
	control := httptest.NewServer(g.control())
	t.Cleanup(control.Close)
	return g, []string{"EKG_CONTROL=" + control.URL}
}

// TestE2E_ExtensionServers tests the extension without a page, in the newest and in the oldest jupyter_server that it
// supports.
func TestE2E_ExtensionServers(t *testing.T) {
	t.Parallel()
	in, extension := theInstallation(t), theExtension(t)
	for _, name := range []string{"lab", "server20"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, env := killable(t)
			env = append(env, "EKG_EXTENSION="+extension, "EKG_SERVER="+filepath.Join(in.dir, name, "bin/python"))
			g.script(5*time.Minute, env,
				filepath.Join(in.dir, "lab/bin/python"), filepath.Join(in.repository, "e2e/testdata/python/relay.py"))
		})
	}
}

// TestE2E_ExtensionNbmodel runs cells with jupyter-server-nbmodel, an extension that makes clients of its own with
// km.client(), beside jupyter-ekg.
func TestE2E_ExtensionNbmodel(t *testing.T) {
	t.Parallel()
	in, extension := theInstallation(t), theExtension(t)
	for _, name := range []string{"lab", "server20"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, env := killable(t)
			env = append(env, "EKG_EXTENSION="+extension, "EKG_NBMODEL="+filepath.Join(in.dir, "nbmodel"),
				"EKG_SERVER="+filepath.Join(in.dir, name, "bin/python"))
			g.script(5*time.Minute, env,
				filepath.Join(in.dir, "lab/bin/python"), filepath.Join(in.repository, "e2e/testdata/python/nbmodel.py"))
		})
	}
}

// TestE2E_ExtensionPrograms runs notebooks with nbclient, papermill and nbconvert through the extension's kernel
// manager.
func TestE2E_ExtensionPrograms(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	extension := theExtension(t)
	g, env := killable(t)
	env = append(env, "PYTHONPATH="+extension, "JUPYTER_GATEWAY_URL="+g.url, "JUPYTER_GATEWAY_AUTH_TOKEN="+g.token)
	g.script(5*time.Minute, env,
		filepath.Join(in.dir, "lab/bin/python"), filepath.Join(in.repository, "e2e/testdata/python/programs.py"))
}

// TestE2E_ExtensionUsers: outputs that another user may have caused are restored untrusted, and not into a file.
func TestE2E_ExtensionUsers(t *testing.T) {
	extension := theExtension(t)
	g := prepare(t, "")
	file := filepath.Join(g.dir, "users.yaml")
	users := fmt.Sprintf("users:\n- {name: ann, tokens: [%q]}\n- {name: bob, tokens: [%q]}\n",
		identity.Hash("token-ann"), identity.Hash("token-bob"))
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	g.args = append(g.args, "--users-file", file)
	g.token = ""
	g.start()
	g.script(5*time.Minute, []string{
		"EKG_EXTENSION=" + extension,
		"EKG_TOKEN_ANN=token-ann",
		"EKG_TOKEN_BOB=token-bob",
		"EKG_ARTIFACTS=" + strings.TrimSuffix(g.log, ".log"),
	}, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/users.mjs"))
}

// TestE2E_ExtensionDialogs reads what JupyterLab's dialogs say about kernels that do not start.
func TestE2E_ExtensionDialogs(t *testing.T) {
	extension := theExtension(t)
	g, env := killable(t)
	g.spec("long-words", "/bin/sh", "-c", "echo No module named "+strings.Repeat("x", 150)+" >&2; exit 3")
	env = append(env, "EKG_EXTENSION="+extension, "EKG_ARTIFACTS="+strings.TrimSuffix(g.log, ".log"))
	g.script(5*time.Minute, env, "node", filepath.Join(g.in.repository, "e2e/testdata/browser/dialogs.mjs"))
}

// TestE2E_ExtensionPackage runs the extension's own tests: in the newest and in the oldest jupyter_server that it
// supports, and those of its scheduler with jupyter-scheduler.
func TestE2E_ExtensionPackage(t *testing.T) {
	t.Parallel()
	in, extension := theInstallation(t), theExtension(t)
	for _, run := range []struct {
		name, venv string
		tests      []string // none: all
	}{
		{"lab", "lab", nil}, {"server20", "server20", nil}, {"jobs", "lab", []string{"tests/test_scheduler.py"}},
	} {
		t.Run(run.name, func(t *testing.T) {
			t.Parallel()
			path := extension
			if run.name == "jobs" {
				path += ":" + filepath.Join(in.dir, "jobs")
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(in.dir, run.venv, "bin/python"),
				append([]string{"-m", "pytest", "-p", "no:cacheprovider"}, run.tests...)...)
			cmd.Dir = filepath.Join(in.repository, "python/jupyter-ekg")
			cmd.Env = []string{
				"PATH=" + os.Getenv("PATH"),
				"HOME=" + t.TempDir(),
				"LANG=C.UTF-8",
				"PYTHONDONTWRITEBYTECODE=1",
				"PYTHONPATH=" + path,
				"JUPYTER_CONFIG_PATH=" + filepath.Join(extension, "etc/jupyter"),
				"JUPYTER_PATH=" + filepath.Join(extension, "share/jupyter"),
			}
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil || !strings.Contains(string(out), " passed") {
				t.Errorf("pytest: %v", err)
			}
		})
	}
}
