package podbuild

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// wayToSecret is a field of a pod's spec that names a secret.
type wayToSecret struct {
	path string
	spec func(secret string) map[string]any // a pod's spec that names it there
}

// unnamed are the fields beside a secret's name that name no secret themselves.
var unnamed = []string{"key", "namespace", "path", "secretFile"}

// waysToSecrets finds every string in a type that names a secret: fields with secret in their name, and the fields
// below them.
func waysToSecrets(t *testing.T, typ reflect.Type, path string, below bool, wrap func(any) any) (ways []wayToSecret) {
	switch typ.Kind() {
	case reflect.Pointer:
		return waysToSecrets(t, typ.Elem(), path, below, wrap)
	case reflect.Slice:
		return waysToSecrets(t, typ.Elem(), path+"[0]", below, func(v any) any { return wrap([]any{v}) })
	case reflect.Map:
		return waysToSecrets(t, typ.Elem(), path+".x", below, func(v any) any { return wrap(map[string]any{"x": v}) })
	case reflect.String:
		switch last := path[strings.LastIndex(path, ".")+1:]; {
		case !below || slices.Contains(unnamed, last):
		case last == "name" || last == "secretName":
			ways = append(ways, wayToSecret{strings.TrimPrefix(path, "."),
				func(secret string) map[string]any { return wrap(secret).(map[string]any) }})
		default:
			t.Errorf("%s is new here: is it the name of a secret? Then the checker must know of it", path)
		}
		return ways
	case reflect.Struct:
	default:
		return nil
	}
	if _, scalar := reflect.New(typ).Interface().(json.Unmarshaler); scalar {
		return nil
	}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		secret := below || strings.Contains(strings.ToLower(name+f.Type.String()), "secret")
		if name == "" && f.Anonymous {
			ways = append(ways, waysToSecrets(t, f.Type, path, secret, wrap)...)
			continue
		}
		ways = append(ways, waysToSecrets(t, f.Type, path+"."+name, secret, func(v any) any {
			object := map[string]any{name: v}
			// The other fields that each of these needs to be valid.
			for of, called := range map[string]string{"VolumeSource": "v", "Container": podspec.ContainerKernel,
				"EphemeralContainer": podspec.ContainerKernel, "EnvVar": "A"} {
				if _, there := object["name"]; typ.Name() == of && !there {
					object["name"] = called
				}
			}
			if strings.HasPrefix(path, ".initContainers") && typ.Name() == "Container" {
				object["name"], object["image"] = "extra", "x"
			}
			return wrap(object)
		})...)
	}
	return ways
}

// allowsSecrets is a policy that allows all secrets in all ways in which a policy can allow them.
const allowsSecrets = `
kernelspecs:
  secrets: ["*", "ekg-*"]
  imagePullSecrets: ["*", "ekg-*"]
  volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, image, nfs, persistentVolumeClaim, projected, secret]
clients:
  allow: [KERNEL_VOLUMES]
  secrets: ["*", "ekg-*"]
  volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, image, nfs, persistentVolumeClaim, projected, secret]
`

// No pod gets one of ekg's secrets, which hold other kernels' keys, in any way that Kubernetes has. The test finds ways
// that a new version of Kubernetes adds.
func TestBuild_NoSecretOfOthers(t *testing.T) {
	const theirs = "ekg-0f1e2d3c-4b5a-4968-8778-695a4b3c2d1e-1"
	o := testOptions()
	o.Policy = policyOf(t, allowsSecrets)
	ways := waysToSecrets(t, reflect.TypeFor[corev1.PodSpec](), "", false, func(v any) any { return v })
	if len(ways) < 18 {
		t.Errorf("a pod can name a secret in %d ways only: %+v", len(ways), ways)
	}
	allowed := 0
	for _, way := range ways {
		top, _, _ := strings.Cut(way.path, "[")
		requests := map[string]func(secret string) launcher.Request{
			"metadata.ekg.pod.spec." + way.path: func(secret string) launcher.Request {
				return specRequest(t, map[string]any{"image": "x", "pod": map[string]any{"spec": way.spec(secret)}}, nil)
			},
			"metadata.ekg." + strings.TrimPrefix(way.path, "containers[0]."): func(secret string) launcher.Request {
				ekg := way.spec(secret)
				if top == "containers" {
					ekg = ekg[top].([]any)[0].(map[string]any)
					delete(ekg, "name")
				}
				ekg["image"] = "x"
				return specRequest(t, ekg, nil)
			},
		}
		if top == "volumes" {
			requests["KERNEL_VOLUMES"+strings.TrimPrefix(way.path, top)] = func(secret string) launcher.Request {
				list, err := json.Marshal(way.spec(secret)[top])
				if err != nil {
					t.Fatal(err)
				}
				return specRequest(t, map[string]any{"image": "x"}, map[string]string{"KERNEL_VOLUMES": string(list)})
			}
		}
		for path, request := range requests {
			_, err := Build(o, request(theirs), testRecord("test"))
			var r *launcher.RefusedError
			switch {
			case !errors.As(err, &r):
				t.Errorf("%s: got %v", path, err)
				continue
			case strings.Contains(r.Reason, path+`: "`+theirs+`" is one of ekg's own secrets, which kernels cannot use`):
			case strings.Contains(r.Reason, ": cannot be set; valid keys: "),
				strings.Contains(r.Reason, ": volumes of this kind are not allowed; allowed: "):
				// Refused by the first unknown key of the path.
				place, _, _ := strings.Cut(strings.TrimPrefix(r.Reason, "kernelspec test: "), ": ")
				if !strings.HasPrefix(path, place) {
					t.Errorf("%s: refused for %s", path, r.Reason)
				}
			default:
				t.Errorf("%s: refused for another reason: %s", path, r.Reason)
			}
			if _, err := Build(o, request("mine"), testRecord("test")); err == nil {
				allowed++
			}
		}
	}
	// In imagePullSecrets, volumes of three kinds, env and envFrom; all but envFrom also as short keys; in a client's
	// volumes; and in env and envFrom of an init container.
	if allowed != 6+5+3+2 {
		t.Errorf("a secret that is allowed can be named in %d ways", allowed)
	}
}

// specRequest returns a request for a kernelspec with this metadata.ekg.
func specRequest(t *testing.T, ekg map[string]any, env map[string]string) launcher.Request {
	t.Helper()
	text, err := json.Marshal(ekg)
	if err != nil {
		t.Fatal(err)
	}
	return launcher.Request{ID: testID, Spec: specOf(string(text)), Env: env}
}

// No spelling of 0 makes a client root. Where the policy allows root, only "0" does.
func TestClient_NoRoot(t *testing.T) {
	spellings := []string{"0", "00", "000000000000000000000", "+0", "-0", " 0", "0 ", "\t0", "0\n", "0x0", "0X0", "0b0",
		"0o0", "0_0", "0.0", ".0", "0e0", "1e3", "1E3", "-1", "--0", "4294967296", "18446744073709551616",
		"9223372036854775808", "-4294967296", "2147483648", "\u0660", "\u06f0", "\uff10", "\u2080", "\u00b2", "0\u0660",
		"1\u0000", "\ufeff0", "zero", "root", "NaN", "Inf", "null", "false", "[0]", `"0"`, "0,1", "1000 0", "$(X)", "$$0"}
	free, strict := testOptions(), testOptions()
	free.Policy = policyOf(t,
		"clients: {allow: [KERNEL_UID, KERNEL_GID], userIDs: [0-2147483647], groupIDs: [0-2147483647]}")
	strict.Policy = policyOf(t, "nonRoot: true\nclients: {allow: [KERNEL_UID], userIDs: [0-2147483647]}")
	build := func(o Options, name, value string) (*corev1.Pod, error) {
		req := launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`), Env: map[string]string{name: value}}
		pod, err := Build(o, req, testRecord("test"))
		if _, renderErr := Render(o, req, time.Time{}); (renderErr == nil) != (err == nil) {
			t.Errorf("%s=%q: rendered with %v, started with %v", name, value, renderErr, err)
		}
		return pod, err
	}
	for _, name := range []string{"KERNEL_UID", "KERNEL_GID"} {
		for _, value := range spellings {
			var r *launcher.RefusedError
			_, err := build(testOptions(), name, value)
			if !errors.As(err, &r) || !strings.HasPrefix(r.Reason, name+": ") ||
				strings.ContainsFunc(r.Reason, unicode.IsControl) {
				t.Errorf("%s=%q: got %v", name, value, err)
			}
			if _, err := build(free, name, value); (err == nil) != (value == "0") {
				t.Errorf("%s=%q, where 0 is allowed: got %v", name, value, err)
			}
		}
	}
	pod, err := build(free, "KERNEL_UID", "0")
	if err != nil || *podspec.KernelOf(pod).SecurityContext.RunAsUser != 0 {
		t.Errorf("0 is allowed, but rejected: %v", err)
	}
	if _, err := build(strict, "KERNEL_UID", "0"); err == nil ||
		!strings.Contains(err.Error(), "the policy does not let kernels run as root") {
		t.Errorf("no kernel may run as root: got %v", err)
	}
	if pod, err = build(strict, "KERNEL_A", "0"); err != nil || !*podspec.KernelOf(pod).SecurityContext.RunAsNonRoot {
		t.Errorf("the image's user may be root: %v", err)
	}
}

// Values with special characters reach the kernel unchanged: the kubelet undoes the doubled dollar signs and expands
// nothing.
func TestClient_HostileValues(t *testing.T) {
	env := map[string]string{"KERNEL_A": `$(KERNEL_B) $$(X) $$ $ ${C} \$(X) $`,
		"KERNEL_B": "a'b\"c`d`$(id);|&>\n\r\t\x1b[31m", "KERNEL_C": "{{.}} {{ env }} <%= %> %s %n",
		"KERNEL_D": "ünï✓\u202e\U0001F600",
		"KERNEL_E": strings.Repeat("$", 30000), "KERNEL_F": " leading and trailing ", "KERNEL_G": "null",
		"KERNEL_H": "---\n- x: &a [*a]\n"}
	pod, err := Build(testOptions(), launcher.Request{ID: testID, Spec: specOf(`{"image": "x"}`), Env: env},
		testRecord("test"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range env {
		if got := receivedValue(pod, name); got != value {
			t.Errorf("%s: got %.100q, want %.100q", name, got, value)
		}
	}
}

// receivedValue returns a variable's value after the kubelet's expansion. It fails for a dollar sign that is not
// doubled.
func receivedValue(pod *corev1.Pod, name string) string {
	for _, e := range podspec.KernelOf(pod).Env {
		if e.Name == name {
			if strings.Contains(strings.ReplaceAll(e.Value, "$$", ""), "$") {
				return "a dollar sign is not doubled in " + e.Value
			}
			return strings.ReplaceAll(e.Value, "$$", "$")
		}
	}
	return "nothing"
}

// hostileVariables are the variables that change a pod, and one that does not.
var hostileVariables = append([]string{"KERNEL_X", "NVIDIA_VISIBLE_DEVICES", "KERNEL_IMAGE", "KERNEL_NAMESPACE",
	"KERNEL_POD_NAME", "KERNEL_SERVICE_ACCOUNT_NAME", "KERNEL_VOLUMES", "KERNEL_VOLUME_MOUNTS"},
	wish.DefaultPolicy().Clients.Allow...)

// Any value of a client's variable is refused with an error that names the variable, or gives a pod that is harmless
// and whose kernel gets the value unchanged.
func FuzzClient(f *testing.F) {
	values := []string{"", "0", "1", "-1", "1e9", "1Ei", "0.5", "x", "$(X)", "/x", "../x", "ok/x", "listed", "a\nb",
		"\xff", "[]", "- {name: v, secret: {secretName: listed}}", "- {name: v, secret: {secretName: ekg-x}}",
		"- {name: v, hostPath: {path: /}}",
		"- {name: secret, mountPath: /x}", "&a [*a]", "{$patch: delete}",
		"- {name: v, persistentVolumeClaim: {claimName: listed}}"}
	for i, name := range hostileVariables {
		for j, value := range values {
			if j%5 == i%5 || strings.HasPrefix(name, "KERNEL_VOLUME") { // all of them take seconds
				f.Add(uint8(i), value)
			}
		}
	}
	strict := testOptions()
	strict.Policy = policyOf(f, strictPolicy)
	f.Fuzz(func(t *testing.T, i uint8, value string) {
		name := hostileVariables[int(i)%len(hostileVariables)]
		for _, o := range []Options{testOptions(), strict} {
			req := launcher.Request{ID: testID, Spec: specOf(`{"image": "ok/x"}`), Env: map[string]string{name: value}}
			pod, err := Build(o, req, testRecord("test"))
			if err != nil {
				wantUserError(t, err)
				continue
			}
			checkHarmless(t, pod)
			if got := receivedValue(pod, name); got != value {
				t.Errorf("%s: got %q, want %q", name, got, value)
			}
			user := podspec.KernelOf(pod).SecurityContext.RunAsUser
			if user != nil && (*user == 0 || *user == podspec.SupervisorID) {
				t.Errorf("%s=%q: the kernel's user is %d", name, value, *user)
			}
		}
	})
}

// wantUserError fails for an internal error: the error must be one for the author or the client.
func wantUserError(t *testing.T, err error) {
	t.Helper()
	var r *launcher.RefusedError
	var f *launcher.FailedError
	if !errors.As(err, &r) && !errors.As(err, &f) || err.Error() == "" {
		t.Errorf("an error of ours: %v", err)
	}
}

// checkHarmless checks what must be true for every pod.
func checkHarmless(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil || v.Secret != nil && v.Name != podspec.VolumeSecret &&
			strings.HasPrefix(v.Secret.SecretName, podspec.SecretName("")) {
			t.Errorf("volume %+v", v)
		}
	}
	for _, c := range append([]corev1.Container{*podspec.KernelOf(pod)}, pod.Spec.InitContainers...) {
		for _, m := range c.VolumeMounts {
			if m.Name == podspec.VolumeSecret || m.Name == podspec.VolumeSpill || m.Name == podspec.VolumeToken ||
				m.Name == podspec.VolumeShared && (!m.ReadOnly || c.Name != podspec.ContainerKernel) {
				t.Errorf("container %s mounts %+v", c.Name, m)
			}
		}
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || s.Privileged != nil && *s.Privileged ||
			len(s.Capabilities.Add) > 0 || !slices.Contains(s.Capabilities.Drop, "ALL") {
			t.Errorf("security context of %s: %+v", c.Name, s)
		}
		for _, p := range c.Ports {
			t.Errorf("container %s opens %d", c.Name, p.ContainerPort) // the default policy allows none
		}
	}
	if len(pod.Spec.Containers) != 2 || pod.Spec.Containers[0].Name != podspec.ContainerSupervisor ||
		len(pod.Spec.EphemeralContainers) > 0 {
		t.Errorf("containers %+v", pod.Spec.Containers)
	}
	if pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("the pod is not by itself: %+v", pod.Spec)
	}
}
