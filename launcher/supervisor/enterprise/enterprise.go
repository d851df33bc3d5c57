// Package enterprise speaks with the launchers in kernel images of Jupyter Enterprise Gateway. Such a launcher chooses
// the kernel's ports and key, and sends them to an address that it was given: see Expectation and Answer. It then takes
// signals on a port of its own, the communication port: see Signal. Package supervisor calls it for kernelspecs that
// keep their launcher. This package knows nothing of processes and of Jupyter's messages.
//
// The forms are those of Enterprise Gateway's etc/kernel-launchers. The repository's testdata/enterprise/answers has
// recorded answers of them.
//
// Goroutines: Expectation.Await starts one for each connection, and waits for them.
package enterprise

import (
	"bytes"
	"crypto/aes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	keyBits   = 2048 // launchers accept every size
	maxAnswer = 16 << 10
	maxKey    = 255 // bytes of the key that signs messages
)

// Key is the pair of keys with which one supervisor reads answers. It may be used concurrently.
type Key struct {
	private *rsa.PrivateKey
	public  string
}

// NewKey makes a pair of keys.
func NewKey() (*Key, error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, err
	}
	return newKey(private)
}

func newKey(private *rsa.PrivateKey) (*Key, error) {
	der, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return nil, err
	}
	return &Key{private: private, public: base64.StdEncoding.EncodeToString(der)}, nil
}

// Public returns the public key in the form that launchers read: base64 of its SubjectPublicKeyInfo in DER.
func (k *Key) Public() string { return k.public }

// Answer is what a launcher says about its kernel. The kernel listens on all addresses of its machine or pod. Its JSON
// is a part of a connection file.
type Answer struct {
	ShellPort   int    `json:"shell_port"`
	IOPubPort   int    `json:"iopub_port"`
	StdinPort   int    `json:"stdin_port"`
	ControlPort int    `json:"control_port"`
	HBPort      int    `json:"hb_port"`
	Key         string `json:"key"`                 // signs messages, with HMAC-SHA256
	CommPort    int    `json:"comm_port,omitempty"` // the communication port; 0: the launcher has none
}

// payload is an answer of version 1, inside its outer base64.
type payload struct {
	Version  int    `json:"version"`
	Key      string `json:"key"`       // base64 of the AES key, encrypted by RSA PKCS#1 v1.5
	ConnInfo string `json:"conn_info"` // base64 of a connectionInfo, encrypted by AES-128-ECB
}

// connectionInfo is the JSON of an answer. Answers of version 0 have no kernel id.
type connectionInfo struct {
	Answer
	Transport       string `json:"transport"`
	SignatureScheme string `json:"signature_scheme"`
	KernelID        string `json:"kernel_id"`
}

// Read returns the answer that a launcher has sent for a kernel, of version 1 or 0. The error is a part of a sentence
// for the kernel's owner. It names no content of the answer.
func (k *Key) Read(text []byte, kernelID string) (Answer, error) {
	if len(text) > maxAnswer {
		return Answer{}, fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	outer, err := decode(string(bytes.TrimSpace(text)))
	if err != nil {
		return Answer{}, errors.New("it is not base64")
	}
	var p payload
	if json.Unmarshal(outer, &p) != nil {
		return readVersion0(outer, kernelID)
	}
	if p.Version != 1 {
		return Answer{}, fmt.Errorf("its version is %d, and ekg reads 0 and 1", p.Version)
	}
	return k.readVersion1(&p, kernelID)
}

func (k *Key) readVersion1(p *payload, kernelID string) (Answer, error) {
	wrapped, err := decode(p.Key)
	if err != nil {
		return Answer{}, errors.New("its key is not base64")
	}
	encrypted, err := decode(p.ConnInfo)
	if err != nil {
		return Answer{}, errors.New("its conn_info is not base64")
	}
	// A wrapped key that cannot be decrypted is replaced by a random one, so that a sender learns nothing about it.
	var secret [aes.BlockSize]byte
	rand.Read(secret[:]) // never fails

	err = rsa.DecryptPKCS1v15SessionKey(nil, k.private, wrapped, secret[:]) //nolint:staticcheck // the launchers' form
	if err != nil {
		return Answer{}, errors.New("it is not encrypted for this start")
	}
	plain, ok := decryptECB(secret[:], encrypted)
	if ok {
		plain, ok = unpad(plain)
	}
	var info connectionInfo
	if !ok || json.Unmarshal(plain, &info) != nil {
		return Answer{}, errors.New("it is not encrypted for this start")
	}
	if info.KernelID != kernelID {
		return Answer{}, errors.New("it is of another kernel")
	}
	return info.check()
}

// readVersion0 reads an answer of launchers before release 2.6. Its key is the beginning of the kernel's id, so it
// proves no more than that its sender knows the id.
func readVersion0(encrypted []byte, kernelID string) (Answer, error) {
	if len(kernelID) < aes.BlockSize {
		return Answer{}, errors.New("the kernel's id is too short for an answer of version 0")
	}
	plain, ok := decryptECB([]byte(kernelID[:aes.BlockSize]), encrypted)
	end := bytes.LastIndexByte(plain, '}') // '%' fills the last block
	var info connectionInfo
	if !ok || json.Unmarshal(plain[:end+1], &info) != nil {
		return Answer{}, errors.New("it is not an answer of version 0 or 1 for this kernel")
	}
	return info.check()
}

// decryptECB decrypts whole blocks, each by itself.
func decryptECB(key, encrypted []byte) (plain []byte, ok bool) {
	if len(encrypted) == 0 || len(encrypted)%aes.BlockSize != 0 {
		return nil, false
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, false
	}
	plain = make([]byte, len(encrypted))
	for i := 0; i < len(plain); i += aes.BlockSize {
		block.Decrypt(plain[i:i+aes.BlockSize], encrypted[i:i+aes.BlockSize])
	}
	return plain, true
}

// unpad removes the padding of PKCS #7.
func unpad(plain []byte) (text []byte, ok bool) {
	n := int(plain[len(plain)-1])
	if n < 1 || n > aes.BlockSize || !bytes.HasSuffix(plain, bytes.Repeat([]byte{byte(n)}, n)) {
		return nil, false
	}
	return plain[:len(plain)-n], true
}

// check returns the answer if ekg can connect to such a kernel.
func (i *connectionInfo) check() (Answer, error) {
	for name, port := range map[string]int{"shell_port": i.ShellPort, "iopub_port": i.IOPubPort,
		"stdin_port": i.StdinPort, "control_port": i.ControlPort, "hb_port": i.HBPort} {
		if port < 1 || port > 65535 {
			return Answer{}, fmt.Errorf("its %s is %d, which is not a port", name, port)
		}
	}
	switch {
	case i.CommPort < 0 || i.CommPort > 65535:
		return Answer{}, fmt.Errorf("its comm_port is %d, which is not a port", i.CommPort)
	case i.Transport != "" && i.Transport != "tcp":
		return Answer{}, errors.New("its transport is not tcp")
	case i.SignatureScheme != "" && i.SignatureScheme != "hmac-sha256":
		return Answer{}, errors.New("its signature_scheme is not hmac-sha256")
	case len(i.Key) > maxKey:
		return Answer{}, fmt.Errorf("its key has more than %d bytes", maxKey)
	}
	return i.Answer, nil
}

func decode(text string) ([]byte, error) { return base64.StdEncoding.DecodeString(text) }
