package podspec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// ComponentPlaceholder is the value of LabelComponent of Deployments that keep room for kernels, and of their pods.
	ComponentPlaceholder = "placeholder"
	// LabelPlaceholder is the label of pods that keep room for kernels. Its value is the name of their Deployment.
	LabelPlaceholder = Domain + "placeholder"

	namePlaceholder  = "ekg-placeholder"
	placeholderGrace = 1 // seconds: a kernel waits for it
)

// Room is a number of placeholders that keep room for kernels of one kernelspec.
type Room struct {
	Start launcher.Request // a plain start of the kernelspec
	Count int              // of placeholders
}

// Placeholders returns the Deployments whose pods keep room for kernels, by name: one for each flavor that wants some,
// and one for each kernelspec. A flavor's pod asks for the flavor's GPUs on the flavor's nodes. A kernelspec's pod asks
// for all that a pod of a plain start asks for, on the nodes of that pod. The numbers of a kernelspec and of its flavor
// add up. The priority of such a pod is below that of kernels. So the scheduler removes it if a kernel needs its place,
// and its successor waits until there is room. left has a sentence for each kernelspec that can have no placeholders.
// No argument is modified.
func Placeholders(o Options, flavors []flavor.Flavor, rooms []Room) (sets []*appsv1.Deployment, left []string) {
	o = o.withDefaults()
	for i := range flavors {
		if f := &flavors[i]; f.Placeholders > 0 {
			pod := idlePod(o)
			applyFlavor(pod, f)
			(&builder{o: o}).placeOnPlatform(pod)
			sets = append(sets, placeholder(o, NameOfFlavorRoom(f.Name), f.Placeholders, pod))
		}
	}
	for _, r := range rooms {
		pod, err := roomPod(o, r.Start)
		if err != nil {
			left = append(left, fmt.Sprintf("kernelspec %s: %v", r.Start.Spec.Name, err))
			continue
		}
		sets = append(sets, placeholder(o, NameOfRoom(r.Start.Spec.Name), r.Count, pod))
	}
	slices.SortFunc(sets, func(a, b *appsv1.Deployment) int { return strings.Compare(a.Name, b.Name) })
	return sets, left
}

// IsPlaceholder reports whether a pod only keeps room for kernels.
func IsPlaceholder(pod *corev1.Pod) bool { return pod.Labels[LabelPlaceholder] != "" }

// NameOfFlavorRoom returns the name of the Deployment with the placeholders of a flavor. Their pods have it as the
// value of LabelPlaceholder.
func NameOfFlavorRoom(name string) string { return namePlaceholder + "-" + name }

// NameOfRoom returns the same for a kernelspec. No flavor's Deployment has that name, because no name of a flavor has
// "--".
func NameOfRoom(spec string) string {
	name := namePlaceholder + "-spec--" + spec
	if len(validation.IsDNS1123Subdomain(name)) == 0 && len(name) <= validation.LabelValueMaxLength &&
		!strings.HasPrefix(spec, "-") {
		return name
	}
	return namePlaceholder + "-spec---" + digest(spec)
}

// idlePod returns a pod that asks for almost nothing. It satisfies the security standard "restricted".
func idlePod(o Options) *corev1.Pod {
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
	return pod
}

// roomPod returns a placeholder for the pod of a plain start: it asks for the same resources, and may run on the same
// nodes.
func roomPod(o Options, start launcher.Request) (*corev1.Pod, error) {
	start.Owner = exampleOwner
	kernel, err := Build(o, start, Record{ID: start.ID, Generation: 1, Owner: start.Owner, SpecName: start.Spec.Name,
		Protocol: api.ProtocolVersion})
	if err != nil {
		return nil, err
	}
	if len(kernel.Spec.ResourceClaims) > 0 {
		return nil, errors.New("placeholders: " + flavor.NoClaimsMoved)
	}
	pod := idlePod(o)
	from, to := &kernel.Spec, &pod.Spec
	to.NodeSelector, to.Affinity, to.Tolerations = from.NodeSelector, from.Affinity, from.Tolerations
	to.RuntimeClassName, to.SchedulerName = from.RuntimeClassName, from.SchedulerName
	to.TopologySpreadConstraints = from.TopologySpreadConstraints
	for name, q := range requestsOf(kernel) {
		k := kernelOf(pod)
		if now, ok := k.Resources.Requests[name]; ok && q.Cmp(now) < 0 {
			continue // its own process needs that much
		}
		setRequest(k, name, q)
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceEphemeralStorage:
		case name == corev1.ResourceMemory && q.Cmp(k.Resources.Limits[name]) < 0:
		default: // Kubernetes accepts no lower limit, and of other resources no other one
			setLimit(k, name, q)
		}
	}
	return pod, nil
}

// requestsOf returns what the scheduler reserves for a pod. Where a container has only a limit, Kubernetes requests
// that much.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	pod = pod.DeepCopy()
	for _, all := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range all {
			c := &all[i]
			for name, q := range c.Resources.Limits {
				if _, given := c.Resources.Requests[name]; !given {
					setRequest(c, name, q)
				}
			}
		}
	}
	all := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	maps.DeleteFunc(all, func(_ corev1.ResourceName, q resource.Quantity) bool { return q.IsZero() })
	return all
}

// placeholder returns a Deployment with pods that are like pod.
func placeholder(o Options, name string, count int, pod *corev1.Pod) *appsv1.Deployment {
	kernelOf(pod).Name = ComponentPlaceholder
	labels := map[string]string{labelName: namePlaceholder, LabelComponent: ComponentPlaceholder, LabelPlaceholder: name}
	set := &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: map[string]string{
			labelName: namePlaceholder, LabelComponent: ComponentPlaceholder, LabelManagedBy: Manager}},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(count)),
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
