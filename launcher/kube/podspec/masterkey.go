package podspec

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// MasterKey is a key that all gateways share, with its fingerprint: 16 hexadecimal digits, which are derived like the
// keys of a pod and reveal nothing. Each pod's record has the fingerprint of the key that the pod's keys are derived
// from.
type MasterKey struct {
	Secret      []byte
	Fingerprint string
}

// MasterKeys are the master keys of a gateway, at least one. The first is for new pods. Pods with a second one are
// reached, too.
type MasterKeys []MasterKey

// NewMasterKeys returns the master keys of these secrets. second may be nil. An error names the bad one.
func NewMasterKeys(first, second []byte) (MasterKeys, error) {
	switch {
	case len(first) < MinMasterKey:
		return nil, fmt.Errorf("MasterKey: %d bytes, %d are needed", len(first), MinMasterKey)
	case len(second) > 0 && len(second) < MinMasterKey:
		return nil, fmt.Errorf("SecondMasterKey: %d bytes, %d are needed", len(second), MinMasterKey)
	case bytes.Equal(first, second):
		return nil, errors.New("SecondMasterKey: equals MasterKey")
	}
	key, err := NewMasterKey(first)
	if err != nil || len(second) == 0 {
		return MasterKeys{key}, err
	}
	other, err := NewMasterKey(second)
	return MasterKeys{key, other}, err
}

// Named returns the master key with a fingerprint.
func (ks MasterKeys) Named(fingerprint string) (key MasterKey, ok bool) {
	at := slices.IndexFunc(ks, func(k MasterKey) bool { return k.Fingerprint == fingerprint })
	if at < 0 {
		return key, false
	}
	return ks[at], true
}

// Of returns the keys of a pod, whose record names their master key. The error is a *launcher.UnsupportedError if this
// gateway does not have that master key.
func (ks MasterKeys) Of(pod *corev1.Pod) (Keys, error) {
	rec, err := ReadRecord(pod)
	if err != nil {
		return Keys{}, err
	}
	key, ok := ks.Named(rec.MasterKey)
	switch {
	case ok:
		return DeriveKeys(key.Secret, pod.Namespace, pod.Name, rec.KeyVersion)
	case rec.MasterKey == "":
		return Keys{}, &launcher.UnsupportedError{
			Reason: "an earlier build of the gateway has made its pod, which names no master key"}
	}
	return Keys{}, &launcher.UnsupportedError{Reason: fmt.Sprintf(
		"its keys are derived from a master key that this gateway does not have (fingerprint %.32q)", rec.MasterKey)}
}

// NewMasterKey returns a master key with its fingerprint.
func NewMasterKey(secret []byte) (MasterKey, error) {
	fingerprint, err := hkdf.Key(sha256.New, secret, nil, "ekg master key fingerprint", 8)
	return MasterKey{secret, hex.EncodeToString(fingerprint)}, err
}

// Cipher returns a cipher with a key that is derived from the master key for one purpose: AES-256-GCM with a random
// nonce.
func (k MasterKey) Cipher(purpose string) (cipher.AEAD, error) {
	derived, err := hkdf.Key(sha256.New, k.Secret, nil, purpose, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
