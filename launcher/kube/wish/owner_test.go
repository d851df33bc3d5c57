package wish

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

// ownersPolicy lets clients mount claims and secrets of their owner.
const ownersPolicy = `
kernelspecs:
  persistentVolumeClaims: ["home-{owner}", "data-*"]
  secrets: ["key-{owner}"]
clients:
  allow: [KERNEL_VOLUMES, KERNEL_VOLUME_MOUNTS, KERNEL_SERVICE_ACCOUNT_NAME]
  persistentVolumeClaims: ["home-{owner}", "home-{owner}.*"]
  secrets: ["key-{owner}"]
  serviceAccounts: ["kernel-{owner}"]
  volumes: [persistentVolumeClaim, secret]
`

func TestEscapeOwner(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "ann": "ann", "a1": "a1", "A": "-41", "a.b": "a-2eb", "a-b": "a-2db", "../x": "-2e-2e-2fx",
		"ann@example.org": "ann-40example-2eorg", "é": "-c3-a9", "\x00": "-00",
	} {
		if got := escapeOwner(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if (escapeOwner(a) == escapeOwner(b)) != (a == b) {
			t.Fatalf("%q and %q are both %q", a, b, escapeOwner(a))
		}
		if name := "x" + escapeOwner(a); len(name) <= MaxOwnerPart && len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Fatalf("%q is not a valid name of an object", name)
		}
	})
}

// TestSafeOwner: the results are those of KubeSpawner 7.1.0, for {user_server} of a server without a name.
func TestSafeOwner(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "ann": "ann", "ann-lee": "ann-lee", "aaaaaaaaaaaaaaaaaaaa-b": "aaaaaaaaaaaaaaaaaaaa-b",
		"Ann": "ann---17239b6e", "ann.lee@example.org": "ann-lee-example-org---c9556853", "a--b": "a-b---90827a2e",
		"-ann": "ann---be5b3289", "ann-": "ann---209dc672", "4u": "x-4u---0b4e4934", "40": "x-40---d59eced1",
		"安": "x---77f34a38", "Ännchen": "nnchen---af8b96bc", "İx": "i-x---3020b9f2", "é": "x---4a99557e",
		"KELVIN \u212a": "kelvin-k---e4f64c0c", "../x": "x---d6b96a97", "a b": "a-b---c8687a08",
		"firstname.lastname@university.org":             "firstname-lastname-university-org---003a80e3",
		"firstname.lastname@students.university.org":    "firstname-lastnam--x---f2a3f760",
		"aaaaaaaaaaaaaaa.-b" + strings.Repeat("c", 40):  "aaaaaaaaaaaaaaa-b--x---463b26de",
		"aaaaaaaaaaaaaaaa.-b" + strings.Repeat("c", 40): "aaaaaaaaaaaaaaaa--x---9680705d",
		strings.Repeat("a", 33) + "!b":                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-b---808cfb8b",
		strings.Repeat("a", 34) + "!b":                  "aaaaaaaaaaaaaaaaa--x---a13c9e7d",
		strings.Repeat("9", 50):                         "x-999999999999999--x---d9d114e6",
		strings.Repeat("x", 46):                         strings.Repeat("x", 46),
		strings.Repeat("x", 47):                         strings.Repeat("x", 17) + "--x---cfcbdd85",
		strings.Repeat("x", 48):                         strings.Repeat("x", 17) + "--x---e13c8ee2",
		strings.Repeat("x", 64):                         strings.Repeat("x", 17) + "--x---e68039bf",
	} {
		if got := safeOwner(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if (safeOwner(a) == safeOwner(b)) != (a == b) {
			t.Fatalf("%q and %q are both %q", a, b, safeOwner(a))
		}
		if a != "" && len(validation.IsDNS1123Label(safeOwner(a))) > 0 {
			t.Fatalf("%q is not a valid label", safeOwner(a))
		}
	})
}

// Whatever valid patterns with {owner} a list has, no name is allowed to two owners by them.
func TestOwner_PatternsProperty(t *testing.T) {
	pieces := rapid.SampledFrom([]string{"{owner}", "*", ".", "-", "a", "40", "-40", "a-"})
	schemes := rapid.SampledFrom([]OwnerNames{NamesEscaped, NamesSafe})
	owners := []string{"a", "ab", "a-a", "a-40", "ab---00000000", "40", "a40", "4", "@", "a@", "@a", ".", "a.", "a.a",
		"-", "b@a", "@40"}
	valid := 0
	rapid.Check(t, func(t *rapid.T) {
		names := schemes.Draw(t, "names")
		var patterns Patterns
		for range rapid.IntRange(1, 3).Draw(t, "n") {
			before := rapid.SliceOfN(pieces, 0, 2).Draw(t, "before")
			after := rapid.SliceOfN(pieces, 0, 3).Draw(t, "after")
			patterns = append(patterns, "h"+strings.Join(before, "")+OwnerMark+strings.Join(after, ""))
		}
		p := DefaultPolicy()
		p.Clients.PersistentVolumeClaims = patterns
		p.ownerProblems(func(_ ruleList, i int, _ string) { patterns[i] = "" })
		patterns = slices.DeleteFunc(patterns, func(pattern string) bool { return pattern == "" })
		valid += len(patterns)
		for _, a := range owners {
			for _, own := range patterns.forOwner(a, names) {
				for _, b := range owners {
					// The text that a * stands for looks like b's.
					e := names.of(b)
					for _, star := range []string{"", "x", e, "." + e, e + ".", "-" + e, ".h" + e, ".ha-" + e} {
						if name := strings.ReplaceAll(own, "*", star); a != b && patterns.forOwner(b, names).matches(name) {
							t.Fatalf("%q: %q is allowed to %q and to %q", patterns, name, a, b)
						}
					}
				}
			}
		}
	})
	if valid < 20 {
		t.Errorf("%d patterns were valid", valid)
	}
}

// A policy with a pattern that would not keep owners apart is rejected, with its line and key.
func TestReadPolicy_Owner(t *testing.T) {
	for pattern, want := range map[string]string{
		`"home-{owner}"`:             "",
		`"home-{owner}.*"`:           "",
		`"home-{owner}-data"`:        "",
		`"home-{owner}-x.y*"`:        "",
		`"home-{owner}*"`:            `"home-{owner}*" has no '.' between {owner} and *`,
		`"home-{owner}-*"`:           `"home-{owner}-*" has no '.' between {owner} and *`,
		`"*-{owner}"`:                `"*-{owner}" has a * before {owner}`,
		`"*.x{owner}"`:               `"*.x{owner}" has a * before {owner}`,
		`"{owner}"`:                  `"{owner}" needs a small letter, a digit or '-' right before {owner}`,
		`"home.{owner}"`:             `"home.{owner}" needs a small letter, a digit or '-' right before {owner}`,
		`"Home{owner}"`:              "",
		`"a-{owner}-{owner}"`:        `"a-{owner}-{owner}" has {owner} twice`,
		`"a-{owner}", "b-*"`:         "",
		`"h-{owner}", "h-{owner}.x"`: "",
		`"h-{owner}", "h-{owner}-x"`: `"h-{owner}-x" one user's name may equal another user's name in "h-{owner}"; ` +
			`let their first words differ`,
		`"h-{owner}", "h-d-{owner}"`: `"h-d-{owner}" one user's name may equal another user's name in "h-{owner}"`,
		`"h-d-{owner}", "h-{owner}"`: `"h-{owner}" one user's name may equal another user's name in "h-d-{owner}"`,
	} {
		for _, list := range []string{"clients", "kernelspecs"} {
			_, problems := parsePolicy([]byte(list + ":\n  secrets: []\n  persistentVolumeClaims: [" + pattern + "]\n"))
			where := "3: " + list + ".persistentVolumeClaims: "
			switch {
			case want == "" && len(problems) > 0:
				t.Errorf("%s: %q", pattern, problems)
			case want != "" && (len(problems) != 1 || !strings.HasPrefix(problems[0], where+want)):
				t.Errorf("%s: got %q, want %s%s", pattern, problems, where, want)
			}
		}
	}
	_, problems := parsePolicy([]byte("kernelspecs:\n  images: [\"x/{owner}\"]\n"))
	const want = `2: kernelspecs.images: "x/{owner}" {owner} has a meaning only in`
	if len(problems) != 1 || !strings.HasPrefix(problems[0], want) {
		t.Errorf("a list without owners: %q", problems)
	}
}

func TestPolicy_OwnerRules(t *testing.T) {
	got := policyOf(t, ownersPolicy).OwnerRules()
	if want := []string{`kernelspecs.persistentVolumeClaims: "home-{owner}"`, `kernelspecs.secrets: "key-{owner}"`,
		`clients.persistentVolumeClaims: "home-{owner}"`, `clients.persistentVolumeClaims: "home-{owner}.*"`,
		`clients.secrets: "key-{owner}"`, `clients.serviceAccounts: "kernel-{owner}"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := DefaultPolicy().OwnerRules(); len(got) > 0 {
		t.Errorf("the default has %q", got)
	}
}

func TestPolicy_CommonRules(t *testing.T) {
	const kinds = `volumes: [persistentVolumeClaim, projected], allow: [KERNEL_VOLUMES]`
	for text, want := range map[string][]string{
		"":           nil,
		ownersPolicy: nil,
		`clients: {persistentVolumeClaims: ["home-*"], ` + kinds + `}`: {`clients.persistentVolumeClaims: "home-*"`},
		`clients: {persistentVolumeClaims: ["home-*"]}`:                nil, // no variable names one
		`clients: {persistentVolumeClaims: [x], configMaps: ["*"], secrets: ["a*", b], ` + kinds + `}`: {
			`clients.configMaps: "*"`, `clients.secrets: "a*"`},
		`clients: {persistentVolumeClaims: ["home-{owner}", home-all, all], ` + kinds + `}`: {
			`clients.persistentVolumeClaims: "home-all"`}, // a user may be named all
		`clients: {serviceAccounts: ["k*"], allow: [KERNEL_SERVICE_ACCOUNT_NAME]}`: {`clients.serviceAccounts: "k*"`},
		`clients: {volumes: [nfs, csi], allow: [KERNEL_VOLUMES]}`: {
			`clients.volumes: "csi"`, `clients.volumes: "nfs"`},
		`kernelspecs: {persistentVolumeClaims: ["home-*"]}`: nil,
	} {
		if got := policyOf(t, text).CommonRules(); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
