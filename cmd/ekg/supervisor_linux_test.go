package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSupervisorUpgrade(t *testing.T) {
	clearEnvironment(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "ekg-supervisor")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	const id = "3f0a6f5e-1d2c-4b7a-9e10-000000000001"
	for name, tt := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"no kernel": {nil, 2, "", "ekg: ekg supervisor upgrade: name kernels, or all of them with --all\n"},
		"both": {[]string{"--all", id}, 2, "",
			"ekg: ekg supervisor upgrade: name kernels, or all of them with --all\n"},
		"in a cluster": {[]string{"--launcher", "kubernetes", id}, 2, "", "ekg: --launcher: only kernels of this machine " +
			"can get another supervisor; in a pod the image fixes the program\n"},
		"no such kernel": {[]string{id, "x"}, 1,
			id + " not upgraded: no kernel has this id\nx not upgraded: \"x\" is not a kernel id\n",
			"ekg: some supervisors were not upgraded\n"},
		"no kernels at all": {[]string{"--all"}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"supervisor", "upgrade", "--state-dir", dir, "--supervisor", program}, tt.args...)
			code, stdout, stderr := ekg(t, args...)
			if code != tt.code || stdout != tt.stdout || !strings.HasSuffix(stderr, tt.stderr) {
				t.Errorf("got %d %q %q, want %d %q %q", code, stdout, stderr, tt.code, tt.stdout, tt.stderr)
			}
		})
	}
}
