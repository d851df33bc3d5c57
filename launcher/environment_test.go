package launcher

import "testing"

func TestReservedVariable(t *testing.T) {
	for name, want := range map[string]bool{
		"EKG_TOKEN":      true,
		"EKG_":           true,
		"EG_AUTH_TOKEN":  true,
		"JPY_PARENT_PID": true,

		"PATH":             false,
		"KERNEL_USERNAME":  false,
		"EKG":              false,
		"EGG_X":            false,
		"MY_EKG_TOKEN":     false,
		"ekg_token":        false,
		"JPY_PARENT_PID_X": false,
		"":                 false,
	} {
		if got := ReservedVariable(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}
