package podbuild

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// KeyVersion returns the version for the keys of a new pod. Pods of one name in two namespaces have different keys. The
// pods of Options.Namespace have the version that gateways of earlier releases know, too.
func (o *Options) KeyVersion(namespace string) int {
	if namespace == o.Namespace {
		return podspec.KeyVersionName
	}
	return podspec.KeyVersionNamespace
}

// MayGetKeys reports whether a gateway may create a secret with the keys that a pod's record names. A user who can
// create pods in a namespace writes records there. With another version, the secret would have the keys of a pod
// elsewhere.
func (o *Options) MayGetKeys(pod *corev1.Pod, r podspec.Record) bool {
	return pod.Namespace == o.Namespace || r.KeyVersion == podspec.KeyVersionNamespace
}
