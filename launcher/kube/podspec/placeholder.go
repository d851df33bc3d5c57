package podspec

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
)

const (
	// ComponentPlaceholder is the value of LabelComponent of Deployments that keep room for kernels, and of their pods.
	ComponentPlaceholder = "placeholder"
	// LabelPlaceholder is the label of pods that keep room for kernels. Its value is the name of their Deployment.
	LabelPlaceholder = Domain + "placeholder"

	namePlaceholder  = "ekg-placeholder"
	placeholderGrace = 1 // seconds: a kernel waits for it
)

// Placeholders returns the Deployments whose pods keep room for kernels of flavors, one for each flavor that wants
// some, by name. A pod asks for the flavor's GPUs on the flavor's nodes. Its priority is below that of kernels, so the
// scheduler removes it where a kernel needs its place, and the next one waits until there is room. Neither argument is
// modified.
func Placeholders(o Options, flavors []flavor.Flavor) (sets []*appsv1.Deployment) {
	o = o.withDefaults()
	for i := range flavors {
		if flavors[i].Placeholders > 0 {
			sets = append(sets, placeholder(o, &flavors[i]))
		}
	}
	slices.SortFunc(sets, func(a, b *appsv1.Deployment) int { return strings.Compare(a.Name, b.Name) })
	return sets
}

// IsPlaceholder reports whether a pod only keeps room for kernels.
func IsPlaceholder(pod *corev1.Pod) bool { return pod.Labels[LabelPlaceholder] != "" }

// placeholder returns the Deployment of one flavor. Its pods satisfy the security standard "restricted".
func placeholder(o Options, f *flavor.Flavor) *appsv1.Deployment {
	name := namePlaceholder + "-" + f.Name
	b := builder{o: o}
	var p placement
	waits := p.container(o, ContainerKernel, o.SupervisorImage, corev1.PullPolicy(o.SupervisorPullPolicy),
		supervisorProgram, "wait")
	waits.VolumeMounts = nil
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Containers:                    []corev1.Container{waits},
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(placeholderGrace)),
		PriorityClassName:             o.PlaceholderClass,
	}}
	for _, secret := range o.SupervisorPullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	applyFlavor(pod, f)
	pod.Spec.Containers[0].Name = ComponentPlaceholder
	b.placeOnPlatform(pod)
	labels := map[string]string{labelName: namePlaceholder, LabelComponent: ComponentPlaceholder, LabelPlaceholder: name}
	set := &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: map[string]string{
			labelName: namePlaceholder, LabelComponent: ComponentPlaceholder, LabelManagedBy: Manager}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(f.Placeholders)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			// A pod more than wanted would make an autoscaler add a node.
			Strategy:             appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			RevisionHistoryLimit: new(int32(0)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{labelName: namePlaceholder, LabelComponent: ComponentPlaceholder,
						LabelPlaceholder: name, annotationIstio: "false"},
					Annotations: map[string]string{annotationIstio: "false", annotationLinkerd: "disabled",
						AnnotationSafeToEvict: "true"},
				},
				Spec: pod.Spec,
			},
		},
	}
	set.Annotations = map[string]string{AnnotationContent: digest(set)}
	return set
}
