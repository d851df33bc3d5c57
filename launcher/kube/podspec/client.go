package podspec

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

const (
	maxClientVolumes = 32   // volumes of one client, and mounts
	maxPath          = 4096 // bytes of a path: PATH_MAX
)

// applyClient applies the client's variables to the pod, as far as the policy allows it, and adds all of them to the
// kernel's environment. An empty variable changes nothing, as with Enterprise Gateway. The error is a
// *launcher.RefusedError that names the variable.
func (b *builder) applyClient(pod *corev1.Pod) error {
	policy := b.o.Policy
	c := &clientChecker{
		checker: checker{bounds: policy.Clients.forOwner(b.req.Owner, policy.OwnerNames), nonRoot: policy.NonRoot,
			storageClasses: policy.Kernelspecs.StorageClasses},
		allow: policy.Clients.Allow, env: b.req.Env, pod: pod, kernel: kernelOf(pod),
	}
	for name := range c.env {
		if name == visibleDevices {
			c.refuse(name, "cannot be set by clients: it would give the kernel GPUs of other pods")
		}
	}
	c.applyName("KERNEL_IMAGE", c.kernel.Image, func(name, value string) {
		c.image(name, value)
		c.kernel.Image = value
	})
	c.applyName("KERNEL_NAMESPACE", pod.Namespace, func(name, value string) {
		c.listedIn(name, value, Patterns(b.o.Policy.Clients.Namespaces)) // exact names: a policy with a * in one is invalid
		if b.keepsAccount(c, name) {
			pod.Namespace = value
		}
	})
	c.applyName("KERNEL_SERVICE_ACCOUNT_NAME", cmp.Or(pod.Spec.ServiceAccountName, "default"), func(name, value string) {
		c.listedIn(name, value, c.bounds.ServiceAccounts)
		if b.keepsAccount(c, name) {
			pod.Spec.ServiceAccountName = value
		}
	})
	c.apply("KERNEL_POD_NAME", func(_, value string) {
		if len(validation.IsDNS1123Subdomain(value)) == 0 { // a template of Enterprise Gateway, for example, is ignored
			pod.Annotations[annotationRequestedName] = value
		}
	})
	if b.req.Owner == "" { // else the gateway has set it, and not the client
		c.apply("KERNEL_USERNAME", func(string, string) {})
	}
	c.apply("KERNEL_WORKING_DIR", func(name, value string) {
		if path.IsAbs(value) && len(value) > maxPath {
			c.refuse(name, "is longer than %d bytes", maxPath)
		}
	})
	c.apply("KERNEL_LAUNCH_TIMEOUT", func(string, string) {})
	if timeout := b.req.Timeout(); timeout > 0 {
		pod.Annotations[AnnotationLaunchTimeout] = strconv.Itoa(int(math.Ceil(timeout.Seconds())))
	}
	c.applyIDs()
	c.applyAmount("KERNEL_CPUS", corev1.ResourceCPU)
	c.applyAmount("KERNEL_MEMORY", corev1.ResourceMemory)
	if b.req.Flavor != nil {
		c.applyFlavorGPUs(b.req.Flavor)
	} else {
		c.applyGPUs(GPURequestOf(pod))
	}
	c.applyVolumes()
	if len(c.found) > 0 {
		return refused("%s: %s", c.found[0].path, c.found[0].text)
	}
	for _, name := range slices.Sorted(maps.Keys(b.req.Env)) {
		if launcher.ReservedVariable(name) {
			continue
		}
		c.kernel.Env = slices.DeleteFunc(c.kernel.Env, func(e corev1.EnvVar) bool { return e.Name == name })
		c.kernel.Env = append(c.kernel.Env, corev1.EnvVar{Name: name, Value: b.req.Env[name]})
	}
	return nil
}

// clientChecker applies a client's variables and collects those that are refused.
type clientChecker struct {
	checker
	allow  []string // variables that may change the pod
	env    map[string]string
	pod    *corev1.Pod
	kernel *corev1.Container
}

// apply calls do with a variable that has a value. It refuses the variable if the policy does not allow it.
func (c *clientChecker) apply(name string, do func(name, value string)) {
	value := c.env[name]
	if value == "" {
		return
	}
	if !slices.Contains(c.allow, name) {
		c.refuse(name, "the policy does not let clients set this (%s); of the variables that change a pod it allows: %s",
			quoted(value), listOrNothing(c.allow))
		return
	}
	do(name, value)
}

// applyName calls do with a variable that names an object, unless it names the present one, which needs no permission.
func (c *clientChecker) applyName(name, present string, do func(name, value string)) {
	if c.env[name] == present {
		return
	}
	c.apply(name, func(name, value string) {
		if name != "KERNEL_IMAGE" && !c.name(name, value) {
			return
		}
		do(name, value)
	})
}

// applyIDs sets the user and group that the kernel runs as.
func (c *clientChecker) applyIDs() {
	number := func(value string) (int64, bool) {
		// Only digits are accepted: parsers disagree on signs, spaces, 0x and leading zeros.
		id, err := strconv.ParseUint(value, 10, 31)
		return int64(id), err == nil && strconv.FormatUint(id, 10) == value
	}
	c.apply("KERNEL_UID", func(name, value string) {
		id, ok := number(value)
		if !ok {
			c.refuse(name, "%s is not a user id", quoted(value))
			return
		}
		c.checker.user(name, id)
		c.kernel.SecurityContext.RunAsUser = &id
	})
	c.apply("KERNEL_GID", func(name, value string) {
		id, ok := number(value)
		if !ok {
			c.refuse(name, "%s is not a group id", quoted(value))
			return
		}
		c.id(name, id, c.bounds.GroupIDs)
		c.kernel.SecurityContext.RunAsGroup = &id
	})
}

// applyAmount sets the request of a resource to the variable's value, and its limit to the value of the variable with
// _LIMIT. If only one is given, the other one is the kernelspec's, changed so that the request does not exceed the
// limit. For whole devices both are equal.
func (c *clientChecker) applyAmount(variable string, name corev1.ResourceName) {
	r := &c.kernel.Resources
	specAmount := r.Limits[name]
	if request, ok := r.Requests[name]; ok && request.Cmp(specAmount) > 0 {
		specAmount = request
	}
	var values [2]*resource.Quantity
	for i, v := range []string{variable, variable + "_LIMIT"} {
		c.apply(v, func(v, value string) {
			q, err := parseQuantity(value)
			if err != nil {
				c.refuse(v, "%s is not a quantity like %s", quoted(value), exampleAmount(name))
				return
			}
			c.quantity(v, string(name), q, &specAmount)
			c.besideKernel(v, name, q, specAmount)
			values[i] = &q
		})
	}
	request, limit := values[0], values[1]
	if request == nil && limit == nil || len(c.found) > 0 {
		return
	}
	if request != nil && limit != nil &&
		(request.Cmp(*limit) > 0 || isWholeOnly(string(name)) && request.Cmp(*limit) != 0) {
		c.refuse(variable, "%s does not fit %s, which is %s", request.String(), variable+"_LIMIT", limit.String())
		return
	}
	if isWholeOnly(string(name)) {
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

// besideKernel refuses more than the kernelspec asks for, if it exceeds the maximum together with the kernelspec's
// other containers.
func (c *clientChecker) besideKernel(variable string, name corev1.ResourceName, q, specAmount resource.Quantity) {
	most, bounded := c.bounds.Maxima.limit(string(name))
	other := besideKernel(c.pod, name)
	total := q.DeepCopy()
	total.Add(other)
	if bounded && !other.IsZero() && q.Cmp(specAmount) > 0 && q.Cmp(most) <= 0 && total.Cmp(most) > 0 {
		c.refuse(variable, "%s, and %s of the kernelspec's other containers, are more than the allowed %s", q.String(),
			other.String(), most.String())
	}
}

// applyGPUs applies KERNEL_GPUS to the resource of GPUs that the kernelspec asks for. Without one such resource the
// number cannot change what the kernelspec asks for: 0 gives all of it up, 1 is what such a pod counts as.
func (c *clientChecker) applyGPUs(spec GPURequest) {
	const variable = "KERNEL_GPUS"
	if name := spec.countable(); name != "" {
		c.applyAmount(variable, name)
		given := c.env[variable] != "" || c.env[variable+"_LIMIT"] != ""
		if given && GPURequestOf(c.pod).Devices[name] == 0 {
			c.removeResources(slices.Collect(maps.Keys(spec.Shares))) // parts of the GPUs that were given up
		}
		return
	}
	for _, v := range []string{variable, variable + "_LIMIT"} {
		c.apply(v, func(v, value string) {
			switch {
			case value == "0":
				c.removeResources(slices.Concat(slices.Collect(maps.Keys(spec.Devices)),
					slices.Collect(maps.Keys(spec.Shares))))
			case value != "1" || len(spec.Devices) > 0:
				c.refuse(v, "the kernelspec asks for %s, whose amount this variable cannot change",
					strings.Join(spec.resources(), ", "))
			}
		})
	}
}

// removeResources removes resources from the kernel's container.
func (c *clientChecker) removeResources(names []corev1.ResourceName) {
	for _, name := range names {
		delete(c.kernel.Resources.Requests, name)
		delete(c.kernel.Resources.Limits, name)
	}
}

// exampleAmount returns examples of a resource's amount.
func exampleAmount(name corev1.ResourceName) string {
	switch name {
	case corev1.ResourceCPU:
		return "2, 0.5 or 500m"
	case corev1.ResourceMemory:
		return "2Gi or 500M"
	}
	return "1"
}

// applyVolumes adds the client's volumes and mounts, each a list in YAML or JSON. A client can mount only its own
// volumes.
func (c *clientChecker) applyVolumes() {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	c.apply("KERNEL_VOLUMES", func(name, value string) { c.decodeList(name, value, &volumes) })
	c.apply("KERNEL_VOLUME_MOUNTS", func(name, value string) { c.decodeList(name, value, &mounts) })
	if len(c.found) > 0 {
		return
	}
	if len(volumes) > maxClientVolumes || len(mounts) > maxClientVolumes {
		c.refuse("KERNEL_VOLUMES", "there are more than %d volumes or mounts", maxClientVolumes)
		return
	}
	o := overlay{Spec: overlaySpec{Volumes: volumes}}
	c.declareNames(&o, func(string) string { return "KERNEL_VOLUMES" })
	for i, v := range volumes {
		where := fmt.Sprintf("KERNEL_VOLUMES[%d]", i)
		if slices.ContainsFunc(c.pod.Spec.Volumes, func(old corev1.Volume) bool { return old.Name == v.Name }) {
			c.refuse(where+".name", "the kernelspec already has a volume %s", quoted(v.Name))
		}
		c.volume(where, &v)
	}
	for i, m := range mounts {
		where := fmt.Sprintf("KERNEL_VOLUME_MOUNTS[%d]", i)
		if slices.ContainsFunc(c.kernel.VolumeMounts, func(old corev1.VolumeMount) bool {
			return path.Clean(old.MountPath) == path.Clean(m.MountPath)
		}) {
			c.refuse(where+".mountPath", "the kernelspec already has a mount at %s", quoted(m.MountPath))
		}
		c.mount(where, &m)
		c.kernel.VolumeMounts = append(c.kernel.VolumeMounts, m)
	}
	c.pod.Spec.Volumes = append(c.pod.Spec.Volumes, volumes...)
}

// decodeList decodes a variable that holds a list in YAML or JSON.
func (c *clientChecker) decodeList(name, value string, into any) {
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
