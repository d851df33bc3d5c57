// Package flavor reads the operator's file of flavors: the names by which users choose a GPU, such as t4 or a100-10g. A
// Flavor says which resources a kernel asks for, on which nodes it runs, and how much it counts against limits. cmd/ekg
// reads the file with Open and gives it to gateway and launcher. Package launcher/kube/podbuild applies a flavor to a
// pod. Begin with Flavor. The package starts no goroutine, and nobody modifies a flavor.
package flavor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/elastic-kernel-gateway/ekg/launcher/gpu"
)

// ProductLabel is the label of nodes that NVIDIA's feature discovery sets to the model of their GPUs, with "-" in place
// of spaces.
const ProductLabel = "nvidia.com/gpu.product"

// Flavor is one entry of the file. Exactly one of the kinds is set. The values of a kernel's flavor are stored with the
// kernel as JSON.
type Flavor struct {
	Name  string `yaml:"name" json:"name"`             // see validName
	Label string `yaml:"label" json:"label,omitempty"` // for people: "T4, 16 GiB"; "": the name

	// Kinds.
	GPU      *Devices  `yaml:"gpu" json:"gpu,omitempty"`
	MIG      *MIG      `yaml:"mig" json:"mig,omitempty"`
	Replica  *Replica  `yaml:"replica" json:"replica,omitempty"`
	GPUMem   *GPUMem   `yaml:"gpuMem" json:"gpuMem,omitempty"`
	HAMi     *HAMi     `yaml:"hami" json:"hami,omitempty"`
	DRA      *DRA      `yaml:"dra" json:"dra,omitempty"`
	Resource *Extended `yaml:"resource" json:"resource,omitempty"`
	None     bool      `yaml:"none" json:"none,omitempty"` // no GPU

	// Park lets the kernels that share a GPU take turns on it: each gives it back while it is idle, and keeps its
	// variables. It is allowed beside replica.
	Park bool `yaml:"park" json:"park,omitempty"`

	// Units are the GPUs that a kernel of this flavor counts as, for limits and GPU hours. nil: as the kind says.
	Units *Units `yaml:"units" json:"units,omitempty"`

	NodeSelector map[string]string `yaml:"nodeSelector" json:"nodeSelector,omitempty"`
	Tolerations  []Toleration      `yaml:"tolerations" json:"tolerations,omitempty"`
	RuntimeClass string            `yaml:"runtimeClass" json:"runtimeClass,omitempty"`

	// JobsGiveWay is how long a notebook's kernel of this flavor waits for a GPU before a job ends to free one. 0: no job
	// ends for it.
	JobsGiveWay time.Duration `yaml:"jobsGiveWay" json:"-"`

	// Unlisted leaves the flavor out of the list of kernelspecs. It is chosen by its name.
	Unlisted bool `yaml:"unlisted" json:"-"`

	// Placeholders was removed. Its error says what to use.
	Placeholders any `yaml:"placeholders" json:"-"`

	// Shown to users, without any effect on the pod.
	Spot         bool    `yaml:"spot" json:"spot,omitempty"`                 // its nodes can be taken away at short notice
	PricePerHour float64 `yaml:"pricePerHour" json:"pricePerHour,omitempty"` // in the operator's currency; 0: not shown

	// Users and Groups may choose it. Without either, all users may.
	Users  []string `yaml:"users" json:"users,omitempty"`
	Groups []string `yaml:"groups" json:"groups,omitempty"`
}

// Units are a number of GPUs.
type Units struct{ gpu.Amount }

// UnmarshalYAML reads a number of GPUs such as 2 or 0.25.
func (u *Units) UnmarshalYAML(n *yaml.Node) (err error) {
	if u.Amount, err = gpu.ParseAmount(n.Value); err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: units: %w", n.Line, cmp.Or(err, errors.New("not a number")))
	}
	return nil
}

// Devices are whole GPUs of NVIDIA's device plugin: nvidia.com/gpu.
type Devices struct {
	Count int64 `yaml:"count" json:"count,omitempty"` // 0: 1
}

// MIG is a slice of a GPU (NVIDIA/k8s-device-plugin, README.md: MIG strategies).
type MIG struct {
	Profile string `yaml:"profile" json:"profile"` // such as 1g.10gb
	// With the strategy "single" all GPUs of a node have slices of one size, which are called nvidia.com/gpu. "" is
	// "mixed": the resource has the profile in its name.
	Strategy string `yaml:"strategy" json:"strategy,omitempty"`
	Count    int64  `yaml:"count" json:"count,omitempty"` // 0: 1
}

// Replica is a share of a GPU that the device plugin offers several times, by time-slicing or by MPS.
type Replica struct {
	Resource string `yaml:"resource" json:"resource,omitempty"` // "": nvidia.com/gpu.shared
	Replicas int64  `yaml:"replicas" json:"replicas"`           // of each GPU
}

// GPUMem is memory of a GPU in the units of gpushare and cGPU: aliyun.com/gpu-mem. A unit is a GiB unless the operator
// of the device plugin has chosen MiB.
type GPUMem struct {
	Units       int64 `yaml:"units" json:"units"`
	CorePercent int64 `yaml:"corePercent" json:"corePercent,omitempty"` // aliyun.com/gpu-core.percentage; 0: not asked for
	PerGPU      int64 `yaml:"perGPU" json:"perGPU,omitempty"`           // units of a whole GPU, for its size; 0: not known
}

// HAMi is a share of a GPU by Project-HAMi/HAMi: its README.md and docs/config.md name the resources.
type HAMi struct {
	Count         int64 `yaml:"count" json:"count,omitempty"`                 // GPUs of which it has a share; 0: 1
	MemoryMiB     int64 `yaml:"memoryMiB" json:"memoryMiB,omitempty"`         // of each
	MemoryPercent int64 `yaml:"memoryPercent" json:"memoryPercent,omitempty"` // of each, instead of MemoryMiB
	CorePercent   int64 `yaml:"corePercent" json:"corePercent,omitempty"`     // of each
}

// DRA asks by a resource claim (kubernetes.io/docs: Dynamic Resource Allocation).
type DRA struct {
	// Template names a ResourceClaimTemplate in the kernels' namespace. Otherwise ekg creates one from the rest.
	Template string `yaml:"template" json:"template,omitempty"`

	Request `yaml:",inline" json:",inline"`
	// FirstAvailable are alternatives, the preferred one first, instead of a single request.
	FirstAvailable []Request `yaml:"firstAvailable" json:"firstAvailable,omitempty"`
}

// Request is what a claim asks for.
type Request struct {
	DeviceClass string   `yaml:"deviceClass" json:"deviceClass,omitempty"`
	Selectors   []string `yaml:"selectors" json:"selectors,omitempty"` // expressions in CEL that the device fulfills
	Count       int64    `yaml:"count" json:"count,omitempty"`         // of devices; 0: 1
}

// Extended is any other extended resource: GPUs of other makers, and similar accelerators.
type Extended struct {
	Name  string `yaml:"name" json:"name"`
	Count int64  `yaml:"count" json:"count,omitempty"` // 0: 1
}

// Toleration is a toleration of a pod, with the names of the Kubernetes API.
type Toleration struct {
	Key               string `yaml:"key" json:"key,omitempty"`
	Operator          string `yaml:"operator" json:"operator,omitempty"` // "", Equal or Exists
	Value             string `yaml:"value" json:"value,omitempty"`
	Effect            string `yaml:"effect" json:"effect,omitempty"` // "" or an effect of a taint
	TolerationSeconds *int64 `yaml:"tolerationSeconds" json:"tolerationSeconds,omitempty"`
}

// Title returns the flavor's name for people.
func (f *Flavor) Title() string {
	if f.Label != "" {
		return f.Label
	}
	return f.Name
}

// Kind returns the key of the flavor's kind in the file.
func (f *Flavor) Kind() string {
	for _, k := range f.kinds() {
		if k.set {
			return k.key
		}
	}
	return ""
}

type kind struct {
	key string
	set bool
}

func (f *Flavor) kinds() []kind {
	return []kind{{"dra", f.DRA != nil}, {"gpu", f.GPU != nil}, {"gpuMem", f.GPUMem != nil}, {"hami", f.HAMi != nil},
		{"mig", f.MIG != nil}, {"none", f.None}, {"replica", f.Replica != nil}, {"resource", f.Resource != nil}}
}

// Size returns the GPUs that a kernel of this flavor counts as. Of alternatives the largest counts.
func (f *Flavor) Size() gpu.Amount {
	switch {
	case f.Units != nil:
		return f.Units.Amount
	case f.GPU != nil:
		return gpu.Whole(Count(f.GPU.Count))
	case f.MIG != nil:
		return gpu.Whole(Count(f.MIG.Count))
	case f.Replica != nil:
		return max(1, gpu.One/gpu.Amount(f.Replica.Replicas))
	case f.GPUMem != nil && f.GPUMem.PerGPU > 0:
		return max(1, gpu.Whole(f.GPUMem.Units)/gpu.Amount(f.GPUMem.PerGPU))
	case f.HAMi != nil && f.HAMi.MemoryPercent > 0:
		return gpu.Whole(Count(f.HAMi.Count)) * gpu.Amount(f.HAMi.MemoryPercent) / 100
	case f.HAMi != nil:
		return gpu.Whole(Count(f.HAMi.Count))
	case f.DRA != nil:
		n := Count(f.DRA.Count)
		for i := range f.DRA.FirstAvailable {
			n = max(n, f.DRA.FirstAvailable[i].Count)
		}
		return gpu.Whole(n)
	case f.Resource != nil:
		return gpu.Whole(Count(f.Resource.Count))
	case f.None:
		return 0
	}
	return gpu.One
}

// Count returns a count of the file, where 0 stands for 1.
func Count(n int64) int64 { return max(n, 1) }

// MayChoose reports whether a user may choose the flavor.
func (f *Flavor) MayChoose(user string, groups []string) bool {
	return len(f.Users) == 0 && len(f.Groups) == 0 || slices.Contains(f.Users, user) ||
		slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(f.Groups, g) })
}

// document is the whole file.
type document struct {
	Flavors []Flavor `yaml:"flavors"`
}

// read returns a file's text, which is not nil unless there is an error.
func read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxBytes {
		return nil, fmt.Errorf("%s: has more than %d bytes", file, maxBytes)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err // without what was read
	}
	return text, nil
}

func parse(file string, data []byte) ([]Flavor, error) {
	var d document
	root, problems := DecodeYAML(data, &d)
	if len(d.Flavors) > maxFlavors {
		problems = append(problems, fmt.Sprintf(" there are more than %d flavors", maxFlavors))
		d.Flavors = d.Flavors[:maxFlavors]
	}
	seen := map[string]int{}
	for i := range d.Flavors {
		if root == nil {
			break // the document could not be decoded
		}
		f := &d.Flavors[i]
		line := LineOf(root, i, "flavors")
		for _, text := range f.problems() {
			problems = append(problems, fmt.Sprintf("%d: flavors[%d]: %s", line, i, text))
		}
		if first, twice := seen[f.Name]; twice {
			problems = append(problems,
				fmt.Sprintf("%d: flavors[%d]: line %d already has the flavor %q", line, i, first, f.Name))
		}
		seen[f.Name] = line
	}
	if len(problems) > 0 {
		errs := make([]error, len(problems))
		for i, text := range problems {
			errs[i] = errors.New(file + ":" + text)
		}
		return nil, errors.Join(errs...)
	}
	return d.Flavors, nil
}
