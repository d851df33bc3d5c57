package records

import (
	"bytes"
	"compress/gzip"
	"crypto/cipher"
	"fmt"
	"io"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// A record's data is compressed by gzip and encrypted by AES-256-GCM with a random nonce. Each record has a key of its
// own, derived from the master key: so a record's content is rejected in the place of another one.

// recordCipher returns the cipher of a record.
func recordCipher(n recordName, master podspec.MasterKey) (cipher.AEAD, error) {
	return master.Cipher(fmt.Sprintf("ekg record %s of kind %s version 1", n.id, n.kind))
}

// seal returns data as it is stored, encrypted with the key for new objects.
func (s *Store) seal(n recordName, data []byte) ([]byte, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	c, err := recordCipher(n, s.opts.Keys[0])
	if err != nil {
		return nil, err
	}
	return c.Seal(nil, nil, packed.Bytes(), nil), nil
}

// openSealed returns the data of a record. fingerprint names the master key. Everything that is wrong with the content
// is ErrRecordDamaged.
func (s *Store) openSealed(n recordName, fingerprint string, sealed []byte) ([]byte, error) {
	key, ok := s.opts.Keys.Named(fingerprint)
	if !ok {
		return nil, fmt.Errorf("%w: fingerprint %.32q", launcher.ErrRecordDamaged, fingerprint)
	}
	c, err := recordCipher(n, key)
	if err != nil {
		return nil, err
	}
	packed, err := c.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrRecordDamaged, err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("%w: %v", launcher.ErrRecordDamaged, err)
	}
	data, err := io.ReadAll(io.LimitReader(r, maxRecord+1))
	if err != nil || len(data) > maxRecord {
		return nil, fmt.Errorf("%w: its content cannot be unpacked", launcher.ErrRecordDamaged)
	}
	return data, nil
}
