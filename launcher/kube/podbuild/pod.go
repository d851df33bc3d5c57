package podbuild

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// The programs of a pod.
const (
	supervisorProgram = "/usr/bin/ekg-supervisor" // in ekg's image
	childProgram      = api.PodSharedDir + "/bin/ekg-supervisor"
	gpuProgram        = api.PodSharedDir + "/bin/ekg-gpu"

	memoryVariable = "MEMORY_LIMIT_MIB" // of the supervisor's container: its limit of memory, in MiB
)

// Defaults and bounds of a kernel's pod.
const (
	homeLimit      = 10 << 30        // bytes of the volume for home folders that cannot be written; kubelets evict above
	sharedLimit    = 64 << 20        // bytes of the volume with the supervisor's program
	volumeLogLimit = 1 << 30         // bytes of a log whose operator sets no limit; it reserves nothing on the node
	nodeKeepFree   = 20              // percent of the node's disk; kubelets evict pods and delete images at 10 or 15
	spillAllowance = 64 << 20        // bytes of the spill volume besides twice the log, until old parts are deleted
	defaultShmSize = "1Gi"           // of pods with a GPU: data loaders, which share batches there, soon fill 64 MiB
	graceAllowance = 10              // seconds of a pod's grace, besides twice the stop grace: clients are notified
	deadLinger     = 2 * time.Second // of the supervisor: the pod itself shows a dead kernel
	parkIdle       = time.Minute     // until a kernel that takes turns at a GPU gives it to one that waits
	maxConfig      = 96 << 10        // bytes of the supervisor's configuration: Linux accepts 128 KiB in one variable
	maxEnvironment = 1 << 20         // bytes of all of the kernel's variables: etcd accepts 1.5 MiB for the whole pod
)

// builder builds one pod.
type builder struct {
	o   Options
	req launcher.Request
	ext wish.Extension
}

// base returns the pod before the kernelspec and the client change it.
func (b *builder) base() *corev1.Pod {
	logLimit, _ := b.o.logLimit()
	pod := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.o.namespaceOf(b.req.Owner),
			Labels: map[string]string{podspec.LabelName: "ekg-kernel", podspec.LabelComponent: "kernel",
				podspec.AnnotationIstio: "false"},
			Annotations: map[string]string{
				podspec.AnnotationSafeToEvict: "false", podspec.AnnotationDoNotDisrupt: "true",
				podspec.AnnotationDefaultContainer: podspec.ContainerKernel,
				podspec.AnnotationIstio:            "false", podspec.AnnotationLinkerd: "disabled",
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyOnFailure,
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			TerminationGracePeriodSeconds: new(graceSeconds(b.o.StopGrace)),
			Containers:                    []corev1.Container{b.supervisorContainer(), b.kernelContainer()},
			Volumes: []corev1.Volume{
				emptyDir(podspec.VolumeShared, resource.NewQuantity(sharedLimit, resource.BinarySI), ""),
				{
					Name:         podspec.VolumeSecret,
					VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{DefaultMode: new(int32(0o444))}},
				},
				emptyDir(podspec.VolumeSpill, resource.NewQuantity(2*logLimit+spillAllowance, resource.BinarySI), ""),
				emptyDir(podspec.VolumeHome, resource.NewQuantity(homeLimit, resource.BinarySI), ""),
			},
		},
	}
	for _, name := range b.o.Supervisor.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

// kernelContainer returns the container that runs the kernel, from the user's image.
func (b *builder) kernelContainer() corev1.Container {
	c := corev1.Container{
		Name:  podspec.ContainerKernel,
		Image: b.o.KernelImage,
		VolumeMounts: []corev1.VolumeMount{
			{Name: podspec.VolumeShared, MountPath: api.PodSharedDir, ReadOnly: true},
			{Name: podspec.VolumeHome, MountPath: api.PodHomeDir},
		},
		TerminationMessagePath:   api.PodTerminationLog,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if b.o.Policy.NonRoot {
		c.SecurityContext.RunAsNonRoot = new(true)
	}
	if b.ext.Entrypoint == wish.EntrypointKeep {
		c.Args = []string{childProgram, "child"}
	} else {
		c.Command = []string{childProgram, "child"}
	}
	expanded := b.req.Spec.ExpandEnv(b.req.Env)
	for _, name := range slices.Sorted(maps.Keys(expanded)) {
		if !launcher.ReservedVariable(name) {
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: expanded[name]})
		}
	}
	return c
}

// complete sets what depends on both the kernelspec and the client, and rejects a pod that cannot run.
func (b *builder) complete(pod *corev1.Pod) error {
	k := podspec.KernelOf(pod)
	if k.Image == "" {
		return failed("kernelspec %s has no image: metadata.ekg.image is missing", b.req.Spec.Name)
	}
	if len(b.req.Spec.Argv) == 0 && b.ext.ImageKernelspec == "" {
		return failed("kernelspec %s has no command: it has neither argv nor metadata.ekg.imageKernelspec", b.req.Spec.Name)
	}
	limitWholeDevices(k)
	if len(k.Resources.Claims) == 0 {
		for _, claim := range pod.Spec.ResourceClaims {
			k.Resources.Claims = append(k.Resources.Claims, corev1.ResourceClaim{Name: claim.Name})
		}
	}
	if err := b.mountHome(pod); err != nil {
		return err
	}
	b.mountShared(pod)
	b.addLauncherEnv(pod)
	b.labelForCosts(pod)
	b.labelAsEG(pod)
	b.placeOnPlatform(pod)
	if b.req.Job && pod.Spec.PriorityClassName == "" {
		pod.Spec.PriorityClassName = b.o.Policy.JobPriorityClass
	}
	gpus := podspec.GPURequestOf(pod)
	b.sharedMemory(pod, gpus)
	dropPrivileges(k.SecurityContext)
	if !gpus.NVIDIA() &&
		!slices.ContainsFunc(k.Env, func(e corev1.EnvVar) bool { return e.Name == podspec.VisibleDevices }) {
		k.Env = append(k.Env, corev1.EnvVar{Name: podspec.VisibleDevices, Value: podspec.VisibleNone})
	}
	slices.SortFunc(k.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	total := 0
	for i, e := range k.Env {
		switch {
		case !wish.VariableName.MatchString(e.Name):
			return wish.Refused("%s is not a valid name for a variable of a pod", wish.Quoted(e.Name))
		case strings.ContainsRune(e.Value, 0) || !utf8.ValidString(e.Value):
			return wish.Refused("the kernel's variable %s is not UTF-8 text without NUL", e.Name)
		}
		total += len(e.Name) + len(e.Value)
		k.Env[i].Value = escapeDollars(e.Value)
	}
	if total > maxEnvironment {
		return wish.Refused("the kernel's variables have %d bytes; a pod can have at most %d", total, maxEnvironment)
	}
	return nil
}

// sharedMemory mounts a /dev/shm of the kernelspec's size, or of defaultShmSize in a pod with a GPU. Files in it count
// as memory of the kernel's container.
func (b *builder) sharedMemory(pod *corev1.Pod, gpus podspec.GPURequest) {
	size := b.ext.ShmSize
	if size == nil && gpus.Any() {
		size = new(resource.MustParse(defaultShmSize))
	}
	if size == nil || size.IsZero() {
		return
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, emptyDir(podspec.VolumeShm, size, corev1.StorageMediumMemory))
	k := podspec.KernelOf(pod)
	k.VolumeMounts = append(k.VolumeMounts, corev1.VolumeMount{Name: podspec.VolumeShm, MountPath: podspec.ShmDir})
}

// checkInvariants returns an error if a kernelspec or a client has changed what the pod's security depends on. The
// checks of kernelspecs and requests should have rejected it before; this is the second line of defence.
func (b *builder) checkInvariants(pod, base *corev1.Pod) error {
	now, was := pod.Spec, base.Spec
	names := func(all []corev1.Container) (list []string) {
		for _, c := range all {
			list = append(list, c.Name)
		}
		return list
	}
	supervisorNow, supervisorWas := now.Containers[0].DeepCopy(), was.Containers[0].DeepCopy()
	supervisorNow.Env, supervisorWas.Env = nil, nil
	for what, same := range map[string]bool{
		"containers": slices.Equal(names(now.Containers), names(was.Containers)) &&
			slices.Equal(names(now.InitContainers), b.extraNames()) && len(now.EphemeralContainers) == 0,
		"token":      b.hasOnlyItsToken(pod),
		"supervisor": reflect.DeepEqual(supervisorNow, supervisorWas),
		"restartPolicy, token, service links": now.RestartPolicy == was.RestartPolicy && !*now.AutomountServiceAccountToken &&
			!*now.EnableServiceLinks,
		"host namespaces": !now.HostNetwork && !now.HostPID && !now.HostIPC && now.ShareProcessNamespace == nil,
		"name":            pod.Name == base.Name,
	} {
		if !same {
			return fmt.Errorf("pod %s: its %s may not be changed", base.Name, what)
		}
	}
	for key, value := range base.Labels {
		if pod.Labels[key] != value {
			return fmt.Errorf("pod %s: its label %s may not be changed", base.Name, key)
		}
	}
	return nil
}

// graceSeconds returns a pod's termination grace period in seconds.
func graceSeconds(stopGrace time.Duration) int64 {
	return int64(math.Ceil(2*stopGrace.Seconds())) + graceAllowance
}

func emptyDir(name string, size *resource.Quantity, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{
		Name:         name,
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: size, Medium: medium}},
	}
}
