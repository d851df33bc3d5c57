package podbuild

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
)

// addExtras adds the kernelspec's hooks and containers. Containers that keep running become sidecars, which Kubernetes
// writes as init containers. It starts them before the kernel, and again when they end. It ends them when the
// containers of kernel and supervisor have ended. So they never keep a pod alive.
func (b *builder) addExtras(pod *corev1.Pod) {
	podspec.KernelOf(pod).Lifecycle = b.ext.Lifecycle
	b.ext.ExtraLists(func(key string, list []wish.ExtraContainer) {
		for i := range list {
			c := b.extraContainer(&list[i])
			if key == "containers" {
				c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
	})
}

// extraContainer returns a container beside the kernel's, with the rules of the policy for security.
func (b *builder) extraContainer(x *wish.ExtraContainer) corev1.Container {
	c := corev1.Container{
		Name:                     x.Name,
		Image:                    x.Image,
		ImagePullPolicy:          x.ImagePullPolicy,
		Command:                  x.Command,
		Args:                     x.Args,
		Env:                      slices.Clone(x.Env),
		EnvFrom:                  x.EnvFrom,
		LivenessProbe:            x.LivenessProbe,
		Resources:                *x.Resources.DeepCopy(),
		RestartPolicy:            x.RestartPolicy,
		SecurityContext:          x.SecurityContext.DeepCopy(),
		StartupProbe:             x.StartupProbe,
		VolumeMounts:             x.VolumeMounts,
		WorkingDir:               x.WorkingDir,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	s := c.SecurityContext
	if s.SeccompProfile == nil {
		s.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	if b.o.Policy.NonRoot {
		s.RunAsNonRoot = new(true)
	}
	dropPrivileges(s)
	limitWholeDevices(&c)
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == podspec.VisibleDevices }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: podspec.VisibleDevices, Value: podspec.VisibleNone})
	}
	return c
}

// dropPrivileges sets what no kernelspec can change of a container's security context.
func dropPrivileges(s *corev1.SecurityContext) {
	s.AllowPrivilegeEscalation = new(false)
	if s.Capabilities == nil {
		s.Capabilities = &corev1.Capabilities{}
	}
	if drop := &s.Capabilities.Drop; !slices.Contains(*drop, "ALL") {
		*drop = append(*drop, "ALL")
	}
}

// limitWholeDevices sets the limits of whole devices that are only requested. Kubernetes requires a limit for them, and
// uses it as the request too.
func limitWholeDevices(c *corev1.Container) {
	for name, q := range c.Resources.Requests {
		if _, ok := c.Resources.Limits[name]; !ok && wish.IsWholeOnly(string(name)) {
			podspec.SetAmount(&c.Resources.Limits, name, q)
		}
	}
}

// besideKernel returns how much of a resource is for the containers that run beside the kernel's: the sum of their
// requests or limits, whichever is more. The supervisor's container does not count.
func besideKernel(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	var sum resource.Quantity
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy == nil {
			continue
		}
		q := c.Resources.Limits[name]
		if request := c.Resources.Requests[name]; request.Cmp(q) > 0 {
			q = request
		}
		sum.Add(q)
	}
	return sum
}

// extraNames returns the names of the containers that the kernelspec adds, in the order of their start.
func (b *builder) extraNames() []string {
	var names []string
	b.ext.ExtraLists(func(_ string, list []wish.ExtraContainer) {
		for i := range list {
			names = append(names, list[i].Name)
		}
	})
	return names
}
