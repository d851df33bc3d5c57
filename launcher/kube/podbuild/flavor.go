package podbuild

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// applyFlavor replaces the GPUs and the resource claims of the kernelspec by those of the flavor. A pod with both would
// ask for two kinds of GPUs. Node labels of the flavor override those of the kernelspec.
func applyFlavor(pod *corev1.Pod, f *flavor.Flavor) {
	k := podspec.KernelOf(pod)
	for _, amounts := range []corev1.ResourceList{k.Resources.Requests, k.Resources.Limits} {
		maps.DeleteFunc(amounts, func(name corev1.ResourceName, _ resource.Quantity) bool {
			gpu, _ := podspec.IsGPU(name)
			return gpu
		})
	}
	pod.Spec.ResourceClaims, k.Resources.Claims = nil, nil
	r := podspec.RequestOf(f)
	ask := func(name corev1.ResourceName, n int64) {
		q := *resource.NewQuantity(n, resource.DecimalSI)
		podspec.SetAmount(&k.Resources.Requests, name, q)
		podspec.SetAmount(&k.Resources.Limits, name, q)
	}
	if r.Counted != "" {
		ask(r.Counted, r.Amount)
	}
	for name, n := range r.Others {
		ask(name, n)
	}
	if r.Template != "" {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{
			{Name: podspec.ClaimOfFlavor, ResourceClaimTemplateName: &r.Template}}
	}
	if len(f.NodeSelector) > 0 {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(pod.Spec.NodeSelector, f.NodeSelector)
	}
	for _, t := range f.Tolerations {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key:               t.Key,
			Operator:          corev1.TolerationOperator(t.Operator),
			Value:             t.Value,
			Effect:            corev1.TaintEffect(t.Effect),
			TolerationSeconds: t.TolerationSeconds,
		})
	}
	if f.RuntimeClass != "" {
		pod.Spec.RuntimeClassName = &f.RuntimeClass
	}
}

// sizeOf returns the GPUs that a complete pod with the flavor counts as. A client may have changed how many it asks
// for.
func sizeOf(pod *corev1.Pod, f *flavor.Flavor) gpu.Amount {
	r := podspec.RequestOf(f)
	if r.Counted != "" {
		now := podspec.KernelOf(pod).Resources.Limits[r.Counted]
		return f.Size().Times(now.Value(), r.Amount)
	}
	if len(pod.Spec.ResourceClaims) == 0 {
		return 0
	}
	return f.Size()
}
