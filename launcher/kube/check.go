package kube

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of what a kernelspec may say, whatever the policy is.
const (
	minGrace = 10        // seconds: the kernel's own shutdown, and what comes after it
	maxGrace = 24 * 3600 // seconds
	maxShown = 100       // bytes of a value in a message
)

// What a container image and an environment variable may be called. Kubernetes itself checks the rest of an image.
var (
	imageName    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,999}$`)
	variableName = regexp.MustCompile(`^[ -<>-~]+$`)
)

// reservedKeys are labels and annotations that are ekg's own, or weaken a container behind its security context's back.
// Those that end in "/" are beginnings.
var reservedKeys = []string{domain, LabelManagedBy, labelName, labelComponent, annotationSafeToEvict, annotationDoNotDisrupt,
	annotationDefaultContainer, annotationIstio, annotationLinkerd,
	"container.apparmor.security.beta.kubernetes.io/", "container.seccomp.security.alpha.kubernetes.io/",
	"seccomp.security.alpha.kubernetes.io/", "security.alpha.kubernetes.io/"}

// checker collects what a policy refuses, each with the path of the value.
type checker struct {
	bounds  *Bounds
	nonRoot bool
	spec    *SpecRules // nil for what a client says
	found   []refusal

	volumes []string // names that have been declared
	claims  []string // names of resource claims
}

// refusal is one value that is not allowed.
type refusal struct{ path, text string }

func (c *checker) refuse(path, format string, args ...any) {
	c.found = append(c.found, refusal{path, fmt.Sprintf(format, args...)})
}

// shown is a value in a message.
func shown(value string) string {
	if len(value) > maxShown {
		value = strings.ToValidUTF8(value[:maxShown], "") + "..."
	}
	return strconv.Quote(value)
}

// listed refuses a value that no pattern matches.
func (c *checker) listed(path, value string, allowed Patterns) {
	if !allowed.match(value) {
		c.refuse(path, "%s is not allowed; allowed is: %s", shown(value), orNothing(allowed))
	}
}

// name refuses what cannot be the name of an object.
func (c *checker) name(path, value string) bool {
	if len(validation.IsDNS1123Subdomain(value)) > 0 {
		c.refuse(path, "%s is not a name that Kubernetes takes", shown(value))
		return false
	}
	return true
}

// secret refuses a secret that is not listed; those of ekg never are.
func (c *checker) secret(path, value string, allowed Patterns) {
	if !c.name(path, value) {
		return
	}
	if strings.HasPrefix(value, secretName("")) {
		c.refuse(path, "%s is one of ekg's own secrets, which no kernel gets", shown(value))
		return
	}
	c.listed(path, value, allowed)
}

// extension checks all that a kernelspec says.
func (c *checker) extension(e *extension) {
	if e.Entrypoint != "" && e.Entrypoint != entrypointKeep {
		c.refuse(shortPath("entrypoint"), "is %s; there is only %q", shown(e.Entrypoint), entrypointKeep)
	}
	if strings.ContainsRune(e.ImageKernelspec, '/') || strings.HasPrefix(e.ImageKernelspec, ".") {
		c.refuse(shortPath("imageKernelspec"), "%s is not the name of a kernelspec", shown(e.ImageKernelspec))
	}
	if e.ShmSize != nil && e.ShmSize.Sign() < 0 {
		c.refuse(shortPath("shmSize"), "is negative")
	}
	for key, given := range map[string]bool{"entrypoint": e.Entrypoint != "", "imageKernelspec": e.ImageKernelspec != "", "shmSize": e.ShmSize != nil} {
		if given {
			c.allowed(shortPath(key), key)
		}
	}
	short := e.short()
	c.declare(&short, shortPath)
	c.declare(&e.Pod, podPath)
	c.overlay(&short, shortPath)
	if !e.Pod.empty() {
		c.allowed(overlayPath, "pod")
	}
	if n := len(e.Pod.Spec.Containers); n > 1 || n == 1 && e.Pod.Spec.Containers[0].Name != containerKernel {
		c.refuse(overlayPath+".spec.containers", "can hold the container %q and no other", containerKernel)
	} else {
		c.overlay(&e.Pod, podPath)
	}
	slices.SortStableFunc(c.found, func(a, b refusal) int { return strings.Compare(a.path, b.path) })
}

// declare notes the names of volumes and claims, which may be used before they come.
func (c *checker) declare(o *overlay, at func(string) string) {
	for i, v := range o.Spec.Volumes {
		where := fmt.Sprintf("%s[%d].name", at("volumes"), i)
		switch {
		case len(validation.IsDNS1123Label(v.Name)) > 0:
			c.refuse(where, "%s is not a name that Kubernetes takes", shown(v.Name))
		case slices.Contains(ownVolumes, v.Name):
			c.refuse(where, "%q is one of ekg's own volumes; choose another name", v.Name)
		case slices.Contains(c.volumes, v.Name):
			c.refuse(where, "%q is given twice", v.Name)
		}
		c.volumes = append(c.volumes, v.Name)
	}
	for i, claim := range o.Spec.ResourceClaims {
		if slices.Contains(c.claims, claim.Name) {
			c.refuse(fmt.Sprintf("%s[%d].name", at("resourceClaims"), i), "%q is given twice", claim.Name)
		}
		c.claims = append(c.claims, claim.Name)
	}
}

// allowed refuses a key that kernelspecs may not use.
func (c *checker) allowed(path, key string) {
	if c.spec != nil && !slices.Contains(c.spec.Allow, key) {
		c.refuse(path, "kernelspecs may not set this here; they may set: %s", orNothing(c.spec.Allow))
	}
}

// overlay checks one overlay, whose values are called as at says.
func (c *checker) overlay(o *overlay, at func(string) string) {
	k := o.kernel()
	for key, given := range map[string]bool{
		"labels": o.Metadata.Labels != nil, "annotations": o.Metadata.Annotations != nil, "affinity": o.Spec.Affinity != nil,
		"imagePullSecrets": o.Spec.ImagePullSecrets != nil, "nodeSelector": o.Spec.NodeSelector != nil,
		"priorityClassName": o.Spec.PriorityClassName != "", "resourceClaims": o.Spec.ResourceClaims != nil,
		"runtimeClassName": o.Spec.RuntimeClassName != nil, "schedulerName": o.Spec.SchedulerName != "",
		"serviceAccountName":            o.Spec.ServiceAccountName != "",
		"terminationGracePeriodSeconds": o.Spec.TerminationGracePeriodSeconds != nil, "tolerations": o.Spec.Tolerations != nil,
		"volumes": o.Spec.Volumes != nil, "env": k.Env != nil, "image": k.Image != "", "imagePullPolicy": k.ImagePullPolicy != "",
		"resources": k.Resources != nil, "securityContext": k.SecurityContext != nil, "volumeMounts": k.VolumeMounts != nil,
		"workingDir": k.WorkingDir != "",
	} {
		if given {
			c.allowed(at(key), key)
		}
	}
	c.labels(at("labels"), o.Metadata.Labels, true)
	c.labels(at("annotations"), o.Metadata.Annotations, false)
	c.scheduling(&o.Spec, at)
	c.names(&o.Spec, at)
	if g := o.Spec.TerminationGracePeriodSeconds; g != nil && (*g < minGrace || *g > maxGrace) {
		c.refuse(at("terminationGracePeriodSeconds"), "is %d, not from %d to %d", *g, minGrace, maxGrace)
	}
	if s := o.Spec.ActiveDeadlineSeconds; s != nil && *s < 1 {
		c.refuse(at("activeDeadlineSeconds"), "is %d, not from 1 on", *s)
	}
	if s := o.Spec.SecurityContext; s != nil {
		if s.FSGroup != nil {
			c.id(at("podSecurityContext")+".fsGroup", *s.FSGroup, c.bounds.GroupIDs)
		}
		for i, g := range s.SupplementalGroups {
			c.id(fmt.Sprintf("%s.supplementalGroups[%d]", at("podSecurityContext"), i), g, c.bounds.GroupIDs)
		}
	}
	for i, v := range o.Spec.Volumes {
		c.volume(fmt.Sprintf("%s[%d]", at("volumes"), i), &v)
	}
	c.container(&k, at)
}

// container checks what is said of the kernel's container.
func (c *checker) container(k *overlayContainer, at func(string) string) {
	if k.Image != "" {
		c.image(at("image"), k.Image)
	}
	switch k.ImagePullPolicy {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		c.refuse(at("imagePullPolicy"), "is %s, not Always, IfNotPresent or Never", shown(string(k.ImagePullPolicy)))
	}
	if k.WorkingDir != "" && !path.IsAbs(k.WorkingDir) {
		c.refuse(at("workingDir"), "%s is not an absolute path", shown(k.WorkingDir))
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
			c.refuse(where+".name", "%s is given twice", shown(e.Name))
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
			c.listed(where+".configMapRef.name", from.ConfigMapRef.Name, c.bounds.ConfigMaps)
		default:
			c.refuse(where, "names neither a secretRef nor a configMapRef")
		}
	}
	for i, m := range k.VolumeMounts {
		c.mount(fmt.Sprintf("%s[%d]", at("volumeMounts"), i), &m)
	}
	for i, d := range k.VolumeDevices {
		where := fmt.Sprintf("%s[%d]", at("volumeDevices"), i)
		c.mounted(where+".name", d.Name)
		c.place(where+".devicePath", d.DevicePath)
	}
}

// labels checks labels or annotations.
func (c *checker) labels(where string, m map[string]string, label bool) {
	for key, value := range m {
		p := where + "." + key
		reserved := slices.ContainsFunc(reservedKeys, func(r string) bool {
			return key == r || strings.HasSuffix(r, "/") && strings.HasPrefix(key, r)
		})
		switch {
		case reserved:
			c.refuse(p, "is kept for ekg's own use")
		case len(validation.IsQualifiedName(strings.ToLower(key))) > 0:
			c.refuse(p, "is not a key that Kubernetes takes")
		case label && len(validation.IsValidLabelValue(value)) > 0:
			c.refuse(p, "%s is not the value of a label: at most 63 letters, digits, '-', '_' and '.'", shown(value))
		}
	}
}

// scheduling checks what decides on which node a pod runs.
func (c *checker) scheduling(s *overlaySpec, at func(string) string) {
	if c.spec == nil {
		return
	}
	for key, value := range s.NodeSelector {
		c.listed(at("nodeSelector")+"."+key, key, c.spec.NodeSelectorKeys)
		if len(validation.IsValidLabelValue(value)) > 0 {
			c.refuse(at("nodeSelector")+"."+key, "%s is not the value of a label", shown(value))
		}
	}
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return
	}
	terms := func(where string, t *corev1.NodeSelectorTerm) {
		for i, e := range t.MatchExpressions {
			c.listed(fmt.Sprintf("%s.matchExpressions[%d].key", where, i), e.Key, c.spec.NodeSelectorKeys)
		}
		for i := range t.MatchFields {
			c.listed(fmt.Sprintf("%s.matchFields[%d].key", where, i), t.MatchFields[i].Key, c.spec.NodeSelectorKeys)
		}
	}
	where := at("affinity") + ".nodeAffinity."
	if required := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			terms(fmt.Sprintf("%srequiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d]", where, i), &required.NodeSelectorTerms[i])
		}
	}
	for i := range s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		preferred := &s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
		terms(fmt.Sprintf("%spreferredDuringSchedulingIgnoredDuringExecution[%d].preference", where, i), &preferred.Preference)
	}
}

// names checks the objects that a pod names, other than volumes.
func (c *checker) names(s *overlaySpec, at func(string) string) {
	if s.ServiceAccountName != "" && c.name(at("serviceAccountName"), s.ServiceAccountName) {
		c.listed(at("serviceAccountName"), s.ServiceAccountName, c.bounds.ServiceAccounts)
	}
	if c.spec == nil {
		return
	}
	if name := s.PriorityClassName; name != "" && c.name(at("priorityClassName"), name) {
		if strings.HasPrefix(name, "system-") {
			c.refuse(at("priorityClassName"), "%s is for the cluster's own pods", shown(name))
		}
		c.listed(at("priorityClassName"), name, c.spec.PriorityClasses)
	}
	if name := s.RuntimeClassName; name != nil && c.name(at("runtimeClassName"), *name) {
		c.listed(at("runtimeClassName"), *name, c.spec.RuntimeClasses)
	}
	if s.SchedulerName != "" {
		c.listed(at("schedulerName"), s.SchedulerName, c.spec.Schedulers)
	}
	for i, ref := range s.ImagePullSecrets {
		c.secret(fmt.Sprintf("%s[%d].name", at("imagePullSecrets"), i), ref.Name, c.spec.ImagePullSecrets)
	}
	for i, claim := range s.ResourceClaims {
		where := fmt.Sprintf("%s[%d]", at("resourceClaims"), i)
		if len(validation.IsDNS1123Label(claim.Name)) > 0 {
			c.refuse(where+".name", "%s is not a name that Kubernetes takes", shown(claim.Name))
		}
		if (claim.ResourceClaimName == nil) == (claim.ResourceClaimTemplateName == nil) {
			c.refuse(where, "names not exactly one of resourceClaimName and resourceClaimTemplateName")
		}
	}
}

func (c *checker) image(path, image string) {
	if !imageName.MatchString(image) {
		c.refuse(path, "%s is not the name of an image", shown(image))
		return
	}
	c.listed(path, image, c.bounds.Images)
}

// resources checks requests and limits.
func (c *checker) resources(where string, r *corev1.ResourceRequirements) {
	for part, list := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, q := range list {
			p := where + "." + part + "." + string(name)
			if len(validation.IsQualifiedName(string(name))) > 0 {
				c.refuse(p, "is not the name of a resource")
			}
			c.quantity(p, string(name), q, nil)
		}
	}
	for name, q := range r.Requests {
		limit, ok := r.Limits[name]
		switch {
		case ok && q.Cmp(limit) > 0:
			c.refuse(where+".requests."+string(name), "%s is more than the limit, %s", q.String(), limit.String())
		case ok && wholeOnly(string(name)) && q.Cmp(limit) != 0:
			c.refuse(where+".requests."+string(name), "%s is not the same as the limit, %s, as it must be for this resource", q.String(), limit.String())
		}
	}
	for i, claim := range r.Claims {
		if !slices.Contains(c.claims, claim.Name) {
			c.refuse(fmt.Sprintf("%s.claims[%d].name", where, i), "there is no resource claim %s", shown(claim.Name))
		}
	}
}

// wholeOnly reports whether a resource is counted in whole devices, whose request and limit must be the same.
func wholeOnly(name string) bool {
	return strings.Contains(name, "/") || strings.HasPrefix(name, "hugepages-")
}

// quantity checks how much is asked for. What the kernelspec gives anyway (or nil) is not too much.
func (c *checker) quantity(path, name string, q resource.Quantity, anyway *resource.Quantity) {
	if q.Sign() < 0 {
		c.refuse(path, "%s is negative", q.String())
	}
	if strings.Contains(name, "/") && q.MilliValue()%1000 != 0 {
		c.refuse(path, "%s is not a whole number, as it must be for this resource", q.String())
	}
	most, bounded := c.bounds.Maxima.of(name)
	if anyway != nil && bounded && most.Cmp(*anyway) < 0 {
		most = *anyway
	}
	if bounded && q.Cmp(most) > 0 {
		c.refuse(path, "%s is more than the %s that are allowed", q.String(), most.String())
	}
}

// id checks a user or group id.
func (c *checker) id(path string, id int64, allowed Ranges) {
	if !allowed.contain(id) {
		c.refuse(path, "%d is not allowed; allowed is: %s", id, allowed)
	}
}

// user checks the user id of the kernel's container.
func (c *checker) user(path string, id int64) {
	switch {
	case id == supervisorID:
		c.refuse(path, "%d is the user of the kernel's supervisor, whose key the kernel must not see", id)
	case id == 0 && c.nonRoot:
		c.refuse(path, "0 is root, and no kernel may run as root here")
	default:
		c.id(path, id, c.bounds.UserIDs)
	}
}

// security checks the security context of the kernel's container.
func (c *checker) security(where string, s *corev1.SecurityContext) {
	if s.Privileged != nil && *s.Privileged {
		c.refuse(where+".privileged", "no kernel is ever privileged")
	}
	if s.AllowPrivilegeEscalation != nil && *s.AllowPrivilegeEscalation {
		c.refuse(where+".allowPrivilegeEscalation", "no kernel can ever gain privileges")
	}
	if s.ProcMount != nil && *s.ProcMount != corev1.DefaultProcMount {
		c.refuse(where+".procMount", "there is only Default")
	}
	if s.WindowsOptions != nil {
		c.refuse(where+".windowsOptions", "kernels run on Linux")
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
				c.refuse(fmt.Sprintf("%s.capabilities.add[%d]", where, i), "%s is not allowed; allowed is: %s",
					shown(string(name)), orNothing(c.spec.Capabilities))
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
		c.refuse(where+".runAsNonRoot", "is false, and no kernel may run as root here")
	}
}

// reservedVariable reports whether a variable is never part of a kernel's environment: those of ekg and Enterprise Gateway
// themselves, and the one by which ipykernel would end with a process that is not its parent.
func reservedVariable(name string) bool {
	return name == "JPY_PARENT_PID" || strings.HasPrefix(name, "EKG_") || strings.HasPrefix(name, "EG_")
}

// variable checks one entry of env.
func (c *checker) variable(where string, e *corev1.EnvVar) {
	switch {
	case !variableName.MatchString(e.Name):
		c.refuse(where+".name", "%s is not the name of a variable", shown(e.Name))
	case reservedVariable(e.Name):
		c.refuse(where+".name", "%s is kept for ekg's own use", shown(e.Name))
	}
	from := e.ValueFrom
	if from == nil {
		return
	}
	where += ".valueFrom"
	switch {
	case e.Value != "":
		c.refuse(where, "is given beside a value")
	case from.SecretKeyRef != nil:
		c.secret(where+".secretKeyRef.name", from.SecretKeyRef.Name, c.bounds.Secrets)
	case from.ConfigMapKeyRef != nil:
		c.listed(where+".configMapKeyRef.name", from.ConfigMapKeyRef.Name, c.bounds.ConfigMaps)
	case from.FieldRef == nil && from.ResourceFieldRef == nil:
		c.refuse(where, "names none of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef")
	}
}

// volume checks what a volume holds.
func (c *checker) volume(where string, v *corev1.Volume) {
	kind, n := volumeSource(v.VolumeSource)
	if n != 1 {
		c.refuse(where, "%s has not exactly one kind of source but %d (an emptyDir is written out here)", shown(v.Name), n)
		return
	}
	if !slices.Contains(c.bounds.Volumes, kind) || !slices.Contains(volumeKinds, kind) {
		c.refuse(where+"."+kind, "volumes of this kind are not allowed; allowed is: %s", orNothing(c.bounds.Volumes))
		return
	}
	where += "." + kind
	switch kind {
	case "secret":
		c.secret(where+".secretName", v.Secret.SecretName, c.bounds.Secrets)
	case "configMap":
		c.listed(where+".name", v.ConfigMap.Name, c.bounds.ConfigMaps)
	case "persistentVolumeClaim":
		c.listed(where+".claimName", v.PersistentVolumeClaim.ClaimName, c.bounds.PersistentVolumeClaims)
	case "image":
		c.image(where+".reference", v.Image.Reference)
	case "csi":
		if ref := v.CSI.NodePublishSecretRef; ref != nil {
			c.secret(where+".nodePublishSecretRef.name", ref.Name, c.bounds.Secrets)
		}
	case "projected":
		for i, s := range v.Projected.Sources {
			c.source(fmt.Sprintf("%s.sources[%d]", where, i), &s)
		}
	}
}

// source checks a part of a projected volume.
func (c *checker) source(where string, s *corev1.VolumeProjection) {
	switch {
	case s.ServiceAccountToken != nil:
		c.refuse(where+".serviceAccountToken", "no kernel gets a service account's token")
	case s.ClusterTrustBundle != nil || s.PodCertificate != nil:
		c.refuse(where, "only secret, configMap and downwardAPI can be projected")
	case s.Secret != nil && s.ConfigMap != nil:
		c.refuse(where, "names more than one source")
	case s.Secret != nil:
		c.secret(where+".secret.name", s.Secret.Name, c.bounds.Secrets)
	case s.ConfigMap != nil:
		c.listed(where+".configMap.name", s.ConfigMap.Name, c.bounds.ConfigMaps)
	}
}

// mount checks where a volume is mounted.
func (c *checker) mount(where string, m *corev1.VolumeMount) {
	c.mounted(where+".name", m.Name)
	c.place(where+".mountPath", m.MountPath)
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
		c.refuse(where+".mountPropagation", "Bidirectional reaches into the node and is never allowed")
	}
}

// mounted checks that a volume is there and is not one of ekg's.
func (c *checker) mounted(path, name string) {
	switch {
	case slices.Contains(ownVolumes, name):
		c.refuse(path, "%q is one of ekg's own volumes", name)
	case !slices.Contains(c.volumes, name):
		c.refuse(path, "there is no volume %s", shown(name))
	}
}

// place checks a path in the kernel's container: nothing may lie over what ekg needs there.
func (c *checker) place(where, value string) {
	clean := path.Clean(value)
	switch {
	case !path.IsAbs(value) || strings.Contains(value, ":") || slices.Contains(strings.Split(value, "/"), ".."):
		c.refuse(where, "%s is not an absolute path without '..' and ':'", shown(value))
	case clean == "/" || clean == "/dev":
		c.refuse(where, "%s would hide what the kernel needs", shown(value))
	case clean == shmDir:
		c.refuse(where, "%s is set by %s", shmDir, shortPath("shmSize"))
	case slices.ContainsFunc(ownPlaces, func(own string) bool { return clean == own || strings.HasPrefix(clean, own+"/") }):
		c.refuse(where, "%s is kept for ekg's own use", shown(value))
	}
}

// empty reports whether the overlay says nothing.
func (o *overlay) empty() bool {
	return reflect.ValueOf(*o).IsZero()
}
