package wish

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// ExtraContainer is the part of a Kubernetes container that a kernelspec can set of a container beside the kernel's.
// Ports, devices and readiness are missing: other pods reach no port of it, and the pod's readiness is the kernel's.
type ExtraContainer struct {
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
func (x *ExtraContainer) goesOn() bool { return x.RestartPolicy != nil }

// asOverlay returns what an extra container has in common with the kernel's.
func (x *ExtraContainer) asOverlay() OverlayContainer {
	return OverlayContainer{Name: x.Name, Env: x.Env, EnvFrom: x.EnvFrom, Image: x.Image,
		ImagePullPolicy: x.ImagePullPolicy, Resources: &x.Resources, SecurityContext: x.SecurityContext,
		VolumeMounts: x.VolumeMounts, WorkingDir: x.WorkingDir}
}

// ExtraLists calls do with each list of extra containers and its key.
func (e *Extension) ExtraLists(do func(key string, list []ExtraContainer)) {
	do("initContainers", e.InitContainers)
	do("containers", e.Containers)
}

// extras checks the containers beside the kernel's, and its lifecycle hooks.
func (c *checker) extras(e *Extension) {
	if e.Lifecycle != nil {
		c.keyAllowed(ShortPath("lifecycle"), "lifecycle")
		c.lifecycle(ShortPath("lifecycle"), e.Lifecycle)
	}
	names := []string{podspec.ContainerKernel, podspec.ContainerSupervisor}
	e.ExtraLists(func(key string, list []ExtraContainer) {
		if list != nil {
			c.keyAllowed(ShortPath(key), key)
		}
		if len(list) > maxExtraContainers {
			c.refuse(ShortPath(key), "has %d containers; at most %d are allowed", len(list), maxExtraContainers)
		}
		for i := range list {
			x, where := &list[i], fmt.Sprintf("%s[%d]", ShortPath(key), i)
			switch {
			case len(validation.IsDNS1123Label(x.Name)) > 0:
				c.refuse(where+".name", "%s is not a valid Kubernetes name", Quoted(x.Name))
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
func (c *checker) extra(where string, x *ExtraContainer, always bool) {
	switch {
	case x.RestartPolicy != nil && always:
		c.refuse(where+".restartPolicy", "cannot be set: these containers run for as long as the pod")
	case x.RestartPolicy != nil && *x.RestartPolicy != corev1.ContainerRestartPolicyAlways:
		c.refuse(where+".restartPolicy", "is %s; the only value is Always", Quoted(string(*x.RestartPolicy)))
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
			if gpu, _ := podspec.IsGPU(name); gpu {
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
func (c *checker) totals(e *Extension) {
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
		for _, list := range []corev1.ResourceList{of(&e.Resources), of(e.Pod.Kernel().Resources)} {
			for name, q := range list { // the second one overrides
				kernel[name] = q
			}
		}
		e.ExtraLists(func(key string, list []ExtraContainer) {
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
		check(ShortPath("resources"), kernel)
		for i := range e.InitContainers {
			if x := &e.InitContainers[i]; !x.goesOn() {
				check(fmt.Sprintf("%s[%d].resources", ShortPath("initContainers"), i), of(&x.Resources))
			}
		}
	}
}
