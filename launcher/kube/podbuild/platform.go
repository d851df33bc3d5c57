package podbuild

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// placeOnPlatform keeps a pod off nodes for which the supervisor's image does not exist. A kernelspec that chooses by
// the same label of nodes decides alone.
func (b *builder) placeOnPlatform(pod *corev1.Pod) {
	requireNodes(pod, corev1.LabelOSStable, []string{"linux"})
	if len(b.o.Architectures) > 0 {
		requireNodes(pod, corev1.LabelArchStable, b.o.Architectures)
	}
}

// requireNodes requires nodes whose label has one of the values, unless the pod already chooses by that label.
func requireNodes(pod *corev1.Pod, label string, values []string) {
	if _, ok := pod.Spec.NodeSelector[label]; ok || choosesBy(pod, label) {
		return
	}
	if len(values) == 1 {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[label] = values[0]
		return
	}
	affinity := pod.Spec.Affinity.DeepCopy()
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
		affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	for i := range required.NodeSelectorTerms { // a node has to match one of them
		term := &required.NodeSelectorTerms[i]
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: label, Operator: corev1.NodeSelectorOpIn, Values: values})
	}
	pod.Spec.Affinity = affinity
}

// choosesBy reports whether a pod requires something of a label of nodes by its affinity.
func choosesBy(pod *corev1.Pod, label string) bool {
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
		func(t corev1.NodeSelectorTerm) bool {
			return slices.ContainsFunc(t.MatchExpressions,
				func(e corev1.NodeSelectorRequirement) bool { return e.Key == label })
		})
}
