package podbuild

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// applyOverlay returns the pod with an overlay applied by Kubernetes' strategic merge: containers, volumes and
// variables are merged by name, mounts by path, and other lists are replaced.
func applyOverlay(pod *corev1.Pod, o wish.Overlay) (*corev1.Pod, error) {
	c := o.Kernel()
	c.Name = podspec.ContainerKernel
	o.Spec.Containers = []wish.OverlayContainer{c}
	pod = pod.DeepCopy()
	k := podspec.KernelOf(pod)
	k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool { // else a value and a valueFrom would be merged
		return slices.ContainsFunc(c.Env, func(over corev1.EnvVar) bool { return over.Name == e.Name })
	})
	original, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	return strategicMerge(original, patch)
}

// strategicMerge applies a strategic merge patch to a pod.
func strategicMerge(original, patch []byte) (*corev1.Pod, error) {
	result, err := strategicpatch.StrategicMergePatch(original, patch, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(result, pod); err != nil {
		return nil, err
	}
	// A patch puts what is new first. The order of containers is that of their start.
	slices.SortStableFunc(pod.Spec.Containers, func(a, b corev1.Container) int {
		return strings.Compare(b.Name, a.Name) // supervisor, kernel
	})
	own := func(v corev1.Volume) int {
		if i := slices.Index(podspec.ReservedVolumes, v.Name); i >= 0 {
			return i
		}
		return len(podspec.ReservedVolumes)
	}
	slices.SortStableFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return own(a) - own(b) })
	return pod, nil
}
