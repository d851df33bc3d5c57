package main

import (
	"slices"
	"testing"
)

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

// The answer counts only if the unit's main process is this one: its children inherit the hint.
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

func TestStrayVariables(t *testing.T) {
	got := strayVariables([]string{"PATH=/bin", "EKG_LISTEN=x", "EKG_LISTN=x", "EG_LIST_KERNELS=3", "EG_PORT=1", "EKG_KERNEL_ID=x",
		// What Kubernetes sets for a service named "ekg".
		"EKG_SERVICE_HOST=10.0.0.1", "EKG_SERVICE_PORT=8888", "EKG_SERVICE_PORT_HTTP=8888", "EKG_PORT=tcp://10.0.0.1:8888",
		"EKG_PORT_8888_TCP=tcp://10.0.0.1:8888", "EKG_PORT_8888_TCP_ADDR=10.0.0.1", "EG_PORT_RANGE=0..0"})
	if want := []string{"EG_LIST_KERNELS", "EG_PORT_RANGE", "EKG_LISTN"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
