package podspec

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// MinMasterKey is the shortest master key, in bytes.
	MinMasterKey = 32

	// KeyVersionName is the version of DeriveKeys' derivation from a name. The version is part of each pod's record.
	KeyVersionName = 1
	// KeyVersionNamespace is the version of the derivation from a namespace and a name.
	KeyVersionNamespace = 2
)

// Names of the files in a kernel's secret.
const (
	secretTLSSeed   = "tls-seed"
	secretToken     = "token"
	secretKernelKey = "kernel-key"
	secretIdentity  = "identity"
)

// Keys is the content of a kernel's secret.
type Keys struct {
	TLSSeed   []byte // 32 bytes: the private key of the supervisor's certificate, RFC 8032
	Token     string // the bearer token that the supervisor demands
	KernelKey string // signs messages between supervisor and kernel
	Identity  string // the supervisor's ZeroMQ identity
}

// DeriveKeys derives the keys of a pod from the gateways' master key by HKDF (RFC 5869), each with a label of its own.
// The error says that the version is unknown.
func DeriveKeys(master []byte, namespace, pod string, version int) (Keys, error) {
	var k Keys
	var err error
	of := pod
	switch version {
	case KeyVersionName:
	case KeyVersionNamespace:
		of = namespace + "/" + pod // no name has a slash
	default:
		return k, fmt.Errorf("version %d of key derivation is unknown to this gateway", version)
	}
	derive := func(label string) ([]byte, error) {
		return hkdf.Key(sha256.New, master, nil, fmt.Sprintf("ekg kernel %s version %d %s", of, version, label), 32)
	}
	if k.TLSSeed, err = derive(secretTLSSeed); err != nil {
		return k, err
	}
	for label, to := range map[string]*string{
		secretToken: &k.Token, secretKernelKey: &k.KernelKey, secretIdentity: &k.Identity,
	} {
		b, err := derive(label)
		if err != nil {
			return k, err
		}
		*to = hex.EncodeToString(b)
	}
	return k, nil
}

// BuildSecret returns the secret of a pod that exists. The pod owns it, so that the cluster deletes both.
func BuildSecret(pod *corev1.Pod, keys Keys) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Name: SecretName(pod.Name), Namespace: pod.Namespace,
			Labels: map[string]string{LabelKernel: pod.Labels[LabelKernel], LabelManagedBy: Manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
				Controller: new(true)}},
		},
		Immutable: new(true),
		Type:      corev1.SecretTypeOpaque,
		Data: map[string][]byte{
			secretTLSSeed:   keys.TLSSeed,
			secretToken:     []byte(keys.Token),
			secretKernelKey: []byte(keys.KernelKey),
			secretIdentity:  []byte(keys.Identity),
		},
	}
}
