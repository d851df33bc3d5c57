package api

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// Certificate returns the self-signed certificate of a kernel's supervisor, made from a seed of 32 bytes. A client that
// knows the seed pins the public key; the rest of the certificate is not checked.
func Certificate(seed []byte, kernelID string) (tls.Certificate, error) {
	if len(seed) != ed25519.SeedSize {
		return tls.Certificate{}, fmt.Errorf("tls_seed has %d bytes, not %d", len(seed), ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: kernelID},
		DNSNames: []string{kernelID}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// ErrOtherKey says that a supervisor has a key that was not made from the client's seed.
var ErrOtherKey = errors.New("the supervisor's key is not the one of this kernel")

// PinnedTLS returns the client's side of Certificate. It trusts only the key made from the seed. A handshake with
// another key returns ErrOtherKey.
func PinnedTLS(seed []byte, kernelID string) (*tls.Config, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("tls_seed has %d bytes, not %d", len(seed), ed25519.SeedSize)
	}
	want := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	return &tls.Config{
		ServerName: kernelID, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection pins the key, which is stricter than a chain
		VerifyConnection: func(st tls.ConnectionState) error {
			if len(st.PeerCertificates) == 0 {
				return errors.New("the supervisor showed no certificate")
			}
			if got, ok := st.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !want.Equal(got) {
				return ErrOtherKey
			}
			return nil
		},
	}, nil
}
