package client

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
)

// clearEnvironment hides the variables of the user that runs the tests, and sets another home.
func clearEnvironment(t *testing.T) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "EKG_") ||
			strings.HasPrefix(name, "JUPYTER_GATEWAY_") ||
			strings.HasPrefix(name, "EG_") ||
			strings.HasPrefix(name, "XDG_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("HOME", "/home/u")
}

// ekg runs a command line in this process.
func ekg(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Program{}.Run(context.Background(), append([]string{"ekg"}, args...), &out, &errOut)
	return code, out.String(), errOut.String()
}

func TestFlagsFirst(t *testing.T) {
	p := Program{}.App(io.Discard, io.Discard)
	for _, tt := range [][2]string{
		{"ekg log K -f --cell M", "ekg log -f --cell M K"},
		{"ekg log --cell=M K --json x", "ekg log --cell=M --json K x"},
		{"ekg log K --cell", "ekg log --cell K"},
		{"ekg log K -- -f", "ekg log K -- -f"},
		{"ekg log - -f", "ekg log -f -"},
		{"ekg ps x --output y", "ekg ps x --output y"},
		{"ekg", "ekg"},
	} {
		if got := flagsFirst(p, strings.Fields(tt[0])); strings.Join(got, " ") != tt[1] {
			t.Errorf("%s: got %v", tt[0], got)
		}
	}
}
