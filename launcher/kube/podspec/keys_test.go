package podspec

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

// Keys that DeriveKeys derives from a master key for a pod.
const (
	masterKey = "0123456789abcdef0123456789abcdef"
	keyPod    = "aaaaaaaa-0000-4000-8000-000000000001-1"
	wantSeed  = "c9014e823ff0adc22dc3761663c3a5c229da6ade50750f407b45875ef690eace"
	wantToken = "70c3e55ffca75e308e56d5dbf44721de042d71bbe21745daa0819f1d46a4dd60"
)

func TestDeriveKeys(t *testing.T) {
	// RFC 5869's construction over a label, computed with another implementation (Python's hashlib and hmac).
	k, err := DeriveKeys([]byte(masterKey), keyPod, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(k.TLSSeed); got != wantSeed || k.Token != wantToken {
		t.Errorf("seed %s, token %s", got, k.Token)
	}
	all := []string{hex.EncodeToString(k.TLSSeed), k.Token, k.KernelKey, k.Identity}
	next, err := DeriveKeys([]byte(masterKey), strings.TrimSuffix(keyPod, "1")+"2", 1)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, hex.EncodeToString(next.TLSSeed), next.Token, next.KernelKey, next.Identity)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Error("keys are equal")
	}
	if _, err := DeriveKeys([]byte(masterKey), keyPod, 2); err == nil {
		t.Error("an unknown version was derived")
	}
}
