package kube

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

const (
	minMasterKey = 32 // bytes
	keyVersion   = 1  // of the derivation, written into each pod's record
)

// deriveKeys derives a pod's keys by HKDF (RFC 5869), each with a label of its own.
func deriveKeys(master []byte, pod string, version int) (keyMaterial, error) {
	derive := func(label string) ([]byte, error) {
		return hkdf.Key(sha256.New, master, nil, fmt.Sprintf("ekg kernel %s version %d %s", pod, version, label), 32)
	}
	var k keyMaterial
	var err error
	if version != keyVersion {
		return k, fmt.Errorf("keys of version %d are not known to this gateway", version)
	}
	if k.tlsSeed, err = derive(secretTLSSeed); err != nil {
		return k, err
	}
	for label, to := range map[string]*string{secretToken: &k.token, secretKernelKey: &k.kernelKey, secretIdentity: &k.identity} {
		b, err := derive(label)
		if err != nil {
			return k, err
		}
		*to = hex.EncodeToString(b)
	}
	return k, nil
}
