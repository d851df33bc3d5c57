package kube

import (
	"encoding/hex"
	"slices"
	"testing"
)

// What deriveKeys makes of testKey for idA's first pod.
const (
	wantSeed  = "c9014e823ff0adc22dc3761663c3a5c229da6ade50750f407b45875ef690eace"
	wantToken = "70c3e55ffca75e308e56d5dbf44721de042d71bbe21745daa0819f1d46a4dd60"
)

func TestDeriveKeys(t *testing.T) {
	// RFC 5869's construction over a label, computed with another implementation (Python's hashlib and hmac).
	k, err := deriveKeys(testKey, idA+"-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(k.tlsSeed); got != wantSeed || k.token != wantToken {
		t.Errorf("seed %s, token %s", got, k.token)
	}
	all := []string{hex.EncodeToString(k.tlsSeed), k.token, k.kernelKey, k.identity}
	next, err := deriveKeys(testKey, idA+"-2", 1)
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, hex.EncodeToString(next.tlsSeed), next.token, next.kernelKey, next.identity)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Error("keys are equal")
	}
	if _, err := deriveKeys(testKey, idA+"-1", 2); err == nil {
		t.Error("an unknown version was derived")
	}
}
