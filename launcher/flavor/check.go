package flavor

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of a file.
const (
	maxFlavors = 1000
	maxName    = 40 // bytes
	maxCount   = 1 << 20
	maxText    = 200     // bytes of a label
	maxBytes   = 1 << 20 // of the file
)

// validName matches names of flavors. A name is part of a URL and of kernelspecs' names, where "--" separates it.
var validName = regexp.MustCompile(`^[a-z0-9]+([.-][a-z0-9]+)*$`)

// migProfile matches names of MIG profiles (NVIDIA Multi-Instance GPU User Guide, "MIG profiles"): 1g.10gb, 1g.5gb.me.
var migProfile = regexp.MustCompile(`^[1-9][0-9]*g\.[1-9][0-9]*gb(\.[a-z]+)*$`)

// problems returns what is wrong with one flavor.
func (f *Flavor) problems() (list []string) {
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	wrong(!validName.MatchString(f.Name) || len(f.Name) > maxName,
		"name: %s is not a name of lower-case letters and digits, with single '-' or '.' between them, of at most %d bytes",
		quoted(f.Name), maxName)
	wrong(len(f.Label) > maxText, "label: has more than %d bytes", maxText)
	var set, all []string
	for _, k := range f.kinds() {
		all = append(all, k.key)
		if k.set {
			set = append(set, k.key)
		}
	}
	wrong(len(set) == 0, "has no kind; exactly one is needed of %s", strings.Join(all, ", "))
	wrong(len(set) > 1, "has the kinds %s; exactly one is needed", strings.Join(set, " and "))
	f.checkDevices(wrong)
	if f.DRA != nil {
		f.DRA.check(wrong)
	}
	wrong(f.Park && f.Replica == nil,
		"park: needs the kind replica: only whole GPUs that pods share by time-slicing can be given back")
	if f.Park && f.Replica != nil {
		wrong(strings.Contains(f.Replica.Resource, "mig-"),
			"park: %s is a part of a GPU, which NVIDIA's driver does not save", quoted(f.Replica.Resource))
	}
	wrong(f.None && f.Units != nil && f.Units.Amount != 0, "units: a flavor without a GPU counts as no GPU")
	wrong(f.Placeholders != nil, "placeholders: was removed; use the component placeholders of deploy/kubernetes, or the "+
		"chart's placeholders")
	wrong(!(f.PricePerHour >= 0 && f.PricePerHour <= math.MaxFloat64), "pricePerHour: is not a number from 0")
	wrong(f.JobsGiveWay < 0, "jobsGiveWay: is negative")
	for key, value := range f.NodeSelector {
		wrong(len(validation.IsQualifiedName(key)) > 0, "nodeSelector: %s is not a valid label key", quoted(key))
		wrong(len(validation.IsValidLabelValue(value)) > 0, "nodeSelector: %s is not a valid label value", quoted(value))
	}
	for i, t := range f.Tolerations {
		wrong(t.Key != "" && len(validation.IsQualifiedName(t.Key)) > 0,
			"tolerations[%d].key: %s is not a valid taint key", i, quoted(t.Key))
		wrong(!slices.Contains([]string{"", "Equal", "Exists"}, t.Operator),
			"tolerations[%d].operator: is not Equal or Exists", i)
		wrong(t.Key == "" && t.Operator != "Exists",
			"tolerations[%d]: a toleration without a key needs the operator Exists", i)
		wrong(t.Operator == "Exists" && t.Value != "", "tolerations[%d].value: must be absent with the operator Exists", i)
		wrong(!slices.Contains([]string{"", "NoSchedule", "PreferNoSchedule", "NoExecute"}, t.Effect),
			"tolerations[%d].effect: is not NoSchedule, PreferNoSchedule or NoExecute", i)
		wrong(t.TolerationSeconds != nil && t.Effect != "NoExecute",
			"tolerations[%d].tolerationSeconds: needs the effect NoExecute", i)
	}
	wrong(f.RuntimeClass != "" && len(validation.IsDNS1123Subdomain(f.RuntimeClass)) > 0,
		"runtimeClass: %s is not a valid Kubernetes name", quoted(f.RuntimeClass))
	slices.Sort(list)
	return list
}

// checkDevices checks the kinds that ask for extended resources.
func (f *Flavor) checkDevices(wrong func(bad bool, format string, args ...any)) {
	number := func(key string, n, least, most int64) {
		wrong(n < least || n > most, "%s: %d is not a number from %d to %d", key, n, least, most)
	}
	resource := func(key, name string) {
		wrong(!strings.Contains(name, "/") || len(validation.IsQualifiedName(name)) > 0 ||
			strings.HasPrefix(name, "requests.") || strings.Contains(name, "kubernetes.io/"),
			"%s: %s is not the name of an extended resource like amd.com/gpu", key, quoted(name))
	}
	if d := f.GPU; d != nil {
		number("gpu.count", d.Count, 0, maxCount)
	}
	if m := f.MIG; m != nil {
		wrong(!migProfile.MatchString(m.Profile), "mig.profile: %s is not a profile like 1g.10gb", quoted(m.Profile))
		wrong(!slices.Contains([]string{"", "mixed", "single"}, m.Strategy), "mig.strategy: is not mixed or single")
		wrong(m.Strategy == "single" && len(f.NodeSelector) == 0,
			"mig.strategy: single needs a nodeSelector, since the resource's name does not tell the size")
		number("mig.count", m.Count, 0, maxCount)
	}
	if r := f.Replica; r != nil {
		if r.Resource != "" {
			resource("replica.resource", r.Resource)
		}
		number("replica.replicas", r.Replicas, 2, 1000)
	}
	if m := f.GPUMem; m != nil {
		number("gpuMem.units", m.Units, 1, maxCount)
		number("gpuMem.corePercent", m.CorePercent, 0, 100)
		number("gpuMem.perGPU", m.PerGPU, 0, maxCount)
		wrong(m.PerGPU > 0 && m.PerGPU < m.Units, "gpuMem.perGPU: is less than gpuMem.units: a share is of one GPU")
	}
	if h := f.HAMi; h != nil {
		number("hami.count", h.Count, 0, maxCount)
		number("hami.memoryMiB", h.MemoryMiB, 0, 1<<30)
		number("hami.memoryPercent", h.MemoryPercent, 0, 100)
		number("hami.corePercent", h.CorePercent, 0, 100)
		wrong(h.MemoryMiB > 0 && h.MemoryPercent > 0, "hami: has both memoryMiB and memoryPercent")
	}
	if r := f.Resource; r != nil {
		resource("resource.name", r.Name)
		number("resource.count", r.Count, 0, maxCount)
	}
}

// maxAlternatives is the bound of firstAvailable (Kubernetes API, resource.k8s.io/v1: DeviceRequest).
const maxAlternatives = 8

func (d *DRA) check(wrong func(bad bool, format string, args ...any)) {
	request := func(key string, r *Request) {
		wrong(len(validation.IsDNS1123Subdomain(r.DeviceClass)) > 0,
			"%sdeviceClass: %s is not the name of a device class", key, quoted(r.DeviceClass))
		wrong(r.Count < 0 || r.Count > 32, "%scount: %d is not a number from 1 to 32", key, r.Count)
		wrong(len(r.Selectors) > 32, "%sselectors: there are more than 32", key)
		for i, s := range r.Selectors {
			wrong(strings.TrimSpace(s) == "", "%sselectors[%d]: is empty", key, i)
		}
	}
	single := d.DeviceClass != "" || len(d.Selectors) > 0 || d.Request.Count != 0
	switch {
	case d.Template != "":
		wrong(len(validation.IsDNS1123Subdomain(d.Template)) > 0, "dra.template: %s is not a valid Kubernetes name",
			quoted(d.Template))
		wrong(d.DeviceClass != "" || len(d.Selectors) > 0 || len(d.FirstAvailable) > 0,
			"dra: has a template, which says all that the claim asks for; only count may stand beside it")
	case len(d.FirstAvailable) > 0:
		wrong(single, "dra: has both a request of its own and firstAvailable")
		wrong(len(d.FirstAvailable) > maxAlternatives, "dra.firstAvailable: there are more than %d", maxAlternatives)
		for i := range d.FirstAvailable {
			request("dra.firstAvailable["+strconv.Itoa(i)+"].", &d.FirstAvailable[i])
		}
	default:
		request("dra.", &d.Request)
	}
}

// quoted returns a text of the file for an error.
func quoted(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "..."
	}
	return strconv.Quote(text)
}
