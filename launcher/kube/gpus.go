package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

const (
	// gpushareDevices is a node's number of GPUs that are booked by memory. AliyunContainerService/gpushare-device-plugin
	// offers it.
	gpushareDevices corev1.ResourceName = "aliyun.com/gpu-count"
	gpushareMemory  corev1.ResourceName = "aliyun.com/gpu-mem"

	// Annotations of a pod with the GPUs that gpushare has chosen: one index, or JSON of container, index and units.
	gpushareIndex      = "ALIYUN_COM_GPU_MEM_IDX"
	gpushareAllocation = "scheduler.framework.gpushare.allocation"

	// Labels of a node, of NVIDIA/gpu-feature-discovery and of ACK.
	labelReplicas   = "nvidia.com/gpu.replicas"
	labelModelOfACK = "aliyun.accelerator/nvidia_name"

	nodeReady = "Ready" // status of a node that takes pods

	// claimPool has the kernels whose GPUs are resource claims.
	claimPool = "resource claims"
)

// gpuPod is a pod that may hold GPUs. Its holder has all but amount, devices and time.
type gpuPod struct {
	pod     *corev1.Pod
	holder  launcher.GPUHolder
	samples []api.GPU
	warm    bool // it is that of a warm kernel
}

// ViewGPUs implements launcher.GPUViewer.
func (l *Launcher) ViewGPUs(context.Context) (launcher.GPUs, error) {
	view := l.viewNodes()
	view.Ahead = l.warmAhead()
	view.Sort()
	return view, nil
}

// missingWarm is the reason where fewer warm kernels exist than are wanted, and nothing else is known.
const missingWarm = "not all of its pods have been created"

// warmAhead returns the warm kernels of each kernelspec that wants some.
func (l *Launcher) warmAhead() (all []launcher.Ahead) {
	if l.warm.pods == nil {
		return nil
	}
	pods := map[string][]*corev1.Pod{}
	for _, pod := range l.warmPods() {
		name := specOf(pod)
		pods[name] = append(pods[name], pod)
	}
	for _, a := range l.warm.Ahead() {
		waits := ""
		for _, pod := range pods[a.SpecName] {
			if pod.Spec.NodeName != "" {
				a.Ready++
				continue
			}
			if a.Waiting++; waits == "" {
				waits = podstatus.Explain(pod, l.eventsOf(pod), l.clusterNow()).Text
			}
		}
		switch {
		case waits != "":
			a.Reason = waits
		case a.Ready+a.Waiting < a.Wanted:
			a.Reason = cmp.Or(a.Reason, missingWarm)
		default:
			a.Reason = ""
		}
		all = append(all, a)
	}
	return all
}

// viewNodes returns the view without what is kept ready for each kernelspec.
func (l *Launcher) viewNodes() launcher.GPUs {
	var pods []gpuPod
	known := map[types.UID]bool{}
	l.mu.Lock()
	for _, k := range l.kernels {
		if k.pod == nil || k.removed {
			continue
		}
		known[k.pod.UID] = true
		p := gpuPod{pod: k.pod, holder: launcher.GPUHolder{Kernel: k.id, Owner: k.rec.Owner, SpecName: k.rec.SpecName,
			Flavor: k.rec.Flavor}}
		if k.supervisor.Streaming && k.end == nil {
			p.samples = k.supervisor.Status.GPU
		}
		pods = append(pods, p)
	}
	l.mu.Unlock()
	if l.warm.pods != nil {
		for _, pod := range l.allWarmPods() {
			if rec, err := podspec.ReadRecord(pod); err == nil && !known[pod.UID] {
				known[pod.UID] = true
				pods = append(pods, gpuPod{pod: pod, warm: true, holder: launcher.GPUHolder{Kernel: rec.ID,
					SpecName: rec.SpecName, Flavor: rec.Flavor}})
			}
		}
	}
	seen := l.machines.list()
	for _, pod := range seen.pods {
		if !known[pod.UID] {
			pods = append(pods, gpuPod{pod: pod})
		}
	}
	view := launcher.GPUs{Nodes: gpuNodes(seen, pods), Missing: seen.missing}
	view.Sort()
	return view
}

// gpuNodes returns the nodes that have GPUs, with who holds them. Nodes that only a pod names have unknown totals.
func gpuNodes(seen seenMachines, pods []gpuPod) []launcher.GPUNode {
	found := map[string]*launcher.GPUNode{}
	for _, node := range seen.nodes {
		n := &launcher.GPUNode{Name: node.Name, Labels: node.Labels, Status: nodeStatus(node)}
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && n.Address == "" {
				n.Address = a.Address
			}
		}
		capacity, allocatable := podspec.GPUPools(node.Status.Capacity), podspec.GPUPools(node.Status.Allocatable)
		for name, amount := range capacity {
			n.Pools = append(n.Pools, newPool(node, name, amount, allocatable[name]))
		}
		found[n.Name] = n
	}
	for _, p := range pods {
		if p.hasEnded() || p.isPlaceholder() {
			continue
		}
		for name, amount := range podspec.GPUAmounts(p.pod) {
			if p.warm && p.pod.Spec.NodeName == "" {
				continue // it holds nothing yet
			}
			pool := poolOf(nodeOf(found, p.pod.Spec.NodeName), string(name))
			if p.warm {
				pool.Warm = append(pool.Warm, p.holds(float64(amount), string(name)))
			} else {
				pool.Holders = append(pool.Holders, p.holds(float64(amount), string(name)))
			}
		}
	}
	claimed := addClaims(found, seen.slices, seen.claims, pods)
	for i := range pods {
		p := &pods[i]
		if p.holder.Kernel != "" && len(p.pod.Spec.ResourceClaims) > 0 && !claimed[p.pod.UID] && !p.hasEnded() {
			addUnknownClaim(found, p)
		}
	}
	for name, n := range found {
		if len(n.Pools) == 0 {
			delete(found, name)
		}
	}
	var all []launcher.GPUNode
	for _, n := range found {
		all = append(all, *n)
	}
	return all
}

// isPlaceholder reports whether a pod is none of a kernel, and gives way to each kernel: its priority is negative. What
// it asks for counts as free.
func (p *gpuPod) isPlaceholder() bool {
	return p.holder.Kernel == "" && p.pod.Spec.Priority != nil && *p.pod.Spec.Priority < 0
}

// nodeOf returns a node. It adds one of which only the name is known if there is none.
func nodeOf(nodes map[string]*launcher.GPUNode, name string) *launcher.GPUNode {
	n := nodes[name]
	if n == nil {
		n = &launcher.GPUNode{Name: name}
		nodes[name] = n
	}
	return n
}

// poolOf returns a node's pool of a resource. It makes one with an unknown total if there is none.
func poolOf(n *launcher.GPUNode, resource string) *launcher.GPUPool {
	at := slices.IndexFunc(n.Pools, func(p launcher.GPUPool) bool { return p.Resource == resource })
	if at < 0 {
		at = len(n.Pools)
		n.Pools = append(n.Pools, launcher.GPUPool{Resource: resource, Unit: unitOf(resource, 1, 0)})
	}
	return &n.Pools[at]
}

// newPool returns a node's GPUs of one resource, with its devices where the node tells how many there are.
func newPool(node *corev1.Node, name corev1.ResourceName, capacity, allocatable int64) launcher.GPUPool {
	replicas, err := strconv.Atoi(node.Labels[labelReplicas])
	if err != nil {
		replicas = 1
	}
	devices, perDevice := int64(0), 0.0
	if n, ok := node.Status.Capacity[gpushareDevices]; ok && name == gpushareMemory && n.Value() > 0 {
		devices = min(n.Value(), capacity)
		perDevice = float64(capacity) / float64(devices)
	}
	pool := launcher.GPUPool{
		Resource:  string(name),
		Model:     cmp.Or(node.Labels[flavor.ProductLabel], node.Labels[labelModelOfACK]),
		Unit:      unitOf(string(name), replicas, perDevice),
		Total:     float64(allocatable),
		Unhealthy: float64(max(0, capacity-allocatable)),
	}
	for i := range devices {
		pool.Devices = append(pool.Devices, launcher.GPUDevice{Index: int(i), Total: perDevice})
	}
	return pool
}

// unitOf returns what a resource counts. gpushare counts the memory in GiB, or in MiB if its operator wants that: then
// a GPU has thousands.
func unitOf(resource string, replicas int, perDevice float64) launcher.GPUUnit {
	_, shared := podspec.IsGPU(corev1.ResourceName(resource))
	switch {
	case resource == string(gpushareMemory) && perDevice < 1024:
		return launcher.UnitGiB
	case resource == string(gpushareMemory):
		return launcher.UnitMiB
	case shared:
		return launcher.UnitPart
	case strings.HasSuffix(resource, "gpu.shared"), resource == "nvidia.com/gpu" && replicas > 1:
		return launcher.UnitShare
	}
	return launcher.UnitGPU
}

// holds returns the pod as a holder of an amount of a resource.
func (p *gpuPod) holds(amount float64, resource string) launcher.GPUHolder {
	h := p.holder
	h.Namespace, h.Pod = p.pod.Namespace, p.pod.Name
	h.Amount, h.Ending = amount, p.pod.DeletionTimestamp != nil
	h.Since = cmp.Or(podstatus.Scheduled(p.pod), p.pod.CreationTimestamp.Time).UTC()
	if resource == string(gpushareMemory) {
		h.Devices = gpushareOf(p.pod, amount)
	}
	h.Measure(p.samples)
	return h
}

// gpushareOf returns the units on each GPU that gpushare has given to a pod, or nil if the pod does not say it.
func gpushareOf(pod *corev1.Pod, amount float64) map[int]float64 {
	devices := map[int]float64{}
	var byContainer map[string]map[string]float64
	if json.Unmarshal([]byte(pod.Annotations[gpushareAllocation]), &byContainer) == nil {
		for _, of := range byContainer {
			for index, units := range of {
				if i, err := strconv.Atoi(index); err == nil && i >= 0 && units > 0 {
					devices[i] += units
				}
			}
		}
	}
	if i, err := strconv.Atoi(pod.Annotations[gpushareIndex]); err == nil && i >= 0 && len(devices) == 0 {
		devices[i] = amount
	}
	if len(devices) == 0 {
		return nil
	}
	return devices
}

// nodeStatus is as kubectl prints it.
func nodeStatus(node *corev1.Node) string {
	status := "NotReady"
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			status = nodeReady
		}
	}
	if node.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// trimForGPUs keeps what gpuNodes reads of a pod, so that all pods of a cluster need little memory.
func trimForGPUs(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // a cache.DeletedFinalStateUnknown
	}
	small := &corev1.Pod{}
	small.Name, small.Namespace, small.UID, small.ResourceVersion = pod.Name, pod.Namespace, pod.UID, pod.ResourceVersion
	amounts := podspec.GPUAmounts(pod)
	if len(amounts) == 0 {
		return small, nil
	}
	small.Spec.Priority = pod.Spec.Priority
	small.CreationTimestamp, small.DeletionTimestamp = pod.CreationTimestamp, pod.DeletionTimestamp
	small.Spec.NodeName, small.Status.Phase = pod.Spec.NodeName, pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			small.Status.Conditions = []corev1.PodCondition{c}
		}
	}
	small.Annotations = maps.Clone(pod.Annotations)
	maps.DeleteFunc(small.Annotations, func(name, _ string) bool {
		return name != gpushareIndex && name != gpushareAllocation
	})
	small.Spec.InitContainers = resourcesOf(pod.Spec.InitContainers)
	small.Spec.Containers = resourcesOf(pod.Spec.Containers)
	return small, nil
}

// resourcesOf keeps what containers ask for.
func resourcesOf(all []corev1.Container) []corev1.Container {
	var small []corev1.Container
	for _, c := range all {
		small = append(small, corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return small
}

// FlavorRoom implements launcher.GPUViewer. It looks at labels, and at no taints. Flavors with resource claims are not
// known.
func (l *Launcher) FlavorRoom(_ context.Context, flavors []flavor.Flavor) (
	rooms map[string]launcher.GPURoom, view launcher.GPUs, err error,
) {
	if l.machines.nodes == nil || !l.machines.nodes.HasSynced() {
		return nil, view, nil
	}
	view = l.viewNodes()
	rooms = map[string]launcher.GPURoom{}
	for i := range flavors {
		if resource, amount := podspec.FlavorAmount(&flavors[i]); amount > 0 {
			rooms[flavors[i].Name] = roomFor(view, string(resource), float64(amount), flavors[i].NodeSelector)
		}
	}
	return rooms, view, nil
}

// roomFor counts the kernels that fit on ready nodes with these labels.
func roomFor(view launcher.GPUs, resource string, amount float64, labels map[string]string) (r launcher.GPURoom) {
	for i := range view.Nodes {
		n := &view.Nodes[i]
		fits := n.Status == nodeReady
		for name, value := range labels {
			fits = fits && n.Labels[name] == value
		}
		if !fits {
			continue
		}
		for j := range n.Pools {
			if p := &n.Pools[j]; p.Resource == resource {
				free, total := roomIn(p, amount)
				r.Free, r.Total = r.Free+free, r.Total+total
			}
		}
	}
	return r
}

// roomIn counts how often an amount fits into a pool. Memory must be on one GPU where the node tells them apart.
func roomIn(p *launcher.GPUPool, amount float64) (free, total int) {
	free, total = int(max(0, p.Total-p.Held())/amount), int(p.Total/amount)
	if len(p.Devices) == 0 {
		return free, total
	}
	held, freeOn, totalOn := p.HeldOn(), 0, 0
	for _, d := range p.Devices {
		freeOn += int(max(0, d.Total-held[d.Index]) / amount)
		totalOn += int(d.Total / amount)
	}
	return min(free, freeOn), min(total, totalOn)
}

// missingNodes and missingPods say why the view of GPUs is incomplete.
const (
	missingNodes = "The gateway does not see nodes, so totals are unknown. --watch-gpus and the component watch-gpus " +
		"change that."
	missingPods = "The gateway does not see other pods, so GPUs that they hold count as free. --watch-gpus and the " +
		"component watch-gpus change that."
)

func missing(what string, err error) string {
	return fmt.Sprintf("The gateway cannot list %s: %s.", what, strings.TrimSuffix(podstatus.ExplainError(err).Text, "."))
}
