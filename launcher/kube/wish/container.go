package wish

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// container checks the overlay of the kernel's container.
func (c *checker) container(k *OverlayContainer, at func(string) string) {
	if k.Image != "" {
		c.image(at("image"), k.Image)
	}
	switch k.ImagePullPolicy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		c.refuse(at("imagePullPolicy"), "is %s; it must be Always, IfNotPresent or Never", Quoted(string(k.ImagePullPolicy)))
	}
	if k.WorkingDir != "" && !path.IsAbs(k.WorkingDir) {
		c.refuse(at("workingDir"), "%s is not an absolute path", Quoted(k.WorkingDir))
	}
	if k.Resources != nil {
		c.resources(at("resources"), k.Resources)
	}
	if k.SecurityContext != nil {
		c.security(at("securityContext"), k.SecurityContext)
	}
	seen := map[string]bool{}
	for i, e := range k.Env {
		where := fmt.Sprintf("%s[%d]", at("env"), i)
		if seen[e.Name] {
			c.refuse(where+".name", "%s is given twice", Quoted(e.Name))
		}
		seen[e.Name] = true
		c.variable(where, &e)
	}
	for i, from := range k.EnvFrom {
		where := fmt.Sprintf("%s[%d]", at("envFrom"), i)
		switch {
		case from.SecretRef != nil:
			c.secret(where+".secretRef.name", from.SecretRef.Name, c.bounds.Secrets)
		case from.ConfigMapRef != nil:
			c.configMap(where+".configMapRef.name", from.ConfigMapRef.Name)
		default:
			c.refuse(where, "has neither a secretRef nor a configMapRef")
		}
	}
	for i, m := range k.VolumeMounts {
		c.mount(fmt.Sprintf("%s[%d]", at("volumeMounts"), i), &m)
	}
	for i, d := range k.VolumeDevices {
		where := fmt.Sprintf("%s[%d]", at("volumeDevices"), i)
		c.volumeName(where+".name", d.Name)
		c.containerPath(where+".devicePath", d.DevicePath)
	}
}

func (c *checker) image(path, image string) {
	if !ImageName.MatchString(image) {
		c.refuse(path, "%s is not a valid image name", Quoted(image))
		return
	}
	c.listedIn(path, image, c.bounds.Images)
}

// resources checks requests and limits.
func (c *checker) resources(where string, r *corev1.ResourceRequirements) {
	for part, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, q := range list {
			p := where + "." + part + "." + string(name)
			if len(validation.IsQualifiedName(string(name))) > 0 {
				c.refuse(p, "is not a valid resource name")
			}
			c.quantity(p, string(name), q, nil)
		}
	}
	for name, q := range r.Requests {
		limit, ok := r.Limits[name]
		switch {
		case ok && q.Cmp(limit) > 0:
			c.refuse(where+".requests."+string(name), "%s is more than the limit of %s", q.String(), limit.String())
		case ok && IsWholeOnly(string(name)) && q.Cmp(limit) != 0:
			c.refuse(where+".requests."+string(name), "%s is not equal to the limit of %s, as this resource requires",
				q.String(), limit.String())
		}
	}
	for i, claim := range r.Claims {
		if !slices.Contains(c.claims, claim.Name) {
			c.refuse(fmt.Sprintf("%s.claims[%d].name", where, i), "no resource claim is named %s", Quoted(claim.Name))
		}
	}
}

// IsWholeOnly reports whether Kubernetes requires whole numbers of a resource, and a limit equal to the request.
func IsWholeOnly(name string) bool {
	return strings.Contains(name, "/") || strings.HasPrefix(name, "hugepages-")
}

// quantity checks the amount of a resource. An amount up to the kernelspec's own, which may be nil, is always allowed.
func (c *checker) quantity(path, name string, q resource.Quantity, specAmount *resource.Quantity) {
	if q.Sign() < 0 {
		c.refuse(path, "%s is negative", q.String())
	}
	if strings.Contains(name, "/") && q.MilliValue()%1000 != 0 {
		c.refuse(path, "%s is not a whole number, as this resource requires", q.String())
	}
	most, bounded := c.bounds.Maxima.limit(name)
	if specAmount != nil && bounded && most.Cmp(*specAmount) < 0 {
		most = *specAmount
	}
	if bounded && q.Cmp(most) > 0 {
		c.refuse(path, "%s is more than the allowed %s", q.String(), most.String())
	}
}

// id checks a user or group id.
func (c *checker) id(path string, id int64, allowed Ranges) {
	if !allowed.contains(id) {
		c.refuse(path, "%d is not allowed; allowed: %s", id, allowed)
	}
}

// user checks the user id of the kernel's container.
func (c *checker) user(path string, id int64) {
	switch {
	case id == podspec.SupervisorID:
		c.refuse(path, "%d is the supervisor's user, who can read keys that the kernel must not see", id)
	case id == 0 && c.nonRoot:
		c.refuse(path, "0 is root; the policy does not let kernels run as root")
	default:
		c.id(path, id, c.bounds.UserIDs)
	}
}

// security checks the security context of the kernel's container.
func (c *checker) security(where string, s *corev1.SecurityContext) {
	if s.Privileged != nil && *s.Privileged {
		c.refuse(where+".privileged", "a kernel cannot be privileged")
	}
	if s.AllowPrivilegeEscalation != nil && *s.AllowPrivilegeEscalation {
		c.refuse(where+".allowPrivilegeEscalation", "a kernel cannot gain privileges")
	}
	if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
		c.refuse(where+".procMount", "the only value is Default")
	}
	if s.WindowsOptions != nil {
		c.refuse(where+".windowsOptions", "cannot be set: kernels run on Linux")
	}
	if s.SeccompProfile != nil && s.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined {
		c.refuse(where+".seccompProfile.type", "Unconfined is never allowed")
	}
	if s.AppArmorProfile != nil && s.AppArmorProfile.Type == corev1.AppArmorProfileTypeUnconfined {
		c.refuse(where+".appArmorProfile.type", "Unconfined is never allowed")
	}
	if s.Capabilities != nil {
		for i, name := range s.Capabilities.Add {
			if !slices.Contains(c.spec.Capabilities, string(name)) {
				c.refuse(fmt.Sprintf("%s.capabilities.add[%d]", where, i), "%s is not allowed; allowed: %s",
					Quoted(string(name)), listOrNothing(c.spec.Capabilities))
			}
		}
	}
	if s.RunAsUser != nil {
		c.user(where+".runAsUser", *s.RunAsUser)
	}
	if s.RunAsGroup != nil {
		c.id(where+".runAsGroup", *s.RunAsGroup, c.bounds.GroupIDs)
	}
	if s.RunAsNonRoot != nil && !*s.RunAsNonRoot && c.nonRoot {
		c.refuse(where+".runAsNonRoot", "is false; the policy does not let kernels run as root")
	}
}

// variable checks one entry of env.
func (c *checker) variable(where string, e *corev1.EnvVar) {
	switch {
	case !VariableName.MatchString(e.Name):
		c.refuse(where+".name", "%s is not a valid variable name", Quoted(e.Name))
	case launcher.ReservedVariable(e.Name):
		c.refuse(where+".name", "%s is reserved for ekg", Quoted(e.Name))
	}
	from := e.ValueFrom
	if from == nil {
		return
	}
	where += ".valueFrom"
	switch {
	case e.Value != "":
		c.refuse(where, "cannot be combined with a value")
	case from.SecretKeyRef != nil:
		c.secret(where+".secretKeyRef.name", from.SecretKeyRef.Name, c.bounds.Secrets)
	case from.ConfigMapKeyRef != nil:
		c.configMap(where+".configMapKeyRef.name", from.ConfigMapKeyRef.Name)
	case from.FieldRef == nil && from.ResourceFieldRef == nil:
		c.refuse(where, "has none of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef")
	}
}
