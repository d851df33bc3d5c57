package podbuild

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// LabelWorker is on pods that a kernel has created and that may connect to its ports: executors of Spark, workers of
// Dask. Its value is the kernel's id. No kernel's pod has it.
const LabelWorker = podspec.Domain + "worker-of"

// annotationPorts has the kernelspec's ports in JSON, as Kubernetes writes the ports of a container.
const annotationPorts = podspec.Domain + "ports"

const (
	tokenSeconds = 3607               // validity, as Kubernetes' own admission sets it; the kubelet renews the token
	rootCA       = "kube-root-ca.crt" // the config map with the API server's certificate, in every namespace
)

// addDriver adds the ports, and the token of the service account in the form that Kubernetes' own admission gives it.
// Only the kernel's container gets the token.
func (b *builder) addDriver(pod *corev1.Pod) error {
	k := podspec.KernelOf(pod)
	for _, p := range b.ext.Ports {
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		k.Ports = append(k.Ports, p)
	}
	if len(k.Ports) > 0 {
		text, err := json.Marshal(k.Ports)
		if err != nil {
			return err
		}
		pod.Annotations[annotationPorts] = string(text)
	}
	if !b.ext.ServiceAccountToken {
		return nil
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: podspec.VolumeToken, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: rootCA},
				Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		}}}})
	k.VolumeMounts = append(k.VolumeMounts,
		corev1.VolumeMount{Name: podspec.VolumeToken, MountPath: podspec.TokenDir, ReadOnly: true})
	return nil
}

// hasOnlyItsToken reports whether a pod has its service account's token if the kernelspec asks for it, and else none.
// Only the kernel's container may have it.
func (b *builder) hasOnlyItsToken(pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil && (v.Name != podspec.VolumeToken || !b.ext.ServiceAccountToken) {
				return false
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		mounted := slices.ContainsFunc(c.VolumeMounts,
			func(m corev1.VolumeMount) bool { return m.Name == podspec.VolumeToken })
		if mounted != (b.ext.ServiceAccountToken && c.Name == podspec.ContainerKernel) {
			return false
		}
	}
	return true
}

// PortsPolicy returns the network policy of a pod whose kernel has ports, nil without. It lets the pods that have the
// label LabelWorker with the kernel's id connect to them, from any namespace. The pod, which exists, owns it. The error
// says that the pod's annotation is invalid.
func PortsPolicy(pod *corev1.Pod) (*networkingv1.NetworkPolicy, error) {
	text := pod.Annotations[annotationPorts]
	if text == "" {
		return nil, nil
	}
	var ports []corev1.ContainerPort
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", annotationPorts, err)
	}
	id := pod.Labels[podspec.LabelKernel]
	rule := networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{}, // of any namespace: workers should not be among kernels
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{LabelWorker: id}}}}}
	for _, p := range ports {
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Protocol: new(p.Protocol),
			Port: new(intstr.FromInt32(p.ContainerPort))})
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "ekg-ports-" + string(pod.UID), Namespace: pod.Namespace,
			Labels: map[string]string{podspec.LabelKernel: id, podspec.LabelManagedBy: podspec.Manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
				Controller: new(true)}},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{podspec.LabelKernel: id}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{rule},
		},
	}, nil
}
