//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// This file tests python/ekg-migrate, which translates what Enterprise Gateway's operators have.

// installMigrate installs the checkout's ekg-migrate into a folder, once, and returns the folder.
var installMigrate = sync.OnceValues(func() (string, error) {
	in, err := install()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(in.artifacts, "ekg-migrate")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	out, err := exec.Command(filepath.Join(in.repository, "hack/env/extension"), dir, "ekg-migrate").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("hack/env/extension: %w\n%s", err, out)
	}
	return dir, nil
})

// migrateProgram returns the program ekg-migrate, and the variables that it needs.
func migrateProgram(t *testing.T, in installed) (program string, env []string) {
	t.Helper()
	dir, err := installMigrate()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bin/ekg-migrate"), []string{"PYTHONPATH=" + dir, "PYTHONDONTWRITEBYTECODE=1",
		"PATH=" + in.bin + ":" + os.Getenv("PATH"), "LANG=C.UTF-8"}
}

// migrateCommand is a command line of ekg-migrate.
func migrateCommand(t *testing.T, in installed, args ...string) *exec.Cmd {
	t.Helper()
	program, env := migrateProgram(t, in)
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// TestE2E_MigratePackage runs the tests of ekg-migrate, as pip installs it, with this ekg.
func TestE2E_MigratePackage(t *testing.T) {
	t.Parallel()
	in := theInstallation(t)
	_, env := migrateProgram(t, in)
	cmd := exec.CommandContext(t.Context(), filepath.Join(in.dir, "lab/bin/python"), "-m", "pytest", "-p",
		"no:cacheprovider")
	cmd.Dir = filepath.Join(in.repository, "python/ekg-migrate")
	cmd.Env = append(env, "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), " passed") {
		t.Errorf("pytest: %v", err)
	}
	if out, err := migrateCommand(t, in, "--version").CombinedOutput(); err != nil {
		t.Errorf("ekg-migrate --version: %v\n%s", err, out)
	}
}
