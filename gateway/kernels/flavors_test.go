package kernels

import (
	"encoding/json"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

func TestHasFlavor(t *testing.T) {
	const large = `"ekg": {"image": "x", "resources": {"limits": {"memory": "4Gi"}}, "env": [{"name": "A", "value": "b"}]}`
	for metadata, want := range map[string]bool{
		``: false, `{}`: false, `{"flavor": "t4"}`: false, `{` + large + `}`: false,
		`{"ekg": {"flavor": "t4"}}`: true, `{"ekg": {"\u0066lavor": "t4"}}`: true, `{"\u0065kg": {"flavor": "t4"}}`: true,
	} {
		if got := hasFlavor(kernelspecs.Spec{Metadata: json.RawMessage(metadata)}); got != want {
			t.Errorf("%s: %v", metadata, got)
		}
	}
	spec := kernelspecs.Spec{Metadata: json.RawMessage(`{` + large + `}`)}
	if n := testing.AllocsPerRun(10, func() { hasFlavor(spec) }); n > 0 {
		t.Errorf("%v allocations for each kernel of a list", n)
	}
}
