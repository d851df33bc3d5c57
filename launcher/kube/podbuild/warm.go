package podbuild

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/wish"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// WarmKind is what the warm kernels of a kernelspec are made from.
type WarmKind struct {
	// Content depends on all that a pod of a kernel without any wish of a client has.
	Content string
	// Mode is api.WarmProcess or api.WarmContainer.
	Mode string
	// GPUs are the resources with GPUs that such a pod asks for.
	GPUs []corev1.ResourceName

	namespace string
	start     launcher.Request
	fixed     string            // what no start may change, in JSON
	env       map[string]string // the variables of the kernel's container
}

// NewWarmKind returns the kind for a plain start of a kernelspec. The error says why it can have no warm kernels.
func NewWarmKind(o Options, start launcher.Request) (WarmKind, error) {
	k := WarmKind{Mode: launcher.WarmMode(start.Spec), start: start}
	pod, err := k.plain(o, start.ID, time.Time{})
	if err != nil {
		return k, err
	}
	switch {
	case len(pod.Spec.ResourceClaims) > 0:
		return k, errors.New("its kernels get a resource claim, and a warm kernel that holds one cannot give way")
	case podspec.GPUs(pod) > 0 && !o.mayWarmGPUs():
		return k, errors.New(noWarmGPUs)
	case podspec.GPUs(pod) > 0 && cannotGiveWay(pod) != "":
		return k, errors.New(cannotGiveWay(pod))
	}
	if pod.Annotations[podspec.AnnotationKernelObjects] != "" {
		return k, errors.New("its kernels have objects of their own, which name their owner")
	}
	k.GPUs = slices.Sorted(maps.Keys(podspec.GPUAmounts(pod)))
	if field := ownerField(pod); field != "" {
		return k, fmt.Errorf("a container reads %s, which a warm kernel's pod has only when it has its owner", field)
	}
	k.namespace = pod.Namespace
	if k.fixed, k.env, err = fixedPart(pod); err != nil {
		return k, err
	}
	owned := launcher.Request{ID: start.ID, Spec: start.Spec, Flavor: start.Flavor, Owner: wish.ExampleOwner}
	if _, _, ok := k.Fit(o, owned,
		podspec.Record{ID: start.ID, Generation: 1, Owner: wish.ExampleOwner, SpecName: start.Spec.Name}); !ok {
		return k, errors.New("the pods of its kernels are made for their owners, as with {owner} in a volume")
	}
	env, err := json.Marshal(k.env)
	if err != nil {
		return k, err
	}
	sum := sha256.Sum256([]byte(k.Mode + k.fixed + string(env)))
	k.Content = hex.EncodeToString(sum[:16])
	return k, nil
}

// noWarmGPUs says why kernelspecs with GPUs have no warm kernels.
const noWarmGPUs = "its kernels get GPUs, and the policy's kernelspecs.warmGPUs does not let warm kernels hold any"

// cannotGiveWay says why nothing tells that a kernel lacks the GPUs of a warm kernel's pod. It is "" if the scheduler
// does.
func cannotGiveWay(pod *corev1.Pod) string {
	for _, name := range slices.Sorted(maps.Keys(pod.Labels)) {
		if strings.HasPrefix(name, podspec.KueueDomain) {
			return fmt.Sprintf("its kernels get GPUs by a queue of Kueue (label %s), which does not say when it needs those "+
				"of warm kernels", name)
		}
	}
	switch scheduler := pod.Spec.SchedulerName; {
	case len(podspec.GPUAmounts(pod)) > 1:
		return "its kernels get GPUs of several resources, and warm kernels give way only for one"
	case podspec.AnyPositive(podspec.GPURequestOf(pod).Shares):
		return "its kernels share GPUs, and the scheduler does not say when it needs those of warm kernels"
	case scheduler != "" && scheduler != corev1.DefaultSchedulerName:
		return fmt.Sprintf("its kernels get GPUs by the scheduler %s, which may not say when it needs those of warm "+
			"kernels", scheduler)
	}
	return ""
}

// mayWarmGPUs reports whether warm kernels may hold GPUs.
func (o Options) mayWarmGPUs() bool { return o.withDefaults().Policy.Kernelspecs.WarmGPUs }

// ownerField returns a field of the pod that a container's variable reads too early, or "". Containers read labels and
// annotations when they start, and the start that takes a warm kernel's pod sets these later.
func ownerField(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
				continue
			}
			path := e.ValueFrom.FieldRef.FieldPath
			if strings.HasPrefix(path, "metadata.labels") || strings.HasPrefix(path, "metadata.annotations") {
				return path
			}
		}
	}
	return ""
}

// plain returns a pod of a kernel without an owner.
func (k WarmKind) plain(o Options, id string, created time.Time) (*corev1.Pod, error) {
	req := k.start
	req.ID, req.Owner = id, ""
	return Build(o, req, podspec.Record{ID: id, Generation: 1, SpecName: req.Spec.Name, Created: created,
		Protocol: api.ProtocolVersion})
}

// Build returns the pod of a warm kernel. rec needs the ID, Created and MasterKey.
func (k WarmKind) Build(o Options, rec podspec.Record) (*corev1.Pod, error) {
	pod, err := k.plain(o, rec.ID, rec.Created)
	if err != nil {
		return nil, err
	}
	if err := changeConfig(pod, func(c *api.Config) { c.Warm = k.Mode }); err != nil {
		return nil, err
	}
	pod.Labels[podspec.LabelManagedBy] = podspec.ManagerWarm
	pod.Annotations[podspec.AnnotationWarm] = k.Content
	// The pod may be evicted while it has no owner. The annotations of its kernel replace these two.
	pod.Annotations[podspec.AnnotationSafeToEvict] = "true"
	delete(pod.Annotations, podspec.AnnotationDoNotDisrupt)
	if rec.MasterKey != "" {
		pod.Annotations[podspec.AnnotationMasterKey] = rec.MasterKey
	}
	return pod, nil
}

// Fit returns what makes a warm kernel the kernel of a request: the Assignment for its supervisor, and the labels and
// annotations of its pod. The pod is the one that an ordinary start would create. ok is false if a warm kernel of this
// kind cannot become the kernel of the request.
func (k WarmKind) Fit(
	o Options, req launcher.Request, rec podspec.Record,
) (pod *corev1.Pod, a api.Assignment, ok bool) {
	pod, err := Build(o, req, rec)
	if err != nil {
		return nil, a, false // an ordinary start says why
	}
	fixed, env, err := fixedPart(pod)
	if err != nil || fixed != k.fixed || pod.Namespace != k.namespace {
		return nil, a, false
	}
	if a.Env, ok = launcher.ChangedVariables(k.Mode, k.env, env); !ok {
		return nil, a, false
	}
	for name := range a.Env {
		reference := "$(" + name + ")" // the kubelet would expand it
		if strings.Contains(fixed, reference) || slices.ContainsFunc(slices.Collect(maps.Values(env)),
			func(value string) bool { return strings.Contains(value, reference) }) {
			return nil, a, false
		}
	}
	for name, value := range a.Env {
		a.Env[name] = unescapeDollars(value)
	}
	cfg, err := supervisorConfig(pod)
	if err != nil {
		return nil, a, false
	}
	a.Owner, a.WorkingDir = req.Owner, cfg.WorkingDir
	return pod, a, storeValues(pod, a.Env) == nil
}

// storeValues adds the values of the client's variables to the stored request: the container does not have them.
func storeValues(pod *corev1.Pod, values map[string]string) error {
	var stored storedRequest
	if err := json.Unmarshal([]byte(pod.Annotations[annotationRequest]), &stored); err != nil {
		return err
	}
	stored.Values = values
	text, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	if len(text) > maxRequest {
		return errors.New("they are too long for an annotation")
	}
	pod.Annotations[annotationRequest] = string(text)
	return nil
}

// fixedPart returns what of a pod cannot be changed later, in JSON, and the plain variables of the kernel's container.
// It leaves out what only tells one kernel of the kernelspec from another.
func fixedPart(pod *corev1.Pod) (fixed string, env map[string]string, err error) {
	pod = pod.DeepCopy()
	id := pod.Labels[podspec.LabelKernel]
	if err := changeConfig(pod, func(c *api.Config) {
		c.Owner, c.WorkingDir = "", ""
	}); err != nil {
		return "", nil, err
	}
	env = map[string]string{}
	k := podspec.KernelOf(pod)
	k.Env = slices.DeleteFunc(k.Env, func(e corev1.EnvVar) bool {
		if e.ValueFrom == nil {
			env[e.Name] = e.Value
		}
		return e.ValueFrom == nil
	})
	text, err := json.Marshal(pod.Spec)
	if err != nil {
		return "", nil, err
	}
	for name, value := range env {
		env[name] = strings.ReplaceAll(value, id, "")
	}
	return strings.ReplaceAll(string(text), id, ""), env, nil
}

// supervisorConfig returns the supervisor's configuration in a pod.
func supervisorConfig(pod *corev1.Pod) (cfg api.Config, err error) {
	e := configVariable(pod)
	if e == nil {
		return cfg, fmt.Errorf("the pod has no variable %s", api.PodConfigVariable)
	}
	return cfg, json.Unmarshal([]byte(unescapeDollars(e.Value)), &cfg)
}

// configVariable returns the variable with the supervisor's configuration in a pod, or nil.
func configVariable(pod *corev1.Pod) *corev1.EnvVar {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == podspec.ContainerSupervisor {
			for j := range c.Env {
				if c.Env[j].Name == api.PodConfigVariable {
					return &c.Env[j]
				}
			}
		}
	}
	return nil
}

// changeConfig changes the supervisor's configuration in a pod.
func changeConfig(pod *corev1.Pod, change func(*api.Config)) error {
	cfg, err := supervisorConfig(pod)
	if err != nil {
		return err
	}
	change(&cfg)
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	configVariable(pod).Value = escapeDollars(string(text))
	return nil
}
