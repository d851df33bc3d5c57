package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
	"github.com/elastic-kernel-gateway/ekg/launcher/launchertest/transcript"
)

func TestServer_WarnsOfAnyOrigin(t *testing.T) {
	for origin, warns := range map[string]bool{"*": true, "https://lab.example": false} {
		s, err := settings.Load(sourcesOf(map[string][]string{"state-dir": {t.TempDir()}, "allow-origin": {origin}}, nil))
		if err != nil {
			t.Fatal(err)
		}
		logged := &transcript.Buffer{}
		newServer(s, io.Discard, slog.New(slog.NewTextHandler(logged, nil))).logWarnings(t.Context())
		if got := strings.Contains(logged.String(), "pages of all hosts may use the gateway"); got != warns {
			t.Errorf("%s: warned %v: %s", origin, got, logged)
		}
	}
}

func TestSystemd_ServiceOf(t *testing.T) {
	tests := []struct {
		cgroups, unit string
		user          bool
	}{
		{"0::/system.slice/ekg.service\n", "ekg.service", false},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/ekg.service\n", "ekg.service", true},
		{"0::/user.slice/user-1000.slice/session-3.scope\n", "", false},
		{"0::/user.slice/user-1000.slice/user@1000.service\n", "", false},
		{"0::/\n", "", false},
		{"1:name=systemd:/system.slice/ekg.service\n", "", false},
		{"", "", false},
	}
	for _, tt := range tests {
		if unit, user := serviceOf(tt.cgroups); unit != tt.unit || user != tt.user {
			t.Errorf("%q: got %q %t, want %q %t", tt.cgroups, unit, user, tt.unit, tt.user)
		}
	}
}

// TestSystemd_KillMode: the answer counts only if the unit's main process is this one, since its children inherit the
// hint.
func TestSystemd_KillMode(t *testing.T) {
	for properties, want := range map[string]string{
		"MainPID=42\nKillMode=control-group\n": "control-group",
		"KillMode=process\nMainPID=42\n":       "process",
		"MainPID=43\nKillMode=control-group\n": "",
		"":                                     "",
	} {
		if got := killMode(properties, 42); got != want {
			t.Errorf("%q: got %q, want %q", properties, got, want)
		}
	}
}
