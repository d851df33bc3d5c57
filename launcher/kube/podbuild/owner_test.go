package podbuild

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

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
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

// withoutUsers is the problem of a gateway without users.
const withoutUsers = "{owner} stands for the name of the kernel's owner, and the gateway has no users"

// escaped returns a user's name as names of objects have it.
func escaped(owner string) string {
	return (&wish.Policy{OwnerNames: wish.NamesEscaped, Home: &wish.Home{Claim: "{owner}"}}).HomeOf(owner)
}

// A client mounts its owner's claims, and no other owner's.
func TestOwner_ClaimsOfOthers(t *testing.T) {
	o := testOptions()
	o.Policy = policyOf(t, ownersPolicy)
	long := strings.Repeat("x", 300)
	suffixes := []string{"", ".data", ".data-ann"}
	for i, victim := range append(hostileOwners, long) {
		for j, owner := range append(hostileOwners, "", long) {
			claim := "home-" + escaped(victim) + suffixes[(i+j)%len(suffixes)]
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
		if len(escaped(owner)) > 240 {
			if err == nil || !strings.Contains(err.Error(), "is longer than 253 bytes with this owner's name") {
				t.Errorf("%q: %v", owner, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", owner, err)
			continue
		}
		e := escaped(owner)
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
		for _, m := range podspec.KernelOf(pod).VolumeMounts {
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
	stored, err := podspec.ReadRecord(pod)
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
		!strings.HasSuffix(r.Reason, withoutUsers) {
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
	f, err := kernelspecs.Open(kernelspecs.Options{Dirs: []string{dir}, Check: wish.CheckNoOwner})
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
	if want := []string{file + ":3: metadata.ekg.volumes[0].persistentVolumeClaim.claimName: " + withoutUsers,
		file + ":4: metadata.ekg.volumeMounts[0].subPath: " + withoutUsers}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, p := range kernelspecs.Check(filepath.Join(dir, "a"), "", o.Check(nil)) {
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
		problems := o.Check(nil)(specOf(`{"image": "x", ` + ekg + `}`))
		if len(problems) == 0 {
			t.Errorf("%s: accepted", ekg)
		} else if got := problems[0].Key + ": " + problems[0].Message; !strings.HasPrefix(got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", ekg, got, want)
		}
	}
}
