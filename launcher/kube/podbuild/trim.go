package podbuild

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// TrimmedObject is Trimmed for what an informer has received.
func TrimmedObject(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok { // else it is a cache.DeletedFinalStateUnknown
		return Trimmed(pod), nil
	}
	return o, nil
}

// Trimmed returns the part of a kernel's pod that gateways keep in memory: metadata, status, and what says where
// it runs, what it waits for and what it asks for. ReadRecord, ReadRequest, GPUs, Objects and PortsPolicy return the
// same for it as for the whole pod. A pod without a stored request keeps its spec: which of its variables a client has
// sent is not known. A trimmed pod is returned itself.
func Trimmed(pod *corev1.Pod) *corev1.Pod {
	if isTrimmed(pod) {
		return pod
	}
	small := *pod
	small.ManagedFields = nil
	var stored struct {
		Variables []string `json:"variables"`
	}
	if json.Unmarshal([]byte(pod.Annotations[annotationRequest]), &stored) != nil {
		return &small
	}
	small.Spec = corev1.PodSpec{
		NodeName:        pod.Spec.NodeName,
		NodeSelector:    pod.Spec.NodeSelector,
		SchedulingGates: pod.Spec.SchedulingGates,
		ResourceClaims:  pod.Spec.ResourceClaims,
		InitContainers:  trimmedContainers(pod.Spec.InitContainers),
		Containers:      trimmedContainers(pod.Spec.Containers),
	}
	if whole, k := podspec.KernelOf(pod), podspec.KernelOf(&small); whole != nil {
		for _, e := range whole.Env {
			if _, client := slices.BinarySearch(stored.Variables, e.Name); client {
				k.Env = append(k.Env, e)
			}
		}
		k.Env = slices.Clip(k.Env)
	}
	return &small
}

// isTrimmed reports whether a pod needs no trimming. Every whole pod has a restart policy: Build and the API server set
// it.
func isTrimmed(pod *corev1.Pod) bool {
	return pod.Spec.RestartPolicy == "" && len(pod.ManagedFields) == 0
}

// trimmedContainers keeps names, images, resources, and whether init containers go on running.
func trimmedContainers(all []corev1.Container) []corev1.Container {
	var small []corev1.Container
	for _, c := range all {
		small = append(small, corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources,
			RestartPolicy: c.RestartPolicy})
	}
	return slices.Clip(small)
}
