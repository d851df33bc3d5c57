package wish

import (
	"strings"
	"testing"
)

// TestPolicy_Shared: each bad value is reported with its line.
func TestPolicy_Shared(t *testing.T) {
	const start = "home: {claim: 'h-{owner}', mountPath: /home, size: 1Gi}\nshared:\n  - {claim: a, mountPath: /a}\n  - "
	for text, want := range map[string]string{
		"{claim: b, mountPath: /home/b}": "",
		"{claim: B, mountPath: /b}":      `4: shared[1].claim: "B" is not the name of a claim`,
		"{mountPath: /b}":                `4: shared[1].claim: "" is not the name of a claim`,
		"{claim: b}":                     `4: shared[1].mountPath: "" is not the path of a folder`,
		"{claim: b, mountPath: /a}":      `4: shared[1].mountPath: "/a" is the folder of another volume`,
		"{claim: b, mountPath: /home}":   `4: shared[1].mountPath: "/home" is the folder of another volume`,
		"{claim: b, mountPath: /proc/b}": `4: shared[1].mountPath: "/proc/b" is ekg's own or the system's`,
		"{claim: b, path: /b}":           "4: ",
	} {
		_, problems := parsePolicy([]byte(start + text + "\n"))
		if (want == "") != (len(problems) == 0) || want != "" && !strings.HasPrefix(problems[0], want) {
			t.Errorf("%s: got %q, want %q", text, problems, want)
		}
	}
}
