package podspec

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
)

// MasterKey is a key that all gateways share, with its fingerprint: 16 hexadecimal digits, which are derived like the
// keys of a pod and reveal nothing. Each pod's record has the fingerprint of the key that the pod's keys are derived
// from.
type MasterKey struct {
	Secret      []byte
	Fingerprint string
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
