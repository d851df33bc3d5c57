package wish

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Every problem of a policy is reported with its line.
func TestReadPolicy_Broken(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"unknown keys", "nonroot: true\nclients:\n  Images: [x]\n",
			[]string{`1: unknown key nonroot`, `3: unknown key Images`}},
		{"a key of the other side", "clients:\n  capabilities: [SYS_ADMIN]\n", []string{`2: unknown key capabilities`}},
		{"hostPath", "kernelspecs:\n  volumes:\n    - emptyDir\n    - hostPath\n",
			[]string{`4: kernelspecs.volumes: "hostPath" is not a kind of volume that can be allowed; valid: configMap, csi, ` +
				`downwardAPI, emptyDir, ephemeral, image, nfs, persistentVolumeClaim, projected, secret`}},
		{"an object", "kernelspecs:\n  objects: [Pod]\n",
			[]string{`2: kernelspecs.objects: "Pod" is not a kind that is created with a pod; valid: ConfigMap, ` +
				`PersistentVolumeClaim, Secret, Service`}},
		{"a Service", "kernelspecs:\n  serviceTypes: [ExternalName]\n",
			[]string{`2: kernelspecs.serviceTypes: "ExternalName" is not a type of Services that can be allowed; valid: ` +
				`ClusterIP, NodePort, LoadBalancer`}},
		{"variables", "clients:\n  allow: [KERNEL_CPU]\n",
			[]string{`2: clients.allow: "KERNEL_CPU" is not a variable that changes a pod; valid: KERNEL_CPUS, ` +
				`KERNEL_CPUS_LIMIT, KERNEL_GID, KERNEL_GPUS, KERNEL_GPUS_LIMIT, KERNEL_IMAGE, KERNEL_LAUNCH_TIMEOUT, ` +
				`KERNEL_MEMORY, KERNEL_MEMORY_LIMIT, KERNEL_NAMESPACE, KERNEL_POD_NAME, KERNEL_SERVICE_ACCOUNT_NAME, ` +
				`KERNEL_UID, KERNEL_USERNAME, KERNEL_VOLUMES, KERNEL_VOLUME_MOUNTS, KERNEL_WORKING_DIR`}},
		{"kinds", "kernelspecs:\n  images: yes please\n", []string{"2: str `yes please` has the wrong type"}},
		{"a pattern of namespaces", "clients:\n  namespaces:\n  - a\n  - b*\n",
			[]string{`4: clients.namespaces: "b*" is not a valid namespace name`}},
		{"a range", "clients:\n  userIDs: [5-1]\n", []string{`2: "5-1" is not a range like 1000-1999`}},
		{"a negative range", "clients:\n  userIDs: [-1]\n", []string{`2: "-1" is not a range like 1000-1999`}},
		{"a huge range", "clients:\n  userIDs: [0-2147483648]\n",
			[]string{`2: "0-2147483648" is not a range like 1000-1999`}},
		{"a quantity", "clients:\n  maxima:\n    cpu: lots\n", []string{`3: "lots" is not a quantity like 4, 500m or 16Gi`}},
		{"twice", "nonRoot: true\nnonRoot: false\n", []string{`2: mapping key "nonRoot" already defined at line 1`}},
		{"names of owners", "nonRoot: true\nownerNames: slug\n",
			[]string{`2: ownerNames: "slug" is not valid; valid: escape, safe`}},
		{"the cluster's class", "jobPriorityClass: system-node-critical\n",
			[]string{`1: jobPriorityClass: "system-node-critical" is reserved for the cluster's own pods`}},
		{"no class", "jobPriorityClass: A b\n",
			[]string{`1: jobPriorityClass: "A b" is not a valid Kubernetes name`}},
		{"no YAML", "a: [\n", []string{`1: did not find expected node content`}},
		{"a list", "- a\n", []string{`1: seq has the wrong type`}},
		{"two documents", "nonRoot: true\n---\nnonRoot: false\n", []string{` the file has more than one YAML document`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, got := parsePolicy([]byte(tt.text)); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("a: 1\nb: 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPolicy(file); err == nil || err.Error() != file+":1: unknown key a\n"+file+":2: unknown key b" {
		t.Errorf("got %v", err)
	}
}

// A file replaces only the keys that it has. An empty list allows nothing.
func TestReadPolicy_Defaults(t *testing.T) {
	for _, text := range []string{"", "# nothing\n"} {
		if p := policyOf(t, text); !reflect.DeepEqual(p, DefaultPolicy()) {
			t.Errorf("%q is not the default: %+v", text, p)
		}
	}
	p := policyOf(t, "kernelspecs:\n  images:\n  maxima: {memory: 1Gi}\nclients:\n  maxima: {cpu: 1}\n  allow: []\n")
	want := DefaultPolicy()
	if p.Kernelspecs.Images.matches("x") || len(p.Clients.Allow) != 0 {
		t.Errorf("an empty list allows %v, %v", p.Kernelspecs.Images, p.Clients.Allow)
	}
	if got := p.Clients.Maxima.String(); got != "cpu 1" {
		t.Errorf("the maxima are %s", got)
	}
	if !reflect.DeepEqual(p.Kernelspecs.Volumes, want.Kernelspecs.Volumes) ||
		!reflect.DeepEqual(p.Clients.UserIDs, want.Clients.UserIDs) {
		t.Error("what the file does not name has changed")
	}
}

// The policy in the documentation is valid and has all keys.
func TestReadPolicy_Documentation(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/kernelspecs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "### The policy\n")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	text, _, _ := strings.Cut(rest, "```\n")
	policyOf(t, text)
	for _, rules := range []any{Policy{}, SpecRules{}, ClientRules{}, Bounds{}} {
		for f := range reflect.TypeOf(rules).NumField() {
			if key := reflect.TypeOf(rules).Field(f).Tag.Get("yaml"); !strings.HasPrefix(key, ",") &&
				!strings.Contains(text, key+":") {
				t.Errorf("the documentation does not show %s", key)
			}
		}
	}
	for _, name := range slices.Concat(clientVariables, kernelspecs.PodKeys) {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("the documentation does not say what %s is", name)
		}
	}
}

func TestPolicy_Namespaces(t *testing.T) {
	for text, want := range map[string][]string{
		"clients: {namespaces: [b, a, b]}":                            nil,
		"clients: {namespaces: [b, a, b], allow: [KERNEL_NAMESPACE]}": {"a", "b"},
		"clients: {allow: [KERNEL_NAMESPACE]}":                        nil,
	} {
		if got := policyOf(t, text).Namespaces(); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// matchesPattern agrees with a regular expression.
func TestPatterns(t *testing.T) {
	var slow func(p, s string) bool
	slow = func(p, s string) bool {
		switch {
		case p == "":
			return s == ""
		case p[0] == '*':
			return slow(p[1:], s) || s != "" && slow(p, s[1:])
		}
		return s != "" && p[0] == s[0] && slow(p[1:], s[1:])
	}
	rapid.Check(t, func(t *rapid.T) {
		p, s := rapid.StringMatching(`[ab*]{0,7}`).Draw(t, "pattern"), rapid.StringMatching(`[ab]{0,7}`).Draw(t, "text")
		if got := podspec.MatchesPattern(p, s); got != slow(p, s) {
			t.Fatalf("%q matches %q: got %v", p, s, got)
		}
	})
}

func FuzzPolicy(f *testing.F) {
	text, err := os.ReadFile("../podbuild/testdata/fullest/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	f.Add(ownersPolicy)
	f.Add("clients: {userIDs: [1-2], maxima: {cpu: 1}, allow: &a [KERNEL_UID], namespaces: *a}")
	f.Fuzz(func(_ *testing.T, text string) {
		if p, problems := parsePolicy([]byte(text)); len(problems) == 0 {
			p.Namespaces()
		}
	})
}
