package podspec

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Keys that DeriveKeys derives from a master key for a pod, by version.
const (
	masterKey = "0123456789abcdef0123456789abcdef"
	keySpace  = "kernels-ann"
	keyPod    = "aaaaaaaa-0000-4000-8000-000000000001-1"
)

var wantKeys = map[int]struct{ seed, token string }{
	KeyVersionName: {"c9014e823ff0adc22dc3761663c3a5c229da6ade50750f407b45875ef690eace",
		"70c3e55ffca75e308e56d5dbf44721de042d71bbe21745daa0819f1d46a4dd60"},
	KeyVersionNamespace: {"ca1c5bae0bdf1305a31ba1f39c43d3af7b7e484496d2efee42439cf54f1bfcb0",
		"eee0ea5ad965c51a9714bebd623a35ed33086042fc24ed6666fec2371122aa2c"},
}

func TestDeriveKeys(t *testing.T) {
	var all []string
	derive := func(namespace, pod string, version int) Keys {
		t.Helper()
		k, err := DeriveKeys([]byte(masterKey), namespace, pod, version)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, hex.EncodeToString(k.TLSSeed), k.Token, k.KernelKey, k.Identity)
		return k
	}
	// RFC 5869's construction over a label, computed with another implementation (Python's hashlib and hmac).
	for version, want := range wantKeys {
		k := derive(keySpace, keyPod, version)
		if got := hex.EncodeToString(k.TLSSeed); got != want.seed || k.Token != want.token {
			t.Errorf("version %d: seed %s, token %s", version, got, k.Token)
		}
		derive(keySpace, strings.TrimSuffix(keyPod, "1")+"2", version)
	}
	derive("kernels-bob", keyPod, KeyVersionNamespace)
	slices.Sort(all)
	if len(slices.Compact(all)) != 20 {
		t.Error("keys are equal")
	}
	if _, err := DeriveKeys([]byte(masterKey), keySpace, keyPod, 3); err == nil {
		t.Error("an unknown version was derived")
	}
}

// TestKeyVersion: the record of a pod outside the gateways' own namespace of kernels has the version with the
// namespace, also where the client has chosen it.
func TestKeyVersion(t *testing.T) {
	o := testOptions()
	spec := readSpec(t, "smallest", o)
	for _, tt := range []struct {
		change func(o *Options, req *launcher.Request)
		want   int
	}{
		{func(*Options, *launcher.Request) {}, KeyVersionName},
		{func(o *Options, req *launcher.Request) {
			o.Policy.Clients = ClientRules{Allow: []string{"KERNEL_NAMESPACE"}, Namespaces: []string{"team"}}
			req.Env = map[string]string{"KERNEL_NAMESPACE": "team"}
		}, KeyVersionNamespace},
		{func(o *Options, _ *launcher.Request) {
			o.Policy.OwnerNamespace = &OwnerNamespace{Name: "kernels-{owner}"}
		}, KeyVersionNamespace},
	} {
		o, req := testOptions(), launcher.Request{ID: testID, Owner: "ann", Spec: spec}
		o.Policy = DefaultPolicy()
		tt.change(&o, &req)
		pod, err := Build(o, req, testRecord(spec.Name))
		if err != nil {
			t.Fatal(err)
		}
		rec, err := ReadRecord(pod)
		if err != nil || rec.KeyVersion != tt.want {
			t.Errorf("a pod in %s has version %d, %v", pod.Namespace, rec.KeyVersion, err)
		}
		if !o.MayGetKeys(pod, rec) {
			t.Errorf("a pod in %s gets no keys", pod.Namespace)
		}
		if rec.KeyVersion = KeyVersionName; o.MayGetKeys(pod, rec) != (pod.Namespace == o.Namespace) {
			t.Errorf("a pod in %s may get the keys of version 1: %v", pod.Namespace, o.MayGetKeys(pod, rec))
		}
	}
}
