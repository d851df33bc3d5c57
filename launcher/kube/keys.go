package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Token returns the bearer token that the kernel's supervisor demands.
func (l *Launcher) Token(id string) string {
	l.mu.Lock()
	k := l.kernels[id]
	var pod *corev1.Pod
	if k != nil {
		pod = k.pod
	}
	l.mu.Unlock()
	if pod == nil {
		return ""
	}
	keys, err := l.keys.Of(pod)
	if err != nil {
		return ""
	}
	return keys.Token
}

// countKeysLocked counts the kernels that live, by the master key of their pods.
func countKeysLocked(keys podspec.MasterKeys, known []*kernel) map[string]int64 {
	counts := map[string]int64{launcher.KeyCurrent: 0, launcher.KeySecond: 0, launcher.KeyUnknown: 0}
	for _, k := range known {
		if k.end != nil || k.removed {
			continue
		}
		switch k.rec.MasterKey {
		case keys[0].Fingerprint:
			counts[launcher.KeyCurrent]++
		case keys[len(keys)-1].Fingerprint:
			counts[launcher.KeySecond]++
		default:
			counts[launcher.KeyUnknown]++
		}
	}
	return counts
}
