package wish

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checkQuantity returns an error if a text is not a quantity like 500m or 2Gi that is more than 0.
func checkQuantity(text string) error {
	q, err := parseQuantity(text)
	if err != nil || q.IsZero() {
		return fmt.Errorf("%q is not a quantity like 500m or 128Mi", text)
	}
	return nil
}

// checkSecretName returns an error if a text cannot be the name of a secret.
func checkSecretName(text string) error {
	if len(validation.IsDNS1123Subdomain(text)) > 0 {
		return fmt.Errorf("%q is not a valid Kubernetes name", text)
	}
	return nil
}

// checkPriorityClass returns an error if a text cannot be the name of a PriorityClass for kernels.
func checkPriorityClass(text string) error {
	if strings.HasPrefix(text, "system-") {
		return fmt.Errorf("%q is reserved for the cluster's own pods", text)
	}
	return checkSecretName(text)
}

// CheckArchitecture returns an error if a text cannot be a value of kubernetes.io/arch.
func CheckArchitecture(text string) error {
	if len(validation.IsValidLabelValue(text)) > 0 {
		return fmt.Errorf("%q is not a valid label value", text)
	}
	return nil
}

// Defaults of a supervisor's container.
const (
	// The supervisor requests little CPU and has no limit, which would throttle output. It requests the memory of a
	// supervisor whose kernel puts out many small messages, about 90 MiB. While it has less, a node that runs out of
	// memory kills processes first that have more than they requested. Its memory limit is the part of the log that a
	// failing disk leaves in memory, and supervisorWork: 64 MiB read ahead of the kernel, 64 MiB that clients have
	// sent, and a few of the largest messages, each as it came and once for each framing, until the garbage collector
	// has run. The page cache of the log's part on disk is charged too, but the kernel reclaims it.
	defaultSupervisorCPU    = "50m"
	defaultSupervisorMemory = "128Mi"
	supervisorWork          = 512 << 20 // bytes
)

// Values of SupervisorRules.User.
const (
	UserAuto      = "auto"      // UserNamespace on OpenShift, else UserFixed
	UserFixed     = "fixed"     // the user that podbuild sets
	UserNamespace = "namespace" // the one that the cluster chooses for the namespace
)

// ArchAny in SupervisorRules.Architectures says that nodes of every architecture have the supervisor's image.
const ArchAny = "any"

// SupervisorRules are the policy's settings of the supervisor's container. A text that is "" means its default.
type SupervisorRules struct {
	CPU           string   `yaml:"cpu"`           // request, a quantity; the container has no CPU limit
	Memory        string   `yaml:"memory"`        // request, a quantity
	MemoryLimit   string   `yaml:"memoryLimit"`   // default: what the log may take of it, and 512 MiB, or the request
	User          string   `yaml:"user"`          // UserAuto, UserFixed or UserNamespace; "": UserAuto
	Architectures []string `yaml:"architectures"` // kubernetes.io/arch of nodes that can run the image, or ArchAny
	PullPolicy    string   `yaml:"pullPolicy"`    // Always, IfNotPresent or Never; "": the cluster decides by the image's tag
	PullSecrets   []string `yaml:"pullSecrets"`   // of the kernels' namespace
}

// WithDefaults returns the rules for a supervisor whose log may take so many bytes of memory.
func (r SupervisorRules) WithDefaults(logMemory int64) SupervisorRules {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&r.CPU, defaultSupervisorCPU)
	def(&r.Memory, defaultSupervisorMemory)
	limit := resource.NewQuantity(logMemory+supervisorWork, resource.BinarySI)
	if request, err := parseQuantity(r.Memory); err == nil && request.Cmp(*limit) > 0 {
		limit = &request
	}
	def(&r.MemoryLimit, limit.String())
	return r
}

// Problems reports what is wrong, by the key of the policy and the number of an entry.
func (r SupervisorRules) Problems(report func(key string, i int, err error)) {
	quantities := map[string]resource.Quantity{}
	for _, q := range []struct{ key, text string }{{"cpu", r.CPU}, {"memory", r.Memory}, {"memoryLimit", r.MemoryLimit}} {
		if q.text == "" {
			continue
		}
		if err := checkQuantity(q.text); err != nil {
			report(q.key, 0, err)
			continue
		}
		quantities[q.key] = resource.MustParse(q.text)
	}
	limit, limited := quantities["memoryLimit"]
	if request, ok := quantities["memory"]; ok && limited && limit.Cmp(request) < 0 {
		report("memoryLimit", 0, fmt.Errorf("%s is less than the request, %s", r.MemoryLimit, r.Memory))
	}
	if !slices.Contains([]string{"", UserAuto, UserFixed, UserNamespace}, r.User) {
		report("user", 0, fmt.Errorf("%q is not %s, %s or %s", r.User, UserAuto, UserFixed, UserNamespace))
	}
	for i, arch := range r.Architectures {
		if err := CheckArchitecture(arch); err != nil {
			report("architectures", i, err)
		}
	}
	switch corev1.PullPolicy(r.PullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		report("pullPolicy", 0, fmt.Errorf("%q is not Always, IfNotPresent or Never", r.PullPolicy))
	}
	for i, name := range r.PullSecrets {
		if err := checkSecretName(name); err != nil {
			report("pullSecrets", i, err)
		}
	}
}
