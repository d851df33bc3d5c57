package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/elastic-kernel-gateway/ekg/kernelspecs"
)

// maxID is the largest user or group id that Kubernetes takes.
const maxID = 1<<31 - 1

// clientVariables are the KERNEL_* that change a kernel's pod. All others, and these too, are part of the kernel's
// environment.
var clientVariables = []string{"KERNEL_CPUS", "KERNEL_CPUS_LIMIT", "KERNEL_GID", "KERNEL_GPUS", "KERNEL_GPUS_LIMIT", "KERNEL_IMAGE",
	"KERNEL_LAUNCH_TIMEOUT", "KERNEL_MEMORY", "KERNEL_MEMORY_LIMIT", "KERNEL_NAMESPACE", "KERNEL_POD_NAME", "KERNEL_SERVICE_ACCOUNT_NAME",
	"KERNEL_UID", "KERNEL_USERNAME", "KERNEL_VOLUMES", "KERNEL_VOLUME_MOUNTS", "KERNEL_WORKING_DIR"}

// volumeKinds are the kinds of volumes that a policy can allow. Kinds that reach into a node, and those that Kubernetes has
// given up, are not among them.
var volumeKinds = []string{"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "nfs", "persistentVolumeClaim",
	"projected", "secret"}

// Policy is what an operator lets kernelspecs and clients say of a kernel's pod. What it does not name nobody can allow:
// host paths and namespaces, privileged containers, the service account's token, secrets whose names begin with "ekg-".
type Policy struct {
	NonRoot     bool       `yaml:"nonRoot"` // no kernel runs as user 0, whatever its image says
	Kernelspecs SpecRules  `yaml:"kernelspecs"`
	Clients     ClientRule `yaml:"clients"`
}

// SpecRules are the rules for metadata.ekg of kernelspecs.
type SpecRules struct {
	Allow            []string `yaml:"allow"` // keys of metadata.ekg; in pod.spec and pod.metadata the same keys
	Bounds           `yaml:",inline"`
	Capabilities     []string `yaml:"capabilities"` // that may be added to the kernel's container
	ImagePullSecrets Patterns `yaml:"imagePullSecrets"`
	NodeSelectorKeys Patterns `yaml:"nodeSelectorKeys"` // labels of nodes, in nodeSelector and node affinity
	PriorityClasses  Patterns `yaml:"priorityClasses"`
	RuntimeClasses   Patterns `yaml:"runtimeClasses"`
	Schedulers       Patterns `yaml:"schedulers"`
}

// ClientRule are the rules for the KERNEL_* that clients send.
type ClientRule struct {
	Allow      []string `yaml:"allow"` // variables that have an effect on the pod
	Bounds     `yaml:",inline"`
	Namespaces []string `yaml:"namespaces"` // besides the one that kernels are in anyway; exact names
}

// Bounds limit values that both can give.
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

// Patterns match texts: each is a text in which every * stands for any number of any characters. An empty list matches nothing.
type Patterns []string

func (p Patterns) match(text string) bool {
	return slices.ContainsFunc(p, func(pattern string) bool { return matches(pattern, text) })
}

func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}

// Ranges are ranges of user or group ids.
type Ranges []IDRange

// IDRange is the ids from First to Last, both included; in YAML "1000-1999" or 1000.
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
		return fmt.Errorf("line %d: %q is not a range of ids like 1000-1999", n.Line, n.Value)
	}
	return nil
}

func (r Ranges) contain(id int64) bool {
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
	return orNothing(texts)
}

// Maxima are the most that requests and limits may ask for, by the resource's name, which may be a pattern.
type Maxima map[string]resource.Quantity

// UnmarshalYAML reads a mapping of resources to quantities; what was there before is forgotten.
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

// of is the least that the maxima give for a resource; false if there is no bound.
func (m Maxima) of(name string) (resource.Quantity, bool) {
	var least resource.Quantity
	found := false
	for pattern, q := range m {
		if matches(pattern, name) && (!found || q.Cmp(least) < 0) {
			least, found = q, true
		}
	}
	return least, found
}

// quantityText is a quantity that is short, with an exponent that is small: comparing 1e2147483647 with anything would take
// all memory there is.
var quantityText = regexp.MustCompile(`^[0-9.+-]{1,30}([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})$`)

// parseQuantity parses a quantity that is not negative.
func parseQuantity(text string) (resource.Quantity, error) {
	if !quantityText.MatchString(text) {
		return resource.Quantity{}, errors.New("it is not an amount")
	}
	q, err := resource.ParseQuantity(text)
	if err == nil && q.Sign() < 0 {
		err = errors.New("it is negative")
	}
	return q, err
}

// DefaultPolicy is what holds without a policy file. Kernelspecs, which the operator writes, may use all keys, but name
// no secrets; clients may set what concerns their kernel's size and user.
func DefaultPolicy() *Policy {
	everything := Patterns{"*"}
	return &Policy{
		Kernelspecs: SpecRules{
			Allow: slices.Clone(kernelspecs.PodKeys),
			Bounds: Bounds{
				ConfigMaps: everything, GroupIDs: Ranges{{0, maxID}}, Images: everything, PersistentVolumeClaims: everything,
				ServiceAccounts: everything, UserIDs: Ranges{{0, maxID}},
				Volumes: []string{"configMap", "downwardAPI", "emptyDir", "ephemeral", "image", "nfs", "persistentVolumeClaim", "projected", "secret"},
			},
			ImagePullSecrets: everything, NodeSelectorKeys: everything, PriorityClasses: everything, RuntimeClasses: everything,
			Schedulers: everything,
		},
		Clients: ClientRule{
			Allow: []string{"KERNEL_CPUS", "KERNEL_CPUS_LIMIT", "KERNEL_GID", "KERNEL_GPUS", "KERNEL_GPUS_LIMIT", "KERNEL_LAUNCH_TIMEOUT",
				"KERNEL_MEMORY", "KERNEL_MEMORY_LIMIT", "KERNEL_UID", "KERNEL_USERNAME", "KERNEL_WORKING_DIR"},
			Bounds: Bounds{
				GroupIDs: Ranges{{1, maxID}}, UserIDs: Ranges{{1, maxID}},
				Maxima: Maxima{"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi"), "*/*": resource.MustParse("1")},
			},
		},
	}
}

// ReadPolicy reads a policy file: YAML with the keys of Policy. What it leaves out is as in DefaultPolicy, what it gives
// replaces that as a whole. The error has all that is wrong, each as file:line: text.
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

var (
	yamlLine    = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:)?\s*line (\d+): (.*)$`)
	yamlUnknown = regexp.MustCompile(`^field (.*) not found in type .*$`)
	yamlWrong   = regexp.MustCompile(`^cannot unmarshal (.*) into .*$`)
)

// parsePolicy reads a policy. The problems begin with the line.
func parsePolicy(data []byte) (*Policy, []string) {
	p := DefaultPolicy()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(p); errors.Is(err, io.EOF) {
		return p, nil // empty
	} else if err != nil {
		texts := []string{err.Error()}
		var wrong *yaml.TypeError
		if errors.As(err, &wrong) {
			texts = wrong.Errors
		}
		for i, text := range texts {
			texts[i] = yamlProblem(text)
		}
		return nil, texts
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, []string{" there is more than one document in it"}
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, []string{yamlProblem(err.Error())}
	}
	var problems []string
	check := func(names, known []string, what string, path ...string) {
		for i, name := range names {
			if !slices.Contains(known, name) {
				problems = append(problems, fmt.Sprintf("%d: %s: %q is not %s; there is: %s",
					lineOf(&root, i, path), strings.Join(path, "."), name, what, strings.Join(known, ", ")))
			}
		}
	}
	check(p.Kernelspecs.Allow, kernelspecs.PodKeys, "a key of metadata.ekg", "kernelspecs", "allow")
	check(p.Clients.Allow, clientVariables, "a variable that changes a pod", "clients", "allow")
	check(p.Kernelspecs.Volumes, volumeKinds, "a kind of volume that can be allowed", "kernelspecs", "volumes")
	check(p.Clients.Volumes, volumeKinds, "a kind of volume that can be allowed", "clients", "volumes")
	for i, name := range p.Clients.Namespaces {
		if len(validation.IsDNS1123Label(name)) > 0 {
			problems = append(problems, fmt.Sprintf("%d: clients.namespaces: %q is not the name of a namespace",
				lineOf(&root, i, []string{"clients", "namespaces"}), name))
		}
	}
	return p, problems
}

// yamlProblem turns a message of the YAML decoder into "line: text" in words that speak of the file and not of Go.
func yamlProblem(text string) string {
	m := yamlLine.FindStringSubmatch(strings.ReplaceAll(text, "\n", " "))
	if m == nil {
		return " " + strings.TrimPrefix(text, "yaml: ")
	}
	text = m[2]
	if u := yamlUnknown.FindStringSubmatch(text); u != nil {
		text = "there is no key " + u[1] + " here"
	} else if u := yamlWrong.FindStringSubmatch(text); u != nil {
		text = strings.ReplaceAll(u[1], "!!", "") + " is of the wrong kind"
	}
	return m[1] + ": " + text
}

// lineOf is the line of the item i of the list at a path of a document.
func lineOf(n *yaml.Node, i int, path []string) int {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	for _, key := range path {
		for j := 0; j+1 < len(n.Content); j += 2 {
			if n.Content[j].Value == key {
				n = n.Content[j+1]
				break
			}
		}
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.SequenceNode && i < len(n.Content) {
		n = n.Content[i]
	}
	return n.Line
}

// Namespaces lists the namespaces that clients may choose, besides the one that kernels are in anyway, in order.
func (p *Policy) Namespaces() []string {
	if !slices.Contains(p.Clients.Allow, "KERNEL_NAMESPACE") {
		return nil
	}
	return slices.Compact(slices.Sorted(slices.Values(p.Clients.Namespaces)))
}

// orNothing lists what is allowed, for a message.
func orNothing(allowed []string) string {
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
	return orNothing(texts)
}
