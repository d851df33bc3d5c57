package wish

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// maxID is the largest user or group id that Kubernetes accepts.
const maxID = 1<<31 - 1

// clientVariables are the variables of a client that change the pod. These and all others are part of the kernel's
// environment.
var clientVariables = []string{
	"KERNEL_CPUS",
	"KERNEL_CPUS_LIMIT",
	"KERNEL_GID",
	"KERNEL_GPUS",
	"KERNEL_GPUS_LIMIT",
	"KERNEL_IMAGE",
	"KERNEL_LAUNCH_TIMEOUT",
	"KERNEL_MEMORY",
	"KERNEL_MEMORY_LIMIT",
	"KERNEL_NAMESPACE",
	"KERNEL_POD_NAME",
	"KERNEL_SERVICE_ACCOUNT_NAME",
	"KERNEL_UID",
	"KERNEL_USERNAME",
	"KERNEL_VOLUMES",
	"KERNEL_VOLUME_MOUNTS",
	"KERNEL_WORKING_DIR",
}

// volumeKinds are the kinds of volumes that a policy can allow. Volumes of the node, and kinds that Kubernetes has
// deprecated, are missing.
var volumeKinds = []string{
	"configMap",
	"csi",
	"downwardAPI",
	"emptyDir",
	"ephemeral",
	"image",
	"nfs",
	"persistentVolumeClaim",
	"projected",
	"secret",
}

// Policy is what an operator allows kernelspecs and clients to set in a kernel's pod. Some things no policy can allow:
// host paths and namespaces, privileged containers, and secrets whose names begin with "ekg-".
type Policy struct {
	NonRoot     bool        `yaml:"nonRoot"` // no kernel runs as user 0, whatever its image says
	Kernelspecs SpecRules   `yaml:"kernelspecs"`
	Clients     ClientRules `yaml:"clients"`
	OwnerNames  OwnerNames  `yaml:"ownerNames"` // how {owner} is written
	Home        *Home       `yaml:"home"`       // nil: kernels have no home of their owner
	Shared      []Shared    `yaml:"shared"`     // volumes that all kernels have

	OwnerNamespace *OwnerNamespace `yaml:"ownerNamespace"` // nil: the kernels of all owners share a namespace

	Supervisor       SupervisorRules `yaml:"supervisor"`
	JobPriorityClass string          `yaml:"jobPriorityClass"` // of jobs' pods whose kernelspec names none; "": the cluster's
	// EvictIdleAfter is how long a kernel is idle before autoscalers may evict its pod to remove a node; 0: never.
	EvictIdleAfter time.Duration `yaml:"evictIdleAfter"`

	Labels      map[string]string `yaml:"labels"`      // of every kernel's pod: templates with labelMarks, by key
	LabelGroups Patterns          `yaml:"labelGroups"` // groups of the owner that {group} stands for; nil: all
}

// SpecRules are the rules for metadata.ekg of kernelspecs.
type SpecRules struct {
	Allow            []string `yaml:"allow"` // keys of metadata.ekg, and the same keys in pod.spec and pod.metadata
	Bounds           `yaml:",inline"`
	Capabilities     []string `yaml:"capabilities"` // Linux capabilities that may be added to the kernel's container
	ImagePullSecrets Patterns `yaml:"imagePullSecrets"`
	NodeSelectorKeys Patterns `yaml:"nodeSelectorKeys"` // labels of nodes, in nodeSelector and node affinity
	Objects          []string `yaml:"objects"`          // kinds of objects that may be created with a kernel's pod
	Ports            Ranges   `yaml:"ports"`            // of the kernel's container, for its workers
	PriorityClasses  Patterns `yaml:"priorityClasses"`
	RuntimeClasses   Patterns `yaml:"runtimeClasses"`
	Schedulers       Patterns `yaml:"schedulers"`
	ServiceTypes     []string `yaml:"serviceTypes"`   // of Services among the objects
	StorageClasses   Patterns `yaml:"storageClasses"` // of claims among the objects, and of ephemeral volumes

	ServiceAccountTokens Patterns `yaml:"serviceAccountTokens"` // accounts whose token kernels may get

	WarmGPUs bool `yaml:"warmGPUs"` // warm kernels may hold GPUs
}

// ClientRules are the rules for the KERNEL_* variables that clients send.
type ClientRules struct {
	Allow      []string `yaml:"allow"` // variables that may change the pod
	Bounds     `yaml:",inline"`
	Namespaces []string `yaml:"namespaces"` // exact names, besides podbuild.Options.Namespace
}

// Bounds limit values that both kernelspecs and clients can set.
type Bounds struct {
	ConfigMaps             Patterns `yaml:"configMaps"`
	GroupIDs               Ranges   `yaml:"groupIDs"`
	Images                 Patterns `yaml:"images"`
	Maxima                 Maxima   `yaml:"maxima"`
	PersistentVolumeClaims Patterns `yaml:"persistentVolumeClaims"`
	Secrets                Patterns `yaml:"secrets"`
	ServiceAccounts        Patterns `yaml:"serviceAccounts"`
	UserIDs                Ranges   `yaml:"userIDs"`
	Volumes                []string `yaml:"volumes"` // kinds
}

// Patterns match a text if one of them does: each * in a pattern stands for any number of any characters. An empty list
// matches nothing.
type Patterns []string

func (p Patterns) matches(text string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool { return podspec.MatchesPattern(pattern, text) })
}

// Ranges are ranges of user or group ids.
type Ranges []IDRange

// IDRange holds the ids from First to Last, both included; in YAML "1000-1999" or 1000.
type IDRange struct{ First, Last int64 }

// UnmarshalYAML reads a range.
func (r *IDRange) UnmarshalYAML(n *yaml.Node) error {
	first, last, two := strings.Cut(n.Value, "-")
	if !two {
		last = first
	}
	var err, err2 error
	r.First, err = strconv.ParseInt(first, 10, 64)
	r.Last, err2 = strconv.ParseInt(last, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || err2 != nil || r.First < 0 || r.First > r.Last || r.Last > maxID {
		return fmt.Errorf("line %d: %q is not a range like 1000-1999", n.Line, n.Value)
	}
	return nil
}

func (r Ranges) contains(id int64) bool {
	return slices.ContainsFunc(r, func(r IDRange) bool { return r.First <= id && id <= r.Last })
}

func (r Ranges) String() string {
	texts := make([]string, len(r))
	for i, r := range r {
		texts[i] = strconv.FormatInt(r.First, 10)
		if r.Last != r.First {
			texts[i] += "-" + strconv.FormatInt(r.Last, 10)
		}
	}
	return listOrNothing(texts)
}

// Maxima are the largest requests and limits, by a pattern of resource names.
type Maxima map[string]resource.Quantity

// UnmarshalYAML reads a mapping of resources to quantities, which replaces the present one.
func (m *Maxima) UnmarshalYAML(n *yaml.Node) error {
	var texts map[string]yaml.Node
	if err := n.Decode(&texts); err != nil {
		return err
	}
	*m = Maxima{}
	for name, value := range texts {
		q, err := parseQuantity(value.Value)
		if value.Kind != yaml.ScalarNode || err != nil {
			return fmt.Errorf("line %d: %q is not a quantity like 4, 500m or 16Gi", value.Line, value.Value)
		}
		(*m)[name] = q
	}
	return nil
}

// limit returns the smallest maximum of a resource, and false if it has no maximum.
func (m Maxima) limit(name string) (resource.Quantity, bool) {
	var least resource.Quantity
	found := false
	for pattern, q := range m {
		if podspec.MatchesPattern(pattern, name) && (!found || q.Cmp(least) < 0) {
			least, found = q, true
		}
	}
	return least, found
}

// quantityText matches short quantities with small exponents: comparing 1e2147483647 with another quantity would use
// all memory.
var quantityText = regexp.MustCompile(`^[0-9.+-]{1,30}([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})$`)

// parseQuantity parses a quantity that is not negative.
func parseQuantity(text string) (resource.Quantity, error) {
	if !quantityText.MatchString(text) {
		return resource.Quantity{}, errors.New("not a quantity")
	}
	q, err := resource.ParseQuantity(text)
	if err == nil && q.Sign() < 0 {
		err = errors.New("negative")
	}
	return q, err
}

// DefaultPolicy returns the policy that applies without a policy file. Kernelspecs, which the operator writes, may use
// all keys. But they may refer to no secrets, get no tokens, open no ports and create no objects. Clients may set their
// kernel's size, user and working directory.
func DefaultPolicy() *Policy {
	everything := Patterns{"*"}
	return &Policy{
		OwnerNames: NamesEscaped,
		Kernelspecs: SpecRules{
			Allow: slices.Clone(kernelspecs.PodKeys),
			Bounds: Bounds{
				ConfigMaps: everything, GroupIDs: Ranges{{0, maxID}}, Images: everything, PersistentVolumeClaims: everything,
				ServiceAccounts: everything, UserIDs: Ranges{{0, maxID}},
				Volumes: []string{
					"configMap",
					"downwardAPI",
					"emptyDir",
					"ephemeral",
					"image",
					"nfs",
					"persistentVolumeClaim",
					"projected",
					"secret",
				},
			},
			ImagePullSecrets: everything, NodeSelectorKeys: everything, PriorityClasses: everything, RuntimeClasses: everything,
			Schedulers: everything, ServiceTypes: []string{string(corev1.ServiceTypeClusterIP)}, StorageClasses: everything,
		},
		Clients: ClientRules{
			Allow: []string{
				"KERNEL_CPUS",
				"KERNEL_CPUS_LIMIT",
				"KERNEL_GID",
				"KERNEL_GPUS",
				"KERNEL_GPUS_LIMIT",
				"KERNEL_LAUNCH_TIMEOUT",
				"KERNEL_MEMORY",
				"KERNEL_MEMORY_LIMIT",
				"KERNEL_UID",
				"KERNEL_USERNAME",
				"KERNEL_WORKING_DIR",
			},
			Bounds: Bounds{
				GroupIDs: Ranges{{1, maxID}}, UserIDs: Ranges{{1, maxID}},
				Maxima: Maxima{
					"cpu":    resource.MustParse("4"),
					"memory": resource.MustParse("16Gi"),
					"*/*":    resource.MustParse("1"),
				},
			},
		},
	}
}

// ReadPolicy reads a policy file: YAML with the keys of Policy. Keys that are absent have the values of DefaultPolicy;
// a key that is present replaces the default as a whole. The error has one line for each problem: file:line: text.
func ReadPolicy(file string) (*Policy, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p, problems := parsePolicy(data)
	errs := make([]error, len(problems))
	for i, text := range problems {
		errs[i] = errors.New(file + ":" + text)
	}
	return p, errors.Join(errs...)
}

// parsePolicy decodes and checks a policy. Each problem begins with its line.
func parsePolicy(data []byte) (*Policy, []string) {
	p := DefaultPolicy()
	root, problems := flavor.DecodeYAML(data, p)
	if len(problems) > 0 {
		return nil, problems
	}
	check := func(names, known []string, what string, path ...string) {
		for i, name := range names {
			if !slices.Contains(known, name) {
				problems = append(problems, fmt.Sprintf("%d: %s: %q is not %s; valid: %s",
					flavor.LineOf(root, i, path...), strings.Join(path, "."), name, what, strings.Join(known, ", ")))
			}
		}
	}
	check(p.Kernelspecs.Allow, kernelspecs.PodKeys, "a key of metadata.ekg", "kernelspecs", "allow")
	check(p.Kernelspecs.Objects, kindsOfObjects(), "a kind that is created with a pod", "kernelspecs", "objects")
	check(p.Kernelspecs.ServiceTypes, serviceTypes, "a type of Services that can be allowed", "kernelspecs",
		"serviceTypes")
	check(p.Clients.Allow, clientVariables, "a variable that changes a pod", "clients", "allow")
	check(p.Kernelspecs.Volumes, volumeKinds, "a kind of volume that can be allowed", "kernelspecs", "volumes")
	check(p.Clients.Volumes, volumeKinds, "a kind of volume that can be allowed", "clients", "volumes")
	for i, name := range p.Clients.Namespaces {
		if len(validation.IsDNS1123Label(name)) > 0 {
			problems = append(problems, fmt.Sprintf("%d: clients.namespaces: %q is not a valid namespace name",
				flavor.LineOf(root, i, "clients", "namespaces"), name))
		}
	}
	if p.OwnerNames != NamesEscaped && p.OwnerNames != NamesSafe {
		problems = append(problems, fmt.Sprintf("%d: ownerNames: %q is not valid; valid: %s, %s",
			flavor.LineOf(root, 0, "ownerNames"), p.OwnerNames, NamesEscaped, NamesSafe))
	}
	p.Supervisor.Problems(func(key string, i int, err error) {
		problems = append(problems, fmt.Sprintf("%d: supervisor.%s: %v", flavor.LineOf(root, i, "supervisor", key), key, err))
	})
	if p.JobPriorityClass != "" {
		if err := checkPriorityClass(p.JobPriorityClass); err != nil {
			problems = append(problems, fmt.Sprintf("%d: jobPriorityClass: %v", flavor.LineOf(root, 0, "jobPriorityClass"), err))
		}
	}
	if p.EvictIdleAfter < 0 {
		problems = append(problems, fmt.Sprintf("%d: evictIdleAfter: is negative", flavor.LineOf(root, 0, "evictIdleAfter")))
	}
	p.sharedProblems(func(i int, key, text string) {
		problems = append(problems, fmt.Sprintf("%d: shared[%d].%s: %s", flavor.LineOf(root, i, "shared"), i, key, text))
	})
	if p.Home != nil {
		p.Home.problems(func(key, text string) {
			problems = append(problems, fmt.Sprintf("%d: home.%s: %s", flavor.LineOf(root, 0, "home", key), key, text))
		})
	}
	if p.OwnerNamespace != nil {
		p.OwnerNamespace.problems(func(key string, n int, text string) {
			problems = append(problems, fmt.Sprintf("%d: ownerNamespace.%s: %s",
				flavor.LineOf(root, n, "ownerNamespace", key), key, text))
		})
	}
	p.labelProblems(func(key, text string) {
		problems = append(problems, fmt.Sprintf("%d: labels.%s: %s", flavor.LineOf(root, 0, "labels", key), key, text))
	})
	p.ownerProblems(func(l ruleList, i int, text string) {
		problems = append(problems, fmt.Sprintf("%d: %s: %q %s",
			flavor.LineOf(root, i, l.under, l.key), l.path(), l.patterns[i], text))
	})
	return p, problems
}

// Namespaces returns the namespaces that clients may choose besides podbuild.Options.Namespace, sorted.
func (p *Policy) Namespaces() []string {
	if !slices.Contains(p.Clients.Allow, "KERNEL_NAMESPACE") {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(p.Clients.Namespaces)))
}

// listOrNothing returns what is allowed for an error, or "nothing".
func listOrNothing(allowed []string) string {
	if len(allowed) == 0 {
		return "nothing"
	}
	return strings.Join(allowed, ", ")
}

func (m Maxima) String() string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		q := m[name]
		texts = append(texts, name+" "+q.String())
	}
	return listOrNothing(texts)
}
