package buildinfo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var programs = []string{"ekg", "ekg-supervisor", "ekg-gpu", "ekg-gpu-agent"}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// Every program says version, commit and Go in one line: as `make build` builds it, and as the image is built, without
// a repository.
func TestLine(t *testing.T) {
	dir := t.TempDir()
	output(t, "make", "build", "VERSION=v1.2.3", "BIN="+filepath.Join(dir, "make"))
	output(t, "make", "build", "VERSION=v1.2.3", "COMMIT=0123abcd", "GOFLAGS=-buildvcs=false",
		"BIN="+filepath.Join(dir, "image"))
	commit := output(t, "git", "rev-parse", "HEAD")
	for _, tt := range []struct{ build, commit string }{{"make", commit}, {"image", "0123abcd"}} {
		for _, program := range programs {
			want := regexp.MustCompile("^" + program + " v1.2.3 commit " + tt.commit + `(-dirty)? go1\.\S+ linux/\S+$`)
			got := output(t, filepath.Join(dir, tt.build, program), "--version")
			if !want.MatchString(got) {
				t.Errorf("%s --version prints %q", program, got)
			}
			if program == "ekg" {
				if other := output(t, filepath.Join(dir, tt.build, program), "version"); other != got {
					t.Errorf("ekg version prints %q, and ekg --version %q", other, got)
				}
			}
		}
	}
}
