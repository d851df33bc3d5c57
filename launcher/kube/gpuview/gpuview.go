// Package gpuview knows which GPUs the nodes of a cluster have, who holds them, and what a pod waits for. It reads
// nodes, other pods, resource slices and resource claims through informers, as far as the gateway may. The launcher
// brings the pods of kernels.
//
// Begin with Watch, which starts the informers, and Machines.View, which returns the view. WaitOf tells what a pod
// waits for. The goroutines of the informers, and the one that looks at the gateway's rights, belong to the group that
// Watch gets. No request is made while the lock of a resource is held.
package gpuview

import (
	"cmp"
	"encoding/json"
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

// Pod is a pod that may hold GPUs. Its holder has all but amount, devices and time.
type Pod struct {
	Pod     *corev1.Pod
	Holder  launcher.GPUHolder
	Samples []api.GPU
	Warm    bool // it is that of a warm kernel
}

// View returns the nodes that have GPUs, with who holds them. pods are those of kernels. Other pods are added as far as
// they are seen.
func (m *Machines) View(pods []Pod) launcher.GPUs {
	known := map[types.UID]bool{}
	for i := range pods {
		known[pods[i].Pod.UID] = true
	}
	seen := m.list()
	for _, pod := range seen.pods {
		if !known[pod.UID] {
			pods = append(pods, Pod{Pod: pod})
		}
	}
	view := launcher.GPUs{Nodes: gpuNodes(seen, pods), Missing: seen.missing}
	view.Sort()
	return view
}

// gpuNodes returns the nodes that have GPUs, with who holds them. Nodes that only a pod names have unknown totals.
func gpuNodes(seen seenMachines, pods []Pod) []launcher.GPUNode {
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
		for name, amount := range podspec.GPUAmounts(p.Pod) {
			if p.Warm && p.Pod.Spec.NodeName == "" {
				continue // it holds nothing yet
			}
			pool := poolOf(nodeOf(found, p.Pod.Spec.NodeName), string(name))
			if p.Warm {
				pool.Warm = append(pool.Warm, p.holds(float64(amount), string(name)))
			} else {
				pool.Holders = append(pool.Holders, p.holds(float64(amount), string(name)))
			}
		}
	}
	claimed := addClaims(found, seen.slices, seen.claims, pods)
	for i := range pods {
		p := &pods[i]
		if p.Holder.Kernel != "" && len(p.Pod.Spec.ResourceClaims) > 0 && !claimed[p.Pod.UID] && !p.hasEnded() {
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

// isPlaceholder reports whether a pod only keeps room for kernels: it belongs to no kernel, and its priority is
// negative. The scheduler removes it as soon as a kernel needs the room, so its GPUs count as free.
func (p *Pod) isPlaceholder() bool {
	return p.Holder.Kernel == "" && p.Pod.Spec.Priority != nil && *p.Pod.Spec.Priority < 0
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
func (p *Pod) holds(amount float64, resource string) launcher.GPUHolder {
	h := p.Holder
	h.Namespace, h.Pod = p.Pod.Namespace, p.Pod.Name
	h.Amount, h.Ending = amount, p.Pod.DeletionTimestamp != nil
	h.Since = cmp.Or(podstatus.Scheduled(p.Pod), p.Pod.CreationTimestamp.Time).UTC()
	if resource == string(gpushareMemory) {
		h.Devices = gpushareOf(p.Pod, amount)
	}
	h.Measure(p.Samples)
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

// trimPod keeps what gpuNodes reads of a pod, so that all pods of a cluster need little memory.
func trimPod(o any) (any, error) {
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

// Rooms returns how many kernels of each flavor fit, by the flavor's name. It looks at labels, and at no taints.
// Flavors with resource claims are not known.
func Rooms(view launcher.GPUs, flavors []flavor.Flavor) map[string]launcher.GPURoom {
	rooms := map[string]launcher.GPURoom{}
	for i := range flavors {
		if asks := podspec.RequestOf(&flavors[i]); asks.Amount > 0 {
			rooms[flavors[i].Name] = roomFor(view, string(asks.Counted), float64(asks.Amount), flavors[i].NodeSelector)
		}
	}
	return rooms
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
