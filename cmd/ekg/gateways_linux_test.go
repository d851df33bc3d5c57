package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const kernelF = "f0000000-0000-4000-8000-000000000000"

// TestServer_IsFound: commands with access to the state directory find a gateway as long as it runs.
func TestServer_IsFound(t *testing.T) {
	clearEnvironment(t)
	state, err := os.MkdirTemp("", "ekg") // t.TempDir's paths are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(state) }()
	t.Setenv("EKG_STATE_DIR", state)
	// The file of a killed gateway is ignored.
	stale := filepath.Join(state, "gateway-1.json")
	if err := os.WriteFile(stale, []byte(`{"url":"http://127.0.0.1:1/","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := ekg(t, "log", "x"); code != 1 ||
		!strings.HasPrefix(errs, "ekg: no gateway of this user runs here with the state directory "+state) {
		t.Errorf("got %d %q", code, errs)
	}
	for _, flags := range []map[string][]string{
		{},
		{"token": {"canary"}, "base-url": {"/base"}},
		{"no-auth": {"true"}},
		{"listen": {"unix:" + filepath.Join(state, "gw.sock")}},
	} {
		flags["state-dir"] = []string{state}
		r := start(t, &fakeLauncher{kernels: []launcher.Kernel{{ID: kernelF, SpecName: "r", State: api.Idle}}}, flags)
		own := filepath.Join(state, fmt.Sprintf("gateway-%d.json", os.Getpid()))
		info, err := os.Stat(own)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v: the file is %v, %v", flags, info, err)
		}
		if _, err := os.Stat(stale); err == nil {
			t.Error("the file of one that was killed is still there")
		}
		code, _, errs := ekg(t, "log", "nope")
		if want := "ekg: no kernel \"nope\"; the kernels are: " + kernelF + " (r, idle)\n"; code != 1 || errs != want {
			t.Errorf("%v: got %d %q", flags, code, errs)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(own); err == nil {
			t.Error("the file is still there")
		}
	}
	if err := os.WriteFile(stale, []byte(`{}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := ekg(t, "log", "x"); code != 1 || !strings.Contains(errs, "other users have access") {
		t.Errorf("of a file that others can read: got %d %q", code, errs)
	}
	// A bad file does not prevent another gateway from running, nor from being found.
	r := start(t, &fakeLauncher{kernels: []launcher.Kernel{{ID: kernelF, SpecName: "r", State: api.Idle}}},
		map[string][]string{"state-dir": {state}})
	if code, _, errs := ekg(t, "log", "nope"); code != 1 || !strings.Contains(errs, kernelF) {
		t.Errorf("beside a file that others can read: got %d %q", code, errs)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
