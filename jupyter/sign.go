package jupyter

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"
)

// Signer signs and checks ZeroMQ messages with a kernel's key. A signature is the lower-case hexadecimal HMAC-SHA256 of
// header, parent_header, metadata and content: the scheme "hmac-sha256" of the connection file. As the protocol
// demands, a signer without a key signs nothing and accepts everything. It may be used concurrently.
type Signer struct{ pool *sync.Pool }

// NewSigner returns a signer for the key of a connection file, given as its UTF-8 bytes.
func NewSigner(key []byte) *Signer {
	if len(key) == 0 {
		return &Signer{}
	}
	key = append([]byte(nil), key...)
	return &Signer{pool: &sync.Pool{New: func() any {
		return &signState{mac: hmac.New(sha256.New, key)}
	}}}
}

type signState struct {
	mac hash.Hash
	sum [sha256.Size]byte
	hex [2 * sha256.Size]byte
}

func (s *signState) sign(header, parent, metadata, content []byte) []byte {
	s.mac.Reset()
	s.mac.Write(header)
	s.mac.Write(parent)
	s.mac.Write(metadata)
	s.mac.Write(content)
	hex.Encode(s.hex[:], s.mac.Sum(s.sum[:0]))
	return s.hex[:]
}

// Sign returns the signature frame of a message: 64 bytes, or an empty frame without a key.
func (s *Signer) Sign(header, parent, metadata, content []byte) []byte {
	if s.pool == nil {
		return []byte{}
	}
	st := s.pool.Get().(*signState)
	defer s.pool.Put(st)
	return append([]byte(nil), st.sign(header, parent, metadata, content)...)
}

// Verify reports, in constant time, whether the signature is the message's.
func (s *Signer) Verify(signature, header, parent, metadata, content []byte) bool {
	if s.pool == nil {
		return true
	}
	st := s.pool.Get().(*signState)
	defer s.pool.Put(st)
	return hmac.Equal(signature, st.sign(header, parent, metadata, content))
}
