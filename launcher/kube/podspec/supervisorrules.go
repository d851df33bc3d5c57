package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Values of SupervisorRules.User.
const (
	UserAuto      = "auto"      // UserNamespace on OpenShift, else UserFixed
	UserFixed     = "fixed"     // the user that podspec sets
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

// withDefaults returns the rules for a supervisor whose log may take so many bytes of memory.
func (r SupervisorRules) withDefaults(logMemory int64) SupervisorRules {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&r.CPU, DefaultSupervisorCPU)
	def(&r.Memory, DefaultSupervisorMemory)
	limit := resource.NewQuantity(logMemory+supervisorWork, resource.BinarySI)
	if request, err := parseQuantity(r.Memory); err == nil && request.Cmp(*limit) > 0 {
		limit = &request
	}
	def(&r.MemoryLimit, limit.String())
	return r
}

// problems reports what is wrong, by the key of the policy and the number of an entry.
func (r SupervisorRules) problems(report func(key string, i int, err error)) {
	quantities := map[string]resource.Quantity{}
	for _, q := range []struct{ key, text string }{{"cpu", r.CPU}, {"memory", r.Memory}, {"memoryLimit", r.MemoryLimit}} {
		if q.text == "" {
			continue
		}
		if err := CheckQuantity(q.text); err != nil {
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
		if err := CheckSecretName(name); err != nil {
			report("pullSecrets", i, err)
		}
	}
}
