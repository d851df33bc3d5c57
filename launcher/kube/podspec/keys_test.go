package podspec

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
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

// TestNewMasterKeys: bad master keys are rejected by name.
func TestNewMasterKeys(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	for want, keys := range map[string][2][]byte{
		"MasterKey: 3 bytes, 32 are needed":       {[]byte("abc"), nil},
		"SecondMasterKey: 3 bytes, 32 are needed": {key, []byte("abc")},
		"SecondMasterKey: equals MasterKey":       {key, key},
	} {
		if _, err := NewMasterKeys(keys[0], keys[1]); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
