package wish

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Bounds of kernelspecs that no policy changes.
const (
	minGrace = 10        // seconds: the kernel's shutdown, and the supervisor's after it
	maxGrace = 24 * 3600 // seconds
	maxShown = 100       // bytes of a value in an error
)

// Valid names of images and environment variables. Kubernetes checks the rest of an image's name.
var (
	ImageName    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,999}$`)
	VariableName = regexp.MustCompile(`^[ -<>-~]+$`)
)

// checker collects the values that a policy refuses.
type checker struct {
	bounds  *Bounds
	nonRoot bool
	spec    *SpecRules // nil for a client's variables
	found   []refusal

	policyLabels   map[string]string // Policy.Labels
	tokens         Patterns          // SpecRules.ServiceAccountTokens of the owner
	storageClasses Patterns          // SpecRules.StorageClasses, which hold for clients, too

	volumes []string     // names of declared volumes
	claims  []string     // names of declared resource claims
	objects []objectName // the kernelspec's own objects, which it may always use
}

// refusal is one value that is not allowed. The path is its key in the kernelspec or its variable.
type refusal struct{ path, text string }

func (c *checker) refuse(path, format string, args ...any) {
	c.found = append(c.found, refusal{path, fmt.Sprintf(format, args...)})
}

// Quoted returns a value for an error, shortened to maxShown.
func Quoted(value string) string {
	if len(value) > maxShown {
		value = strings.ToValidUTF8(value[:maxShown], "") + "..."
	}
	return strconv.Quote(value)
}

// listedIn refuses a value that matches no pattern.
func (c *checker) listedIn(path, value string, allowed Patterns) {
	if !allowed.matches(value) {
		c.refuse(path, "%s is not allowed; allowed: %s", Quoted(value), listOrNothing(allowed))
	}
}

// name refuses an invalid object name. It reports whether the name is valid.
func (c *checker) name(path, value string) bool {
	if len(validation.IsDNS1123Subdomain(value)) > 0 {
		c.refuse(path, "%s is not a valid Kubernetes name", Quoted(value))
		return false
	}
	return true
}

// secret refuses a secret that is not listed, and ekg's own secrets always.
func (c *checker) secret(path, value string, allowed Patterns) {
	if c.isOwn(KindSecret, value) || !c.name(path, value) {
		return
	}
	if strings.HasPrefix(value, podspec.SecretName("")) {
		c.refuse(path, "%s is one of ekg's own secrets, which kernels cannot use", Quoted(value))
		return
	}
	c.listedIn(path, value, allowed)
}

// extension checks metadata.ekg.
func (c *checker) extension(e *Extension) {
	if e.Entrypoint != "" && e.Entrypoint != EntrypointKeep {
		c.refuse(ShortPath("entrypoint"), "is %s; the only value is %q", Quoted(e.Entrypoint), EntrypointKeep)
	}
	if strings.ContainsRune(e.ImageKernelspec, '/') || strings.HasPrefix(e.ImageKernelspec, ".") {
		c.refuse(ShortPath("imageKernelspec"), "%s is not a valid kernelspec name", Quoted(e.ImageKernelspec))
	}
	if e.ShmSize != nil && e.ShmSize.Sign() < 0 {
		c.refuse(ShortPath("shmSize"), "is negative")
	}
	for key, given := range map[string]bool{
		"entrypoint": e.Entrypoint != "", "imageKernelspec": e.ImageKernelspec != "", "shmSize": e.ShmSize != nil,
	} {
		if given {
			c.keyAllowed(ShortPath(key), key)
		}
	}
	c.declareObjects(e)
	short := e.AsOverlay()
	c.declareNames(&short, ShortPath)
	c.declareNames(&e.Pod, podPath)
	c.overlay(&short, ShortPath)
	if !e.Pod.empty() {
		c.keyAllowed(overlayPath, "pod")
	}
	if n := len(e.Pod.Spec.Containers); n > 1 || n == 1 && e.Pod.Spec.Containers[0].Name != podspec.ContainerKernel {
		c.refuse(overlayPath+".spec.containers", "can hold only the container %q", podspec.ContainerKernel)
	} else {
		c.overlay(&e.Pod, podPath)
	}
	c.extras(e)
	c.driver(e)
	c.kernelObjects(e)
	slices.SortStableFunc(c.found, func(a, b refusal) int { return strings.Compare(a.path, b.path) })
}

// declareNames collects the names of volumes and claims. It is called before the checks of what refers to them.
func (c *checker) declareNames(o *Overlay, at func(string) string) {
	for i, v := range o.Spec.Volumes {
		where := fmt.Sprintf("%s[%d].name", at("volumes"), i)
		switch {
		case len(validation.IsDNS1123Label(v.Name)) > 0:
			c.refuse(where, "%s is not a valid Kubernetes name", Quoted(v.Name))
		case podspec.ReservedVolume(v.Name):
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

// keyAllowed refuses a key that the policy does not allow in kernelspecs.
func (c *checker) keyAllowed(path, key string) {
	if c.spec != nil && !slices.Contains(c.spec.Allow, key) {
		c.refuse(path, "the policy does not let kernelspecs set this; it allows: %s", listOrNothing(c.spec.Allow))
	}
}

// overlay checks one overlay. The function at returns the path of a key.
func (c *checker) overlay(o *Overlay, at func(string) string) {
	k := o.Kernel()
	for key, given := range map[string]bool{
		"labels": o.Metadata.Labels != nil, "annotations": o.Metadata.Annotations != nil, "affinity": o.Spec.Affinity != nil,
		"imagePullSecrets": o.Spec.ImagePullSecrets != nil, "nodeSelector": o.Spec.NodeSelector != nil,
		"priorityClassName": o.Spec.PriorityClassName != "", "resourceClaims": o.Spec.ResourceClaims != nil,
		"runtimeClassName": o.Spec.RuntimeClassName != nil, "schedulerName": o.Spec.SchedulerName != "",
		"serviceAccountName":            o.Spec.ServiceAccountName != "",
		"terminationGracePeriodSeconds": o.Spec.TerminationGracePeriodSeconds != nil,
		"tolerations":                   o.Spec.Tolerations != nil, "volumes": o.Spec.Volumes != nil,
		"env": k.Env != nil, "image": k.Image != "", "imagePullPolicy": k.ImagePullPolicy != "",
		"resources": k.Resources != nil, "securityContext": k.SecurityContext != nil, "volumeMounts": k.VolumeMounts != nil,
		"workingDir": k.WorkingDir != "",
	} {
		if given {
			c.keyAllowed(at(key), key)
		}
	}
	c.labels(at("labels"), o.Metadata.Labels, true)
	c.labels(at("annotations"), o.Metadata.Annotations, false)
	c.scheduling(&o.Spec, at)
	c.objectNames(&o.Spec, at)
	if g := o.Spec.TerminationGracePeriodSeconds; g != nil && (*g < minGrace || *g > maxGrace) {
		c.refuse(at("terminationGracePeriodSeconds"), "is %d; it must be from %d to %d", *g, minGrace, maxGrace)
	}
	if s := o.Spec.ActiveDeadlineSeconds; s != nil && *s < 1 {
		c.refuse(at("activeDeadlineSeconds"), "is %d; it must be at least 1", *s)
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

// labels checks labels or annotations.
func (c *checker) labels(where string, m map[string]string, label bool) {
	for key, value := range m {
		p := where + "." + key
		_, ofPolicy := c.policyLabels[key]
		switch {
		case podspec.IsReserved(key):
			c.refuse(p, "is reserved for ekg")
		case label && ofPolicy:
			c.refuse(p, "is set by the operator's policy")
		case len(validation.IsQualifiedName(strings.ToLower(key))) > 0:
			c.refuse(p, "is not a valid Kubernetes key")
		case label && len(validation.IsValidLabelValue(value)) > 0:
			c.refuse(p, "%s is not a valid label value: at most 63 letters, digits, '-', '_' and '.'", Quoted(value))
		}
	}
}

// scheduling checks the keys that choose nodes.
func (c *checker) scheduling(s *overlaySpec, at func(string) string) {
	if c.spec == nil {
		return
	}
	for key, value := range s.NodeSelector {
		c.listedIn(at("nodeSelector")+"."+key, key, c.spec.NodeSelectorKeys)
		if len(validation.IsValidLabelValue(value)) > 0 {
			c.refuse(at("nodeSelector")+"."+key, "%s is not a valid label value", Quoted(value))
		}
	}
	if s.Affinity == nil || s.Affinity.NodeAffinity == nil {
		return
	}
	terms := func(where string, t *corev1.NodeSelectorTerm) {
		for i, e := range t.MatchExpressions {
			c.listedIn(fmt.Sprintf("%s.matchExpressions[%d].key", where, i), e.Key, c.spec.NodeSelectorKeys)
		}
		for i := range t.MatchFields {
			c.listedIn(fmt.Sprintf("%s.matchFields[%d].key", where, i), t.MatchFields[i].Key, c.spec.NodeSelectorKeys)
		}
	}
	where := at("affinity") + ".nodeAffinity."
	if required := s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		for i := range required.NodeSelectorTerms {
			terms(fmt.Sprintf("%srequiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d]", where, i),
				&required.NodeSelectorTerms[i])
		}
	}
	for i := range s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		preferred := &s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[i]
		terms(fmt.Sprintf("%spreferredDuringSchedulingIgnoredDuringExecution[%d].preference", where, i),
			&preferred.Preference)
	}
}

// objectNames checks the names of other objects, but for those of volumes.
func (c *checker) objectNames(s *overlaySpec, at func(string) string) {
	if s.ServiceAccountName != "" && c.name(at("serviceAccountName"), s.ServiceAccountName) {
		c.listedIn(at("serviceAccountName"), s.ServiceAccountName, c.bounds.ServiceAccounts)
	}
	if c.spec == nil {
		return
	}
	if name := s.PriorityClassName; name != "" && c.name(at("priorityClassName"), name) {
		if strings.HasPrefix(name, "system-") {
			c.refuse(at("priorityClassName"), "%s is reserved for the cluster's own pods", Quoted(name))
		}
		c.listedIn(at("priorityClassName"), name, c.spec.PriorityClasses)
	}
	if name := s.RuntimeClassName; name != nil && c.name(at("runtimeClassName"), *name) {
		c.listedIn(at("runtimeClassName"), *name, c.spec.RuntimeClasses)
	}
	if s.SchedulerName != "" {
		c.listedIn(at("schedulerName"), s.SchedulerName, c.spec.Schedulers)
	}
	for i, ref := range s.ImagePullSecrets {
		c.secret(fmt.Sprintf("%s[%d].name", at("imagePullSecrets"), i), ref.Name, c.spec.ImagePullSecrets)
	}
	for i, claim := range s.ResourceClaims {
		where := fmt.Sprintf("%s[%d]", at("resourceClaims"), i)
		if len(validation.IsDNS1123Label(claim.Name)) > 0 {
			c.refuse(where+".name", "%s is not a valid Kubernetes name", Quoted(claim.Name))
		}
		if (claim.ResourceClaimName == nil) == (claim.ResourceClaimTemplateName == nil) {
			c.refuse(where, "must have exactly one of resourceClaimName and resourceClaimTemplateName")
		}
	}
}

// Refused returns a *launcher.RefusedError.
func Refused(format string, args ...any) error {
	return &launcher.RefusedError{Reason: fmt.Sprintf(format, args...)}
}
