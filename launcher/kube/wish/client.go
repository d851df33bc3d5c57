package wish

import (
	"cmp"
	"fmt"
	"maps"
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
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

const (
	maxClientVolumes = 32   // volumes of one client, and mounts
	maxPath          = 4096 // bytes of a path: PATH_MAX
)

// Choices are what a client can change of a pod. They are first those of the kernelspec and the flavor.
type Choices struct {
	Image          string
	Namespace      string
	ServiceAccount string // "": default
	PodName        string // KERNEL_POD_NAME, which names no pod
	User, Group    *int64 // that the kernel runs as; nil: those of the image
	Resources      corev1.ResourceRequirements
	Claims         []corev1.PodResourceClaim
	Volumes        []corev1.Volume
	Mounts         []corev1.VolumeMount

	// Beside returns how much of a resource is for the kernelspec's other containers. A client cannot change it.
	Beside func(corev1.ResourceName) resource.Quantity
}

// gpus returns what a kernel with these choices asks for of GPUs.
func (c *Choices) gpus() podspec.GPURequest {
	return podspec.GPURequestOf(&corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Resources: c.Resources}}, ResourceClaims: c.Claims}})
}

// Client returns the choices after the client's variables, as far as the policy allows these. It changes the maps of
// the given choices. An empty variable changes nothing, as with Enterprise Gateway. The error is a
// *launcher.RefusedError that names the variable.
func (p *Policy) Client(req launcher.Request, e *Extension, now Choices) (Choices, error) {
	c := &clientChecker{
		checker: checker{bounds: p.Clients.forOwner(req.Owner, p.OwnerNames), nonRoot: p.NonRoot,
			storageClasses: p.Kernelspecs.StorageClasses},
		allow: p.Clients.Allow, env: req.Env, hasToken: e.ServiceAccountToken, now: now,
	}
	if _, given := c.env[podspec.VisibleDevices]; given {
		c.refuse(podspec.VisibleDevices, "cannot be set by clients: it would give the kernel GPUs of other pods")
	}
	c.applyName("KERNEL_IMAGE", now.Image, func(name, value string) {
		c.image(name, value)
		c.now.Image = value
	})
	c.applyName("KERNEL_NAMESPACE", now.Namespace, func(name, value string) {
		c.listedIn(name, value, Patterns(p.Clients.Namespaces)) // exact names: a policy with a * in one is invalid
		c.keepsAccount(name)
		c.now.Namespace = value
	})
	c.applyName("KERNEL_SERVICE_ACCOUNT_NAME", cmp.Or(now.ServiceAccount, "default"), func(name, value string) {
		c.listedIn(name, value, c.bounds.ServiceAccounts)
		c.keepsAccount(name)
		c.now.ServiceAccount = value
	})
	c.apply("KERNEL_POD_NAME", func(_, value string) {
		if len(validation.IsDNS1123Subdomain(value)) == 0 { // a template of Enterprise Gateway, for example, is ignored
			c.now.PodName = value
		}
	})
	if req.Owner == "" { // else the gateway has set it, and not the client
		c.apply("KERNEL_USERNAME", func(string, string) {})
	}
	c.apply("KERNEL_WORKING_DIR", func(name, value string) {
		if path.IsAbs(value) && len(value) > maxPath {
			c.refuse(name, "is longer than %d bytes", maxPath)
		}
	})
	c.apply("KERNEL_LAUNCH_TIMEOUT", func(string, string) {})
	c.applyIDs()
	c.applyAmount("KERNEL_CPUS", corev1.ResourceCPU)
	c.applyAmount("KERNEL_MEMORY", corev1.ResourceMemory)
	if req.Flavor != nil {
		c.applyFlavorGPUs(req.Flavor)
	} else {
		c.applyGPUs(c.now.gpus())
	}
	c.applyVolumes()
	if len(c.found) > 0 {
		return Choices{}, Refused("%s: %s", c.found[0].path, c.found[0].text)
	}
	return c.now, nil
}

// clientChecker applies a client's variables and collects those that are refused.
type clientChecker struct {
	checker
	allow    []string // variables that may change the pod
	env      map[string]string
	hasToken bool // the kernelspec gives its kernels the token of a service account
	now      Choices
}

// keepsAccount refuses a variable that would change whose token the kernel gets.
func (c *clientChecker) keepsAccount(variable string) {
	if c.hasToken {
		c.refuse(variable, "cannot be changed: the kernelspec gives its kernels the token of a service account")
	}
}

// apply calls do with a variable that has a value. It refuses the variable if the policy does not allow it.
func (c *clientChecker) apply(name string, do func(name, value string)) {
	value := c.env[name]
	if value == "" {
		return
	}
	if !slices.Contains(c.allow, name) {
		c.refuse(name, "the policy does not let clients set this (%s); of the variables that change a pod it allows: %s",
			Quoted(value), listOrNothing(c.allow))
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
			c.refuse(name, "%s is not a user id", Quoted(value))
			return
		}
		c.checker.user(name, id)
		c.now.User = &id
	})
	c.apply("KERNEL_GID", func(name, value string) {
		id, ok := number(value)
		if !ok {
			c.refuse(name, "%s is not a group id", Quoted(value))
			return
		}
		c.id(name, id, c.bounds.GroupIDs)
		c.now.Group = &id
	})
}

// applyAmount sets the request of a resource to the variable's value, and its limit to the value of the variable with
// _LIMIT. If only one is given, the other one is the kernelspec's, changed so that the request does not exceed the
// limit. For whole devices both are equal.
func (c *clientChecker) applyAmount(variable string, name corev1.ResourceName) {
	r := &c.now.Resources
	specAmount := r.Limits[name]
	if request, ok := r.Requests[name]; ok && request.Cmp(specAmount) > 0 {
		specAmount = request
	}
	var values [2]*resource.Quantity
	for i, v := range []string{variable, variable + "_LIMIT"} {
		c.apply(v, func(v, value string) {
			q, err := parseQuantity(value)
			if err != nil {
				c.refuse(v, "%s is not a quantity like %s", Quoted(value), exampleAmount(name))
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
		(request.Cmp(*limit) > 0 || IsWholeOnly(string(name)) && request.Cmp(*limit) != 0) {
		c.refuse(variable, "%s does not fit %s, which is %s", request.String(), variable+"_LIMIT", limit.String())
		return
	}
	if IsWholeOnly(string(name)) {
		if request == nil {
			request = limit
		}
		delete(r.Requests, name)
		delete(r.Limits, name)
		if !request.IsZero() {
			podspec.SetAmount(&r.Limits, name, *request)
			podspec.SetAmount(&r.Requests, name, *request)
		}
		return
	}
	if request != nil {
		podspec.SetAmount(&r.Requests, name, *request)
		if old, ok := r.Limits[name]; ok && old.Cmp(*request) < 0 {
			podspec.SetAmount(&r.Limits, name, *request)
		}
	}
	if limit != nil {
		podspec.SetAmount(&r.Limits, name, *limit)
		if old, ok := r.Requests[name]; ok && old.Cmp(*limit) > 0 {
			podspec.SetAmount(&r.Requests, name, *limit)
		}
	}
}

// besideKernel refuses more than the kernelspec asks for, if it exceeds the maximum together with the kernelspec's
// other containers.
func (c *clientChecker) besideKernel(variable string, name corev1.ResourceName, q, specAmount resource.Quantity) {
	most, bounded := c.bounds.Maxima.limit(string(name))
	other := c.now.Beside(name)
	total := q.DeepCopy()
	total.Add(other)
	if bounded && !other.IsZero() && q.Cmp(specAmount) > 0 && q.Cmp(most) <= 0 && total.Cmp(most) > 0 {
		c.refuse(variable, "%s, and %s of the kernelspec's other containers, are more than the allowed %s", q.String(),
			other.String(), most.String())
	}
}

// applyGPUs applies KERNEL_GPUS to the resource of GPUs that the kernelspec asks for. Without one such resource the
// number cannot change what the kernelspec asks for: 0 gives all of it up, 1 is what such a pod counts as.
func (c *clientChecker) applyGPUs(spec podspec.GPURequest) {
	const variable = "KERNEL_GPUS"
	if name := spec.Countable(); name != "" {
		c.applyAmount(variable, name)
		given := c.env[variable] != "" || c.env[variable+"_LIMIT"] != ""
		if given && c.now.gpus().Devices[name] == 0 {
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
					strings.Join(spec.Resources(), ", "))
			}
		})
	}
}

// removeResources removes resources from the kernel's container.
func (c *clientChecker) removeResources(names []corev1.ResourceName) {
	for _, name := range names {
		delete(c.now.Resources.Requests, name)
		delete(c.now.Resources.Limits, name)
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
	o := Overlay{Spec: overlaySpec{Volumes: volumes}}
	c.declareNames(&o, func(string) string { return "KERNEL_VOLUMES" })
	for i, v := range volumes {
		where := fmt.Sprintf("KERNEL_VOLUMES[%d]", i)
		if slices.ContainsFunc(c.now.Volumes, func(old corev1.Volume) bool { return old.Name == v.Name }) {
			c.refuse(where+".name", "the kernelspec already has a volume %s", Quoted(v.Name))
		}
		c.volume(where, &v)
	}
	for i, m := range mounts {
		where := fmt.Sprintf("KERNEL_VOLUME_MOUNTS[%d]", i)
		if slices.ContainsFunc(c.now.Mounts, func(old corev1.VolumeMount) bool {
			return path.Clean(old.MountPath) == path.Clean(m.MountPath)
		}) {
			c.refuse(where+".mountPath", "the kernelspec already has a mount at %s", Quoted(m.MountPath))
		}
		c.mount(where, &m)
		c.now.Mounts = append(c.now.Mounts, m)
	}
	c.now.Volumes = append(c.now.Volumes, volumes...)
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

// applyFlavorGPUs applies KERNEL_GPUS to a pod with a flavor. It changes the amount of the flavor's own resource and
// never asks for another kind. 0 gives all of it up.
func (c *clientChecker) applyFlavorGPUs(f *flavor.Flavor) {
	const variable = "KERNEL_GPUS"
	r := podspec.RequestOf(f)
	giveUp := func() {
		c.removeResources([]corev1.ResourceName{r.Counted})
		for name := range r.Others {
			c.removeResources([]corev1.ResourceName{name})
		}
		c.now.Claims, c.now.Resources.Claims = nil, nil
	}
	if r.Scalable {
		c.applyAmount(variable, r.Counted)
		if now := c.now.Resources.Limits[r.Counted]; now.IsZero() {
			giveUp()
		}
		return
	}
	for _, v := range []string{variable, variable + "_LIMIT"} {
		c.apply(v, func(v, value string) {
			switch {
			case value == "0":
				giveUp()
			case f.None:
				c.refuse(v, "the flavor %s has no GPU; choose a flavor with one", f.Name)
			case value != "1":
				c.refuse(v, "the flavor %s says how much of a GPU the kernel gets; this variable can only be 0 or 1", f.Name)
			}
		})
	}
}
