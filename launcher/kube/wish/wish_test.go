package wish

import (
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// kernelspecs.PodKeys are the keys that Extension decodes.
func TestExtension_Keys(t *testing.T) {
	var e Extension
	_, problems := kernelspecs.DecodeStrict([]byte(`{"nonsense": 1}`), "x", &e)
	want := append([]string{"cull", "flavor", "launcher", "limits", "park", "profiles", "transport", "warm"},
		kernelspecs.PodKeys...)
	slices.Sort(want)
	if len(problems) != 1 || problems[0].Message != "cannot be set; valid keys: "+strings.Join(want, ", ") {
		t.Errorf("got %v, want the keys %v", problems, want)
	}
}
