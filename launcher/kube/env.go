package kube

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher"
)

// Bounds of what clients say.
const (
	maxClientVolumes = 32 // volumes, and mounts
)

// client lets the client's variables have their effect on the pod, as far as the policy allows it, and puts all of them into
// the kernel's environment. An empty variable has no effect, as with Enterprise Gateway. The error is a
// *launcher.RefusedError that names the variable.
func (b *builder) client(pod *corev1.Pod) error {
	c := &clientChecker{
		checker: checker{bounds: &b.o.Policy.Clients.Bounds, nonRoot: b.o.Policy.NonRoot},
		allow:   b.o.Policy.Clients.Allow, env: b.req.Env, pod: pod, kernel: kernelOf(pod),
	}
	for name := range c.env {
		if name == visibleDevices {
			c.refuse(name, "is not for clients to set: it would give the kernel GPUs that are not its own")
		}
	}
	c.object("KERNEL_IMAGE", c.kernel.Image, func(name, value string) {
		c.image(name, value)
		c.kernel.Image = value
	})
	c.object("KERNEL_NAMESPACE", pod.Namespace, func(name, value string) {
		c.listed(name, value, Patterns(b.o.Policy.Clients.Namespaces)) // none has a *
		pod.Namespace = value
	})
	c.object("KERNEL_SERVICE_ACCOUNT_NAME", cmp.Or(pod.Spec.ServiceAccountName, "default"), func(name, value string) {
		c.listed(name, value, c.bounds.ServiceAccounts)
		pod.Spec.ServiceAccountName = value
	})
	c.with("KERNEL_POD_NAME", func(_, value string) {
		if len(validation.IsDNS1123Subdomain(value)) == 0 { // others, as Enterprise Gateway's templates, name nothing
			pod.Annotations[annotationWantedName] = value
		}
	})
	c.with("KERNEL_USERNAME", func(string, string) {})
	c.with("KERNEL_WORKING_DIR", func(name, value string) {
		if path.IsAbs(value) && len(value) > 4096 {
			c.refuse(name, "is longer than a path can be")
		}
	})
	c.launchTimeout()
	c.ids()
	c.size("KERNEL_CPUS", corev1.ResourceCPU)
	c.size("KERNEL_MEMORY", corev1.ResourceMemory)
	c.size("KERNEL_GPUS", c.gpuName())
	c.clientVolumes()
	if len(c.found) > 0 {
		return refused("%s: %s", c.found[0].path, c.found[0].text)
	}
	for _, name := range slices.Sorted(maps.Keys(b.req.Env)) {
		if reservedVariable(name) {
			continue
		}
		c.kernel.Env = slices.DeleteFunc(c.kernel.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		c.kernel.Env = append(c.kernel.Env, corev1.EnvVar{Name: name, Value: b.req.Env[name]})
	}
	return nil
}

// clientChecker collects what is refused of a client's variables.
type clientChecker struct {
	checker
	allow  []string
	env    map[string]string
	pod    *corev1.Pod
	kernel *corev1.Container
}

// with calls do with a variable that has a value and may have an effect.
func (c *clientChecker) with(name string, do func(name, value string)) {
	value := c.env[name]
	if value == "" {
		return
	}
	if !slices.Contains(c.allow, name) {
		c.refuse(name, "clients may not set this here (%s); of what changes a kernel's pod they may set: %s", shown(value), orNothing(c.allow))
		return
	}
	do(name, value)
}

// object is with, for the name of something that is as it is anyway if the variable says the same.
func (c *clientChecker) object(name, present string, do func(name, value string)) {
	if c.env[name] == present {
		return
	}
	c.with(name, func(name, value string) {
		if name != "KERNEL_IMAGE" && !c.name(name, value) {
			return
		}
		do(name, value)
	})
}

// launchTimeout notes how long the client lets the start take, where that is more than it has anyway: seconds, with a fraction
// if it likes. Less is only how long its request waits, which the gateway sees to.
func (c *clientChecker) launchTimeout() {
	c.with("KERNEL_LAUNCH_TIMEOUT", func(name, value string) {
		limit, ok := launcher.LaunchTimeout(value)
		if !ok {
			c.refuse(name, "%s is not a number of seconds up to %.0f", shown(value), launcher.MaxLaunchTimeout.Seconds())
			return
		}
		c.pod.Annotations[annotationLaunchTimeout] = strconv.Itoa(int(math.Ceil(limit.Seconds())))
	})
}

// ids sets the user and group that the kernel runs as.
func (c *clientChecker) ids() {
	number := func(value string) (int64, bool) {
		// Only digits: signs, spaces, 0x and leading zeros mean different numbers to different readers.
		id, err := strconv.ParseUint(value, 10, 31)
		return int64(id), err == nil && strconv.FormatUint(id, 10) == value
	}
	c.with("KERNEL_UID", func(name, value string) {
		id, ok := number(value)
		if !ok {
			c.refuse(name, "%s is not a user's number", shown(value))
			return
		}
		c.checker.user(name, id)
		c.kernel.SecurityContext.RunAsUser = &id
	})
	c.with("KERNEL_GID", func(name, value string) {
		id, ok := number(value)
		if !ok {
			c.refuse(name, "%s is not a group's number", shown(value))
			return
		}
		c.id(name, id, c.bounds.GroupIDs)
		c.kernel.SecurityContext.RunAsGroup = &id
	})
}

// gpuName is the resource that KERNEL_GPUS counts: the one kind of GPU that the kernelspec asks for, else NVIDIA's.
func (c *clientChecker) gpuName() corev1.ResourceName {
	names := map[corev1.ResourceName]bool{}
	for _, list := range []corev1.ResourceList{c.kernel.Resources.Limits, c.kernel.Resources.Requests} {
		for name := range list {
			if _, device, _ := strings.Cut(string(name), "/"); device == "gpu" || strings.HasPrefix(device, "mig-") || device == "gpu.shared" {
				names[name] = true
			}
		}
	}
	if len(names) == 1 {
		for name := range names {
			return name
		}
	}
	return gpuCount
}

// size sets the request of a resource by the variable, and its limit by the variable with _LIMIT. If only one of them is
// given, it moves what the kernelspec says of the other out of its way; of GPUs both are always the same.
func (c *clientChecker) size(variable string, name corev1.ResourceName) {
	r := &c.kernel.Resources
	anyway := r.Limits[name]
	if request, ok := r.Requests[name]; ok && request.Cmp(anyway) > 0 {
		anyway = request
	}
	var values [2]*resource.Quantity
	for i, v := range []string{variable, variable + "_LIMIT"} {
		c.with(v, func(v, value string) {
			q, err := parseQuantity(value)
			if err != nil {
				c.refuse(v, "%s is not an amount like %s", shown(value), amountLike(name))
				return
			}
			c.quantity(v, string(name), q, &anyway)
			values[i] = &q
		})
	}
	request, limit := values[0], values[1]
	if request == nil && limit == nil || len(c.found) > 0 {
		return
	}
	if request != nil && limit != nil && (request.Cmp(*limit) > 0 || wholeOnly(string(name)) && request.Cmp(*limit) != 0) {
		c.refuse(variable, "%s does not go with %s, %s", request.String(), variable+"_LIMIT", limit.String())
		return
	}
	if wholeOnly(string(name)) {
		if request == nil {
			request = limit
		}
		delete(r.Requests, name)
		delete(r.Limits, name)
		if !request.IsZero() {
			setLimit(c.kernel, name, *request)
			setRequest(c.kernel, name, *request)
		}
		return
	}
	if request != nil {
		setRequest(c.kernel, name, *request)
		if old, ok := r.Limits[name]; ok && old.Cmp(*request) < 0 {
			setLimit(c.kernel, name, *request)
		}
	}
	if limit != nil {
		setLimit(c.kernel, name, *limit)
		if old, ok := r.Requests[name]; ok && old.Cmp(*limit) > 0 {
			setRequest(c.kernel, name, *limit)
		}
	}
}

// amountLike is an example of a resource's amount.
func amountLike(name corev1.ResourceName) string {
	switch name {
	case corev1.ResourceCPU:
		return "2, 0.5 or 500m"
	case corev1.ResourceMemory:
		return "2Gi or 500M"
	}
	return "1"
}

// clientVolumes adds the volumes and mounts that the client asks for, each a list in YAML or JSON. It can mount only its own.
func (c *clientChecker) clientVolumes() {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	c.with("KERNEL_VOLUMES", func(name, value string) { c.list(name, value, &volumes) })
	c.with("KERNEL_VOLUME_MOUNTS", func(name, value string) { c.list(name, value, &mounts) })
	if len(c.found) > 0 {
		return
	}
	if len(volumes) > maxClientVolumes || len(mounts) > maxClientVolumes {
		c.refuse("KERNEL_VOLUMES", "there are more than %d volumes or mounts", maxClientVolumes)
		return
	}
	o := overlay{Spec: overlaySpec{Volumes: volumes}}
	c.declare(&o, func(string) string { return "KERNEL_VOLUMES" })
	for i, v := range volumes {
		where := fmt.Sprintf("KERNEL_VOLUMES[%d]", i)
		if slices.ContainsFunc(c.pod.Spec.Volumes, func(old corev1.Volume) bool { return old.Name == v.Name }) {
			c.refuse(where+".name", "the kernelspec has a volume %s already", shown(v.Name))
		}
		c.volume(where, &v)
	}
	for i, m := range mounts {
		where := fmt.Sprintf("KERNEL_VOLUME_MOUNTS[%d]", i)
		if slices.ContainsFunc(c.kernel.VolumeMounts, func(old corev1.VolumeMount) bool {
			return path.Clean(old.MountPath) == path.Clean(m.MountPath)
		}) {
			c.refuse(where+".mountPath", "the kernelspec has something at %s already", shown(m.MountPath))
		}
		c.mount(where, &m)
		c.kernel.VolumeMounts = append(c.kernel.VolumeMounts, m)
	}
	c.pod.Spec.Volumes = append(c.pod.Spec.Volumes, volumes...)
}

// list decodes a variable that is a list.
func (c *clientChecker) list(name, value string, into any) {
	text, err := yaml.YAMLToJSONStrict([]byte(value))
	if err != nil {
		c.refuse(name, "is neither YAML nor JSON")
		return
	}
	_, problems := kernelspecs.DecodeStrict(text, name, into)
	for _, p := range problems {
		c.refuse(p.Key, "%s", p.Message)
	}
}
