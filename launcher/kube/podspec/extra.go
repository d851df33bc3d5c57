package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// extraContainer is the part of a Kubernetes container that a kernelspec can set of a container beside the kernel's.
// Ports, devices and readiness are missing: other pods reach no port of it, and the pod's readiness is the kernel's.
type extraContainer struct {
	Name            string                         `json:"name"`
	Image           string                         `json:"image"`
	ImagePullPolicy corev1.PullPolicy              `json:"imagePullPolicy,omitempty"`
	Command         []string                       `json:"command,omitempty"`
	Args            []string                       `json:"args,omitempty"`
	Env             []corev1.EnvVar                `json:"env,omitempty"`
	EnvFrom         []corev1.EnvFromSource         `json:"envFrom,omitempty"`
	LivenessProbe   *corev1.Probe                  `json:"livenessProbe,omitempty"`
	Resources       corev1.ResourceRequirements    `json:"resources,omitempty"`
	RestartPolicy   *corev1.ContainerRestartPolicy `json:"restartPolicy,omitempty"` // Always, only in initContainers
	SecurityContext *corev1.SecurityContext        `json:"securityContext,omitempty"`
	StartupProbe    *corev1.Probe                  `json:"startupProbe,omitempty"`
	VolumeMounts    []corev1.VolumeMount           `json:"volumeMounts,omitempty"`
	WorkingDir      string                         `json:"workingDir,omitempty"`
}

// maxExtraContainers bounds each list of extra containers.
const maxExtraContainers = 16

// goesOn reports whether an init container runs for as long as the pod.
func (x *extraContainer) goesOn() bool { return x.RestartPolicy != nil }

// asOverlay returns what an extra container has in common with the kernel's.
func (x *extraContainer) asOverlay() overlayContainer {
	return overlayContainer{Name: x.Name, Env: x.Env, EnvFrom: x.EnvFrom, Image: x.Image,
		ImagePullPolicy: x.ImagePullPolicy, Resources: &x.Resources, SecurityContext: x.SecurityContext,
		VolumeMounts: x.VolumeMounts, WorkingDir: x.WorkingDir}
}

// extraLists calls do with each list of extra containers and its key.
func (e *extension) extraLists(do func(key string, list []extraContainer)) {
	do("initContainers", e.InitContainers)
	do("containers", e.Containers)
}

// extras checks the containers beside the kernel's, and its lifecycle hooks.
func (c *checker) extras(e *extension) {
	if e.Lifecycle != nil {
		c.keyAllowed(shortPath("lifecycle"), "lifecycle")
		c.lifecycle(shortPath("lifecycle"), e.Lifecycle)
	}
	names := []string{ContainerKernel, ContainerSupervisor}
	e.extraLists(func(key string, list []extraContainer) {
		if list != nil {
			c.keyAllowed(shortPath(key), key)
		}
		if len(list) > maxExtraContainers {
			c.refuse(shortPath(key), "has %d containers; at most %d are allowed", len(list), maxExtraContainers)
		}
		for i := range list {
			x, where := &list[i], fmt.Sprintf("%s[%d]", shortPath(key), i)
			switch {
			case len(validation.IsDNS1123Label(x.Name)) > 0:
				c.refuse(where+".name", "%s is not a valid Kubernetes name", quoted(x.Name))
			case slices.Contains(names[:2], x.Name):
				c.refuse(where+".name", "%q is one of ekg's own containers; choose another name", x.Name)
			case slices.Contains(names, x.Name):
				c.refuse(where+".name", "%q is given twice", x.Name)
			}
			names = append(names, x.Name)
			c.extra(where, x, key == "containers")
		}
	})
	c.totals(e)
}

// extra checks one container beside the kernel's. The others than init containers always go on running.
func (c *checker) extra(where string, x *extraContainer, always bool) {
	switch {
	case x.RestartPolicy != nil && always:
		c.refuse(where+".restartPolicy", "cannot be set: these containers run for as long as the pod")
	case x.RestartPolicy != nil && *x.RestartPolicy != corev1.ContainerRestartPolicyAlways:
		c.refuse(where+".restartPolicy", "is %s; the only value is Always", quoted(string(*x.RestartPolicy)))
	}
	if x.Image == "" {
		c.refuse(where+".image", "is missing")
	}
	for key, p := range map[string]*corev1.Probe{"livenessProbe": x.LivenessProbe, "startupProbe": x.StartupProbe} {
		if p == nil {
			continue
		}
		if !always && !x.goesOn() {
			c.refuse(where+"."+key, "cannot be set for a container that ends before the kernel starts")
		}
		if p.TCPSocket != nil {
			c.host(where+"."+key+".tcpSocket.host", p.TCPSocket.Host)
		}
		if p.HTTPGet != nil {
			c.host(where+"."+key+".httpGet.host", p.HTTPGet.Host)
		}
	}
	r := &x.Resources
	for part, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name := range list {
			if gpu, _ := IsGPU(name); gpu {
				c.refuse(fmt.Sprintf("%s.resources.%s.%s", where, part, name), "only the kernel's container can have GPUs")
			}
		}
	}
	if len(x.Resources.Claims) > 0 {
		c.refuse(where+".resources.claims", "only the kernel's container can have resource claims")
	}
	over := x.asOverlay()
	c.container(&over, func(key string) string { return where + "." + key })
}

// host refuses a host to which the node would connect on behalf of a pod.
func (c *checker) host(where, host string) {
	if host != "" {
		c.refuse(where, "cannot be set: the node would connect to it; without it, the pod's own address is used")
	}
}

// lifecycle checks the hooks of the kernel's container.
func (c *checker) lifecycle(where string, l *corev1.Lifecycle) {
	if l.StopSignal != nil {
		c.refuse(where+".stopSignal", "cannot be set: ekg ends the kernel")
	}
	for key, h := range map[string]*corev1.LifecycleHandler{"postStart": l.PostStart, "preStop": l.PreStop} {
		if h == nil {
			continue
		}
		given := 0
		for _, is := range []bool{h.Exec != nil, h.HTTPGet != nil, h.Sleep != nil} {
			if is {
				given++
			}
		}
		switch {
		case h.TCPSocket != nil:
			c.refuse(where+"."+key+".tcpSocket", "cannot be set: Kubernetes does nothing with it")
		case given != 1:
			c.refuse(where+"."+key, "must have exactly one of exec, httpGet and sleep")
		case h.Exec != nil && len(h.Exec.Command) == 0:
			c.refuse(where+"."+key+".exec.command", "is missing")
		case h.HTTPGet != nil:
			c.host(where+"."+key+".httpGet.host", h.HTTPGet.Host)
		}
	}
}

// totals checks that the kernel's container and those beside it together keep within the maxima. An init container that
// ends before the kernel starts counts by itself, beside those that go on running.
func (c *checker) totals(e *extension) {
	type amounts = map[corev1.ResourceName]resource.Quantity
	for _, part := range []string{"requests", "limits"} {
		of := func(r *corev1.ResourceRequirements) corev1.ResourceList {
			switch {
			case r == nil:
				return nil
			case part == "requests":
				return r.Requests
			}
			return r.Limits
		}
		beside, kernel := amounts{}, amounts{}
		add := func(sum amounts, list corev1.ResourceList) {
			for name, q := range list {
				total := sum[name].DeepCopy()
				total.Add(q)
				sum[name] = total
			}
		}
		for _, list := range []corev1.ResourceList{of(&e.Resources), of(e.Pod.kernel().Resources)} {
			for name, q := range list { // the second one overrides
				kernel[name] = q
			}
		}
		e.extraLists(func(key string, list []extraContainer) {
			for i := range list {
				if key == "containers" || list[i].goesOn() {
					add(beside, of(&list[i].Resources))
				}
			}
		})
		check := func(where string, own corev1.ResourceList) {
			for name, q := range own {
				most, bounded := c.bounds.Maxima.limit(string(name))
				total := q.DeepCopy()
				total.Add(beside[name])
				if other := beside[name]; bounded && !other.IsZero() && q.Cmp(most) <= 0 && total.Cmp(most) > 0 {
					c.refuse(where+"."+part+"."+string(name), "%s, and %s of the containers beside it, are more than the allowed %s",
						q.String(), other.String(), most.String())
				}
			}
		}
		for name := range beside {
			if _, ok := kernel[name]; !ok {
				kernel[name] = resource.Quantity{}
			}
		}
		check(shortPath("resources"), kernel)
		for i := range e.InitContainers {
			if x := &e.InitContainers[i]; !x.goesOn() {
				check(fmt.Sprintf("%s[%d].resources", shortPath("initContainers"), i), of(&x.Resources))
			}
		}
	}
}

// addExtras adds the kernelspec's hooks and containers. Containers that keep running become sidecars, which Kubernetes
// writes as init containers. It starts them before the kernel, and again when they end. It ends them when the
// containers of kernel and supervisor have ended. So they never keep a pod alive.
func (b *builder) addExtras(pod *corev1.Pod) {
	kernelOf(pod).Lifecycle = b.ext.Lifecycle
	b.ext.extraLists(func(key string, list []extraContainer) {
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
func (b *builder) extraContainer(x *extraContainer) corev1.Container {
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
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == visibleDevices }) {
		c.Env = append(c.Env, corev1.EnvVar{Name: visibleDevices, Value: visibleNone})
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
		if _, ok := c.Resources.Limits[name]; !ok && isWholeOnly(string(name)) {
			setLimit(c, name, q)
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
	b.ext.extraLists(func(_ string, list []extraContainer) {
		for i := range list {
			names = append(names, list[i].Name)
		}
	})
	return names
}
