package wish

import (
	"slices"
	"testing"
)

// Bad templates are reported with their line.
func TestReadPolicy_CostLabels(t *testing.T) {
	_, got := parsePolicy([]byte("labels:\n  a: '{owner'\n  b: '{groups}-x'\n  'c d': x\n  e: ''\n" +
		"  app.kubernetes.io/name: x\n  elastic-kernel-gateway.github.io/x: y\n  fine: '{spec}.{group}'\n"))
	const can = "a value can have {flavor}, {group}, {namespace}, {owner}, {spec}"
	want := []string{
		`2: labels.a: "{owner" has {; ` + can,
		`6: labels.app.kubernetes.io/name: is reserved for ekg`,
		`3: labels.b: "{groups}-x" has {groups}; ` + can,
		`4: labels.c d: is not a valid key of a label`,
		`5: labels.e: has no value`,
		`7: labels.elastic-kernel-gateway.github.io/x: is reserved for ekg`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
