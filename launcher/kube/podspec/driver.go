package podspec

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// LabelWorker is on pods that a kernel has created and that may connect to its ports: executors of Spark, workers of
// Dask. Its value is the kernel's id. No kernel's pod has it.
const LabelWorker = Domain + "worker-of"

// annotationPorts has the kernelspec's ports in JSON, as Kubernetes writes the ports of a container.
const annotationPorts = Domain + "ports"

// Where a pod finds the token of its service account. Every client of Kubernetes looks there.
const (
	tokenDir     = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenSeconds = 3607               // validity, as Kubernetes' own admission sets it; the kubelet renews the token
	rootCA       = "kube-root-ca.crt" // the config map with the API server's certificate, in every namespace
	maxPorts     = 32
)

// driver checks the service account's token and the ports of a kernel that is the driver of other pods.
func (c *checker) driver(e *extension) {
	if e.ServiceAccountToken {
		where := shortPath("serviceAccountToken")
		c.keyAllowed(where, "serviceAccountToken")
		account := e.Pod.Spec.ServiceAccountName
		if account == "" {
			account = e.ServiceAccountName
		}
		if account == "" {
			c.refuse(where, "needs serviceAccountName, which says whose token it is")
		} else {
			c.listedIn(where, account, c.tokens)
		}
		for i, m := range slices.Concat(e.VolumeMounts, e.Pod.kernel().VolumeMounts) {
			if clean := path.Clean(m.MountPath); within(clean, tokenDir) || within(tokenDir, clean) {
				c.refuse(where, "cannot be mounted: a volume is mounted at %s (mount %d)", quoted(m.MountPath), i+1)
			}
		}
	}
	if e.Ports != nil {
		c.keyAllowed(shortPath("ports"), "ports")
	}
	if len(e.Ports) > maxPorts {
		c.refuse(shortPath("ports"), "has %d ports; at most %d are allowed", len(e.Ports), maxPorts)
	}
	names, numbers := []string{supervisorPortName}, []string{}
	for i := range e.Ports {
		p, where := &e.Ports[i], fmt.Sprintf("%s[%d]", shortPath("ports"), i)
		number := fmt.Sprint(p.Protocol, p.ContainerPort)
		switch {
		case p.HostPort != 0:
			c.refuse(where+".hostPort", "cannot be set: a kernel has no ports of the node")
		case p.HostIP != "":
			c.refuse(where+".hostIP", "cannot be set: a kernel has no ports of the node")
		case !slices.Contains([]corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP}, p.Protocol):
			c.refuse(where+".protocol", "is %s; it must be TCP or UDP", quoted(string(p.Protocol)))
		case p.ContainerPort == SupervisorPort:
			c.refuse(where+".containerPort", "%d is the supervisor's port", p.ContainerPort)
		case !c.spec.Ports.contains(int64(p.ContainerPort)) || len(validation.IsValidPortNum(int(p.ContainerPort))) > 0:
			c.refuse(where+".containerPort", "%d is not allowed; allowed: %s", p.ContainerPort, c.spec.Ports)
		case slices.Contains(numbers, number):
			c.refuse(where+".containerPort", "%d is given twice", p.ContainerPort)
		case p.Name != "" && len(validation.IsValidPortName(p.Name)) > 0:
			c.refuse(where+".name", "%s is not a valid name of a port: at most 15 small letters, digits and '-'", quoted(p.Name))
		case p.Name != "" && slices.Contains(names, p.Name):
			c.refuse(where+".name", "%q is taken", p.Name)
		}
		names, numbers = append(names, p.Name), append(numbers, number)
	}
}

// addDriver adds the ports, and the token of the service account in the form that Kubernetes' own admission gives it.
// Only the kernel's container gets the token.
func (b *builder) addDriver(pod *corev1.Pod) error {
	k := kernelOf(pod)
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
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volumeToken, VolumeSource: corev1.VolumeSource{
		Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o644)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Path: "token", ExpirationSeconds: new(int64(tokenSeconds))}},
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: rootCA},
				Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		}}}})
	k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: volumeToken, MountPath: tokenDir, ReadOnly: true})
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
			if s.ServiceAccountToken != nil && (v.Name != volumeToken || !b.ext.ServiceAccountToken) {
				return false
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeToken })
		if mounted != (b.ext.ServiceAccountToken && c.Name == ContainerKernel) {
			return false
		}
	}
	return true
}

// keepsAccount refuses a client's variable that would change whose token the kernel gets.
func (b *builder) keepsAccount(c *clientChecker, variable string) bool {
	if b.ext.ServiceAccountToken {
		c.refuse(variable, "cannot be changed: the kernelspec gives its kernels the token of a service account")
	}
	return !b.ext.ServiceAccountToken
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
	id := pod.Labels[LabelKernel]
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
			Labels: map[string]string{LabelKernel: id, LabelManagedBy: Manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
				Controller: new(true)}},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{LabelKernel: id}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{rule},
		},
	}, nil
}
