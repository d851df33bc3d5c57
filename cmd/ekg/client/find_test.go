package client

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Commands find the state directory where a gateway's settings name it, and wrong settings of a gateway do not matter.
func TestReadAccess_StateDir(t *testing.T) {
	clearEnvironment(t)
	file := filepath.Join(t.TempDir(), "ekg.yaml")
	if err := os.WriteFile(file, []byte("state-dir: /of/file\nno-such-setting: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EKG_LISTEN", "wrong")
	for _, tt := range []struct {
		args, config, variable, xdg string
		want                        string
	}{
		{want: "/home/u/.local/state/ekg"},
		{xdg: "/xdg", want: "/xdg/ekg"},
		{xdg: "relative", want: "/home/u/.local/state/ekg"},
		{config: file, xdg: "/xdg", want: "/of/file"},
		{args: "--config " + file, want: "/of/file"},
		{variable: "/of/variable", config: file, want: "/of/variable"},
		{args: "--state-dir /of/flag", variable: "/of/variable", config: file, want: "/of/flag"},
	} {
		t.Setenv("EKG_CONFIG", tt.config)
		t.Setenv("EKG_STATE_DIR", tt.variable)
		t.Setenv("XDG_STATE_HOME", tt.xdg)
		code, _, errs := ekg(t, append([]string{"ps"}, strings.Fields(tt.args)...)...)
		if code != 1 || !strings.Contains(errs, "with the state directory "+tt.want+";") {
			t.Errorf("%+v: got %d %q", tt, code, errs)
		}
	}
	t.Setenv("EKG_STATE_DIR", "")
	if code, _, errs := ekg(t, "ps", "--config", "/nonexistent"); code != 2 ||
		!strings.HasPrefix(errs, "ekg: --config: open /nonexistent: ") {
		t.Errorf("got %d %q", code, errs)
	}
	t.Setenv("HOME", "")
	t.Setenv("EKG_CONFIG", "")
	if code, _, errs := ekg(t, "ps"); code != 2 || !strings.HasPrefix(errs, "ekg: --state-dir is missing: ") {
		t.Errorf("got %d %q", code, errs)
	}
}
