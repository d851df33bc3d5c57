package podspec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
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

// hostileOwners are names of users, some of which sources of users would reject.
var hostileOwners = []string{
	"ann", "A", "a.b", "a-b", "a--b", "a-2eb", "-", "--", "-2d", "../x", "..", ".", "/", "a/b", "a b", "{owner}", "*",
	"$(X)", "ann@example.org", "Ännchen", "安", "\xff", "a\x00b", "home-ann", "ANN", "40", "é", "e\u0301",
	strings.Repeat("x", 200), strings.Repeat("界", 100),
}

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
		if name := "x" + escapeOwner(a); len(name) <= maxOwnerPart && len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Fatalf("%q is no name of an object", name)
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
			t.Fatalf("%q is no label", safeOwner(a))
		}
	})
}

// claimOf returns a request of an owner whose client mounts a claim.
func claimOf(owner, claim string) launcher.Request {
	volumes, err := json.Marshal([]map[string]any{
		{"name": "v", "persistentVolumeClaim": map[string]string{"claimName": claim}}})
	if err != nil {
		panic(err)
	}
	return launcher.Request{ID: testID, Owner: owner, Spec: specOf(`{"image": "x"}`), Env: map[string]string{
		"KERNEL_VOLUMES": string(volumes), "KERNEL_VOLUME_MOUNTS": `[{"name": "v", "mountPath": "/v"}]`}}
}

// A client mounts its owner's claims, and no other owner's.
func TestOwner_ClaimsOfOthers(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, ownersPolicy)
	long := strings.Repeat("x", 300)
	suffixes := []string{"", ".data", ".data-ann"}
	for i, victim := range append(hostileOwners, long) {
		for j, owner := range append(hostileOwners, "", long) {
			claim := "home-" + escapeOwner(victim) + suffixes[(i+j)%len(suffixes)]
			_, err := Build(o, claimOf(owner, claim), testRecord("test"))
			var r *launcher.RefusedError
			switch {
			case owner == victim && err != nil:
				t.Errorf("%q does not get its own claim %s: %v", owner, claim, err)
			case owner != victim && !errors.As(err, &r):
				t.Errorf("%q gets %s of %q: %v", owner, claim, victim, err)
			}
		}
	}
	// Names that a client may try instead of the owner's own.
	for _, claim := range []string{"home-", "home", "home-{owner}", "home-*", "home-ann-", "home-annx", "home-ann-2e",
		"home-an", "home-ann/../home-bob", "home-Ann", "data-x", "xhome-ann", "home-ann\n", "", "home-bob.ann", "home-.ann"} {
		for _, owner := range []string{"ann", ""} {
			if _, err := Build(o, claimOf(owner, claim), testRecord("test")); err == nil {
				t.Errorf("%q gets %q", owner, claim)
			}
		}
	}
	_, err := Build(o, claimOf("ann", "home-bob"), testRecord("test"))
	const want = `KERNEL_VOLUMES[0].persistentVolumeClaim.claimName: "home-bob" is not allowed; ` +
		`allowed: home-ann, home-ann.*`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	for name, value := range map[string]string{
		"KERNEL_VOLUMES":              `[{"name": "v", "secret": {"secretName": "key-%s"}}]`,
		"KERNEL_SERVICE_ACCOUNT_NAME": "kernel-%s",
	} {
		for _, owner := range []string{"ann", "bob", ""} {
			_, err := Build(o, launcher.Request{ID: testID, Owner: owner, Spec: specOf(`{"image": "x"}`),
				Env: map[string]string{name: fmt.Sprintf(value, "ann")}}, testRecord("test"))
			if (err == nil) != (owner == "ann") {
				t.Errorf("%s, %q: %v", name, owner, err)
			}
		}
	}
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
			patterns = append(patterns, "h"+strings.Join(before, "")+ownerMark+strings.Join(after, ""))
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

// ownersSpec mounts an own claim, and an own folder of a common volume.
const ownersSpec = `{"image": "x", "serviceAccountName": "kernel-{owner}",
	"volumes": [
		{"name": "home", "persistentVolumeClaim": {"claimName": "home-{owner}"}},
		{"name": "nfs", "nfs": {"server": "files.example", "path": "/export/{owner}"}},
		{"name": "keys", "projected": {"sources": [{"secret": {"name": "key-{owner}"}}]}},
		{"name": "all", "persistentVolumeClaim": {"claimName": "data-all"}}],
	"volumeMounts": [
		{"name": "all", "mountPath": "/data", "subPath": "users/{owner}"}],
	"pod": {"spec": {
		"volumes": [{"name": "more", "persistentVolumeClaim": {"claimName": "data-{owner}"}}],
		"containers": [{"name": "kernel", "volumeMounts": [{"name": "more", "mountPath": "/more/{owner}"}]}]}}}`

// own returns a kernelspec's text with names that ekg does not reserve.
func own(text string) string { return strings.ReplaceAll(text, `"name": "home"`, `"name": "mine"`) }

// Each owner's pod has the owner's volumes, folders and service account, and no two owners share one.
func TestOwner_Kernelspec(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, ownersPolicy)
	built := map[string]string{}
	for _, owner := range hostileOwners {
		pod, err := Build(o, launcher.Request{ID: testID, Owner: owner, Spec: specOf(own(ownersSpec))}, testRecord("test"))
		if len(escapeOwner(owner)) > 240 {
			if err == nil || !strings.Contains(err.Error(), "is longer than 253 bytes with this owner's name") {
				t.Errorf("%q: %v", owner, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", owner, err)
			continue
		}
		e := escapeOwner(owner)
		var got []string
		for _, v := range pod.Spec.Volumes {
			switch {
			case v.PersistentVolumeClaim != nil:
				got = append(got, v.PersistentVolumeClaim.ClaimName)
			case v.NFS != nil:
				got = append(got, v.NFS.Path)
			case v.Projected != nil:
				got = append(got, v.Projected.Sources[0].Secret.Name)
			}
		}
		for _, m := range kernelOf(pod).VolumeMounts {
			if m.Name == "all" {
				got = append(got, m.SubPath)
			}
			if m.Name == "more" {
				got = append(got, m.MountPath)
			}
		}
		slices.Sort(got)
		want := []string{"data-" + e, "data-all", "home-" + e, "key-" + e, "/export/" + e, "users/" + e, "/more/" + e}
		slices.Sort(want)
		if !slices.Equal(got, want) || pod.Spec.ServiceAccountName != "kernel-"+e {
			t.Errorf("%q: got %q and %s, want %q", owner, got, pod.Spec.ServiceAccountName, want)
		}
		if other, twice := built[strings.Join(got, " ")]; twice {
			t.Errorf("%q and %q share %q", owner, other, got)
		}
		built[strings.Join(got, " ")] = owner
	}
}

// A kernel's next pod is built from its stored request, for the same owner.
func TestOwner_Restart(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, ownersPolicy)
	req := claimOf("ann@x", "home-ann-40x")
	req.Spec = specOf(`{"image": "x", "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data-{owner}"}}]}`)
	rec := testRecord("test")
	rec.Owner = req.Owner
	pod, err := Build(o, req, rec)
	if err != nil {
		t.Fatal(err)
	}
	claims := func(pod *corev1.Pod) (all []string) {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				all = append(all, v.PersistentVolumeClaim.ClaimName)
			}
		}
		return all
	}
	if got := claims(pod); !slices.Equal(got, []string{"data-ann-40x", "home-ann-40x"}) {
		t.Fatalf("the first pod has %q", got)
	}
	stored, err := ReadRecord(pod)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ReadRequest(pod, stored)
	if err != nil {
		t.Fatal(err)
	}
	stored.Generation++
	next, err := Build(o, again, stored)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(claims(next), claims(pod)) {
		t.Errorf("the next pod has %q", claims(next))
	}
}

// A kernelspec with {owner} is refused for a gateway without users, by its key and, where it is read, by its line.
func TestOwner_NoUsers(t *testing.T) {
	o := testOptions()
	_, err := Build(o, launcher.Request{ID: testID, Spec: specOf(own(ownersSpec))}, testRecord("test"))
	var r *launcher.RefusedError
	if !errors.As(err, &r) || !strings.HasPrefix(r.Reason, "kernelspec test: metadata.ekg.") ||
		!strings.HasSuffix(r.Reason, noUsers) {
		t.Errorf("got %v", err)
	}
	dir := t.TempDir()
	const text = `{"argv": ["{connection_file}"], "display_name": "x", "language": "x", "metadata": {"ekg": {"image": "x",
		"volumes": [
			{"name": "a", "persistentVolumeClaim": {"claimName": "home-{owner}"}}],
		"volumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "{owner}"}]}}}`
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o755),
		os.WriteFile(filepath.Join(dir, "a", "kernel.json"), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	f, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Check: CheckNoOwner})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, usable := f.Get("a"); usable {
		t.Error("the kernelspec is usable")
	}
	var got []string
	for _, p := range f.Problems() {
		got = append(got, p.String())
	}
	file := filepath.Join(dir, "a", "kernel.json")
	if want := []string{file + ":3: metadata.ekg.volumes[0].persistentVolumeClaim.claimName: " + noUsers,
		file + ":4: metadata.ekg.volumeMounts[0].subPath: " + noUsers}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range kernelspecs.Check(filepath.Join(dir, "a"), "", o.Check()) {
		t.Errorf("checked without an owner: %v", p)
	}
}

// A kernelspec whose names of objects cannot be valid for all owners is refused.
func TestOwner_KernelspecRefusals(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, "kernelspecs: {persistentVolumeClaims: [\"home-{owner}\"], secrets: [\"*\"]}")
	for ekg, want := range map[string]string{
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "{owner}"}}]`: `metadata.ekg.volumes[0].` +
			`persistentVolumeClaim.claimName: "{owner}" needs a small letter, a digit or '-' right before {owner}`,
		`"volumes": [{"name": "v", "secret": {"secretName": "a.{owner}"}}]`: `metadata.ekg.volumes[0].` +
			`secret.secretName: "a.{owner}" needs a small letter`,
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data-{owner}"}}]`: `metadata.ekg.volumes[0].` +
			`persistentVolumeClaim.claimName: "data-owner" is not allowed; allowed: home-owner`,
		`"volumes": [{"name": "v{owner}", "emptyDir": {}}]`: `metadata.ekg.volumes[0].name: "v{owner}" is not a valid`,
		`"volumes": [{"name": "v", "secret": {"secretName": "ekg-{owner}"}}]`: `metadata.ekg.volumes[0].` +
			`secret.secretName: "ekg-owner" is one of ekg's own secrets`,
		`"serviceAccountName": "{owner}"`: `metadata.ekg.serviceAccountName: "{owner}" needs a small letter`,
	} {
		problems := o.Check()(specOf(`{"image": "x", ` + ekg + `}`))
		if len(problems) == 0 {
			t.Errorf("%s: accepted", ekg)
		} else if got := problems[0].Key + ": " + problems[0].Message; !strings.HasPrefix(got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", ekg, got, want)
		}
	}
}
