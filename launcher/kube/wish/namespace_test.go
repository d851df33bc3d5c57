package wish

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TestOwnerNamespace_Names: different owners have different namespaces with valid names, however long they are, and
// also if one user's name imitates the shortened form of another's.
func TestOwnerNamespace_Names(t *testing.T) {
	n := &OwnerNamespace{Name: "kernels-{owner}"}
	for _, scheme := range []OwnerNames{NamesEscaped, NamesSafe} {
		long := strings.Repeat("a", 80)
		short := strings.TrimPrefix(n.NameOf(long, scheme), "kernels-")
		found := map[string]string{}
		for _, owner := range []string{"ann", "Ann", "ann@x", "ann-40x", "ann--x", "-", "system:serviceaccount:ns:ann", long,
			long + "b", strings.Repeat("A", 80), short, strings.ReplaceAll(short, "--", "-"), "ä"} {
			name := n.NameOf(owner, scheme)
			if wrong := validation.IsDNS1123Label(name); len(wrong) > 0 {
				t.Errorf("%q: %s: %v", owner, name, wrong)
			}
			if found[name] != "" {
				t.Errorf("%q and %q have %s", owner, found[name], name)
			}
			found[name] = owner
		}
	}
}

// TestOwnerNamespace_Problems: a bad description is rejected with its place.
func TestOwnerNamespace_Problems(t *testing.T) {
	object := func(text string) string {
		return "ownerNamespace:\n  name: k-{owner}\n  objects:\n    - {apiVersion: v1, " + text + "}\n"
	}
	for name, tt := range map[string]struct{ policy, want string }{
		"no mark":       {"ownerNamespace: {name: kernels}\n", "needs {owner} once"},
		"two marks":     {"ownerNamespace: {name: 'k-{owner}{owner}'}\n", "needs {owner} once"},
		"mark first":    {"ownerNamespace: {name: '{owner}-k'}\n", "right before {owner}"},
		"capital":       {"ownerNamespace: {name: 'K-{owner}'}\n", "no valid name of a namespace"},
		"too long":      {"ownerNamespace: {name: '" + strings.Repeat("k", 50) + "-{owner}'}\n", "no valid name of"},
		"own label":     {"ownerNamespace: {name: 'k-{owner}', labels: {app.kubernetes.io/managed-by: x}}\n", "ekg's own"},
		"bad label":     {"ownerNamespace: {name: 'k-{owner}', labels: {a: 'b c'}}\n", "labels"},
		"a kind":        {object("kind: Secret, metadata: {name: a}"), "not a kind that is made"},
		"no name":       {object("kind: LimitRange, metadata: {}"), "not a valid name"},
		"a misspelling": {object("kind: LimitRange, metadata: {name: a}, spec: {limit: []}"), "unknown field"},
		"elsewhere":     {object("kind: LimitRange, metadata: {name: a, namespace: kube-system}"), "can only be {namespace}"},
		"owner's name":  {object("kind: LimitRange, metadata: {name: '{owner}'}"), "no meaning in metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, problems := parsePolicy([]byte(tt.policy)); len(problems) != 1 || !strings.Contains(problems[0], tt.want) {
				t.Errorf("%q, want %q", problems, tt.want)
			}
		})
	}
}
