package podspec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Bounds of what is pulled ahead.
const (
	MaxPulledImages     = 32 // of one DaemonSet; each image is a container
	MaxPulledPlacements = 16 // DaemonSets
)

const (
	// ComponentPrePull is the value of LabelComponent of the DaemonSets that pull images, and of their pods.
	ComponentPrePull = "pre-pull"
	// AnnotationContent of such a DaemonSet has a digest of what the gateway has asked for.
	AnnotationContent = Domain + "content"

	namePrePull       = "ekg-pre-pull"
	labelPrePull      = Domain + "pre-pull" // of pods: the name of their DaemonSet
	containerInstall  = "install"
	prefixPull        = "pull-"
	digestDigits      = 10 // hexadecimal digits of a digest in names
	prePullGrace      = 5  // seconds
	prePullCPU        = "1m"
	prePullMemory     = "8Mi" // of a container; such a process holds about 4
	prePullMemoryMost = "64Mi"
)

// placement is all of a kernel's pod that decides on which nodes it runs and by which account its image is pulled.
type placement struct {
	NodeSelector     map[string]string
	NodeAffinity     *corev1.NodeSelector
	Tolerations      []corev1.Toleration
	RuntimeClassName *string
	ServiceAccount   string

	images  []pulledImage // by name
	secrets []corev1.LocalObjectReference
}

type pulledImage struct {
	name   string
	policy corev1.PullPolicy
}

// PrePull returns the DaemonSets that pull the images of plain starts of kernelspecs ahead: one for each placement on
// nodes, by name. left has a sentence for each image that is left out. The same starts give the same DaemonSets, in
// whatever order. Neither argument is modified.
func PrePull(o Options, starts []launcher.Request) (sets []*appsv1.DaemonSet, left []string) {
	o = o.withDefaults()
	places := map[string]*placement{}
	starts = slices.Clone(starts)
	slices.SortStableFunc(starts, func(a, b launcher.Request) int {
		return cmp.Or(strings.Compare(a.Spec.Name, b.Spec.Name), strings.Compare(a.Spec.Profile, b.Spec.Profile))
	})
	for _, req := range starts {
		req.Owner = exampleOwner
		pod, err := Build(o, req, Record{ID: req.ID, Generation: 1, Owner: req.Owner, SpecName: req.Spec.Name,
			Protocol: api.ProtocolVersion})
		if err != nil {
			left = append(left, fmt.Sprintf("%s: %v", specAndProfile(req.Spec), err))
			continue
		}
		if kernelOf(pod).ImagePullPolicy == corev1.PullNever {
			continue
		}
		p := placementOf(pod)
		name := p.name()
		if places[name] == nil {
			if len(places) == MaxPulledPlacements {
				left = append(left, fmt.Sprintf("%s: its nodes are chosen in another way than those of %d others, "+
					"which is the limit", specAndProfile(req.Spec), MaxPulledPlacements))
				continue
			}
			places[name] = p
		}
		if !places[name].add(pod) {
			left = append(left, fmt.Sprintf("%s: %d other images are pulled on the same nodes, which is the limit",
				specAndProfile(req.Spec), MaxPulledImages))
		}
	}
	for name, p := range places {
		sets = append(sets, p.daemonSet(o, name))
	}
	slices.SortFunc(sets, func(a, b *appsv1.DaemonSet) int { return strings.Compare(a.Name, b.Name) })
	return sets, left
}

// specAndProfile names a kernelspec, and its profile if it has one.
func specAndProfile(spec kernelspecs.Spec) string {
	text := "kernelspec " + spec.Name
	if spec.Profile != "" {
		text += " with profile " + spec.Profile
	}
	return text
}

// placementOf returns the placement of a kernel's pod, still without images.
func placementOf(pod *corev1.Pod) *placement {
	p := &placement{NodeSelector: pod.Spec.NodeSelector, Tolerations: pod.Spec.Tolerations,
		RuntimeClassName: pod.Spec.RuntimeClassName, ServiceAccount: pod.Spec.ServiceAccountName}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		p.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return p
}

// name returns the name of the placement's DaemonSet.
func (p *placement) name() string { return namePrePull + "-" + digest(p) }

// digest returns digits that depend on all exported fields of v.
func digest(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("podspec: a part of a pod cannot be encoded: " + err.Error()) // it was decoded from JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:digestDigits]
}

// add adds the image of a kernel's pod and its secrets. It returns false if there are too many images.
func (p *placement) add(pod *corev1.Pod) bool {
	k := kernelOf(pod)
	at := slices.IndexFunc(p.images, func(i pulledImage) bool { return i.name == k.Image })
	switch {
	case at < 0 && len(p.images) == MaxPulledImages:
		return false
	case at < 0:
		p.images = append(p.images, pulledImage{k.Image, k.ImagePullPolicy})
	case k.ImagePullPolicy == corev1.PullAlways:
		p.images[at].policy = corev1.PullAlways
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		if !slices.Contains(p.secrets, s) {
			p.secrets = append(p.secrets, s)
		}
	}
	return true
}

// daemonSet returns the DaemonSet that pulls the placement's images. Its pods satisfy the security standard
// "restricted": no program of an image runs in them, only ekg's own, as a user of ekg's choice or of the cluster's. An
// image that cannot be pulled keeps no other waiting: kubelets start the other containers of the pod.
func (p *placement) daemonSet(o Options, name string) *appsv1.DaemonSet {
	slices.SortFunc(p.images, func(a, b pulledImage) int { return strings.Compare(a.name, b.name) })
	slices.SortFunc(p.secrets, func(a, b corev1.LocalObjectReference) int { return strings.Compare(a.Name, b.Name) })
	selected := map[string]string{labelName: namePrePull, LabelComponent: ComponentPrePull, labelPrePull: name}
	install := p.container(o, containerInstall, o.SupervisorImage, corev1.PullPolicy(o.SupervisorPullPolicy),
		supervisorProgram, "install", childProgram)
	install.VolumeMounts[0].ReadOnly = false
	var pulls []corev1.Container
	for i, image := range p.images {
		pulls = append(pulls, p.container(o, prefixPull+strconv.Itoa(i), image.name, image.policy, childProgram, "wait"))
	}
	shared := emptyDir(volumeShared, resource.NewQuantity(sharedLimit, resource.BinarySI), "")
	pod := corev1.PodSpec{
		InitContainers:                []corev1.Container{install},
		Containers:                    pulls,
		Volumes:                       []corev1.Volume{shared},
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		TerminationGracePeriodSeconds: new(int64(prePullGrace)),
		NodeSelector:                  p.NodeSelector,
		Tolerations:                   p.Tolerations,
		RuntimeClassName:              p.RuntimeClassName,
		ServiceAccountName:            p.ServiceAccount,
		ImagePullSecrets:              p.secrets,
	}
	if p.NodeAffinity != nil {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: p.NodeAffinity}}
	}
	set := &appsv1.DaemonSet{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: map[string]string{labelName: namePrePull,
			LabelComponent: ComponentPrePull, LabelManagedBy: Manager}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selected},
			// Its pods serve nobody, so all of them may be replaced at once.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("100%"))}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{labelName: namePrePull, LabelComponent: ComponentPrePull, labelPrePull: name,
						annotationIstio: "false"},
					Annotations: map[string]string{annotationIstio: "false", annotationLinkerd: "disabled",
						AnnotationSafeToEvict: "true"},
				},
				Spec: pod,
			},
		},
	}
	set.Annotations = map[string]string{AnnotationContent: digest(set)}
	return set
}

// container returns a container of such a pod.
func (p *placement) container(o Options, name, image string, policy corev1.PullPolicy, command ...string,
) corev1.Container {
	b := builder{o: o}
	return corev1.Container{
		Name: name, Image: image, ImagePullPolicy: policy, Command: command,
		WorkingDir:               "/", // every image has it
		Env:                      []corev1.EnvVar{{Name: visibleDevices, Value: visibleNone}},
		VolumeMounts:             []corev1.VolumeMount{{Name: volumeShared, MountPath: api.PodSharedDir, ReadOnly: true}},
		SecurityContext:          b.supervisorSecurity(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(prePullCPU),
				corev1.ResourceMemory: resource.MustParse(prePullMemory)},
			Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(prePullMemoryMost)},
		},
	}
}

// PulledImages returns the images that such a DaemonSet pulls, without ekg's own.
func PulledImages(set *appsv1.DaemonSet) (images []string) {
	for _, c := range set.Spec.Template.Spec.Containers {
		images = append(images, c.Image)
	}
	return images
}
