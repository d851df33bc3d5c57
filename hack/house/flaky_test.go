package house

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// mayFailOnce is how many tests hack/flaky may name. A longer list would hide faults.
const mayFailOnce = 12

// hack/flaky names tests that exist, each with a date and a reason.
func TestHouse_Flaky(t *testing.T) {
	list, err := os.ReadFile("../flaky")
	if err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^((?:Test|Fuzz)\w+) \d{4}-\d\d-\d\d \S+ \S+ \S+`)
	n := 0
	for line := range strings.Lines(string(list)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue
		}
		n++
		m := form.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("hack/flaky: %q is not a name, a date and a reason", line)
			continue
		}
		if err := exec.Command("git", "-C", "../..", "grep", "-qw", "func "+m[1], "--", "*_test.go").Run(); err != nil {
			t.Errorf("hack/flaky names the test %s, which does not exist: %v", m[1], err)
		}
	}
	if n > mayFailOnce {
		t.Errorf("hack/flaky names %d tests, and at most %d may fail once", n, mayFailOnce)
	}
}
