package gpuview

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Attributes of devices, as NVIDIA's driver sets them: kubernetes-sigs/dra-driver-nvidia-gpu, README.md.
const (
	attributeModel resourceapi.QualifiedName = "productName"
	attributeUUID  resourceapi.QualifiedName = "uuid"
)

// deviceKey names a device of dynamic resource allocation.
type deviceKey struct{ driver, pool, device string }

// placedDevice says where a device is.
type placedDevice struct {
	node  string
	index int // in the node's pool of the driver
}

// addClaims adds the devices of drivers of dynamic resource allocation to nodes, and who holds them. A driver counts if
// its name has "gpu", or if a kernel holds a device of it. It returns the pods that have a claim whose devices it has
// found.
func addClaims(nodes map[string]*launcher.GPUNode, offered []*resourceapi.ResourceSlice,
	claims []*resourceapi.ResourceClaim, pods []Pod,
) map[types.UID]bool {
	byUID := map[types.UID]*Pod{}
	for i := range pods {
		byUID[pods[i].Pod.UID] = &pods[i]
	}
	shown := driversOf(claims, byUID)
	places := addDevices(nodes, newestOf(offered), shown)
	found := map[types.UID]bool{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, user := range c.Status.ReservedFor {
			if user.Resource != "pods" {
				continue
			}
			found[user.UID] = found[user.UID] || isPlaced(places, c)
			h := launcher.GPUHolder{}
			if p := byUID[user.UID]; p != nil {
				if p.hasEnded() {
					continue
				}
				h = p.holds(0, "")
			}
			h.Namespace, h.Pod = c.Namespace, user.Name
			if at := c.Status.Allocation.AllocationTimestamp; at != nil {
				h.Since = at.UTC()
			}
			// Pods that share a claim share its devices.
			addHolder(nodes, places, c, h, 1/float64(len(c.Status.ReservedFor)), byUID[user.UID])
		}
	}
	return found
}

// isPlaced reports whether it is known on which node a device of a claim is.
func isPlaced(places map[deviceKey]placedDevice, c *resourceapi.ResourceClaim) bool {
	for _, r := range c.Status.Allocation.Devices.Results {
		if _, ok := places[deviceKey{r.Driver, r.Pool, r.Device}]; ok {
			return true
		}
	}
	return false
}

// addHolder adds a pod to the pools of the devices that a claim has. The pod holds this part of each.
func addHolder(nodes map[string]*launcher.GPUNode, places map[deviceKey]placedDevice, c *resourceapi.ResourceClaim,
	h launcher.GPUHolder, part float64, p *Pod,
) {
	type poolKey struct{ node, driver string }
	holds := map[poolKey]map[int]float64{}
	for _, r := range c.Status.Allocation.Devices.Results {
		place, ok := places[deviceKey{r.Driver, r.Pool, r.Device}]
		if !ok || r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		key := poolKey{place.node, r.Driver}
		if holds[key] == nil {
			holds[key] = map[int]float64{}
		}
		holds[key][place.index] += part
	}
	for key, devices := range holds {
		one := h
		one.Devices = devices
		for _, amount := range devices {
			one.Amount += amount
		}
		if p != nil {
			one.Measure(p.Samples)
		}
		pool := poolOf(nodes[key.node], key.driver)
		pool.Holders = append(pool.Holders, one)
	}
}

// driversOf returns the drivers of which a kernel holds a device.
func driversOf(claims []*resourceapi.ResourceClaim, byUID map[types.UID]*Pod) map[string]bool {
	shown := map[string]bool{}
	for _, c := range claims {
		ours := slices.ContainsFunc(c.Status.ReservedFor, func(user resourceapi.ResourceClaimConsumerReference) bool {
			p := byUID[user.UID]
			return p != nil && p.Holder.Kernel != ""
		})
		if !ours || c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			shown[r.Driver] = true
		}
	}
	return shown
}

// newestOf leaves out slices of earlier generations of their pool.
func newestOf(offered []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	type poolKey struct{ driver, pool string }
	newest := map[poolKey]int64{}
	for _, s := range offered {
		key := poolKey{s.Spec.Driver, s.Spec.Pool.Name}
		newest[key] = max(newest[key], s.Spec.Pool.Generation)
	}
	return slices.DeleteFunc(slices.Clone(offered), func(s *resourceapi.ResourceSlice) bool {
		return s.Spec.Pool.Generation < newest[poolKey{s.Spec.Driver, s.Spec.Pool.Name}]
	})
}

// addDevices adds the devices that are on one node. Each driver has one pool on a node.
func addDevices(nodes map[string]*launcher.GPUNode, offered []*resourceapi.ResourceSlice, shown map[string]bool,
) map[deviceKey]placedDevice {
	slices.SortFunc(offered, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	places := map[deviceKey]placedDevice{}
	for _, s := range offered {
		if s.Spec.NodeName == nil || !shown[s.Spec.Driver] && !strings.Contains(s.Spec.Driver, "gpu") {
			continue
		}
		n := nodeOf(nodes, *s.Spec.NodeName)
		pool := poolOf(n, s.Spec.Driver)
		pool.Unit = launcher.UnitGPU
		for _, d := range s.Spec.Devices {
			index := len(pool.Devices)
			places[deviceKey{s.Spec.Driver, s.Spec.Pool.Name, d.Name}] = placedDevice{n.Name, index}
			uuid := cmp.Or(attribute(d, attributeUUID), d.Name)
			pool.Devices = append(pool.Devices, launcher.GPUDevice{Index: index, UUID: uuid, Total: 1})
			pool.Model = cmp.Or(pool.Model, attribute(d, attributeModel))
			pool.Total++
		}
	}
	return places
}

// attribute returns a text that a driver says of a device, or "".
func attribute(d resourceapi.Device, name resourceapi.QualifiedName) string {
	if a, ok := d.Attributes[name]; ok && a.StringValue != nil {
		return *a.StringValue
	}
	return ""
}

// trimSlice keeps what addDevices reads.
func trimSlice(o any) (any, error) {
	s, ok := o.(*resourceapi.ResourceSlice)
	if !ok {
		return o, nil // a cache.DeletedFinalStateUnknown
	}
	small := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion},
		Spec:       resourceapi.ResourceSliceSpec{Driver: s.Spec.Driver, Pool: s.Spec.Pool, NodeName: s.Spec.NodeName},
	}
	for _, d := range s.Spec.Devices {
		one := resourceapi.Device{Name: d.Name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		for _, name := range []resourceapi.QualifiedName{attributeModel, attributeUUID} {
			if a, ok := d.Attributes[name]; ok {
				one.Attributes[name] = a
			}
		}
		small.Spec.Devices = append(small.Spec.Devices, one)
	}
	return small, nil
}

// trimClaim keeps what addClaims reads.
func trimClaim(o any) (any, error) {
	c, ok := o.(*resourceapi.ResourceClaim)
	if !ok {
		return o, nil // a cache.DeletedFinalStateUnknown
	}
	small := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace, UID: c.UID,
		ResourceVersion: c.ResourceVersion}}
	small.Status.ReservedFor = c.Status.ReservedFor
	if a := c.Status.Allocation; a != nil {
		small.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: a.AllocationTimestamp,
			Devices: resourceapi.DeviceAllocationResult{Results: a.Devices.Results}}
	}
	return small, nil
}

// hasEnded reports whether a pod holds nothing any more, or nothing yet.
func (p *Pod) hasEnded() bool {
	return p.Pod.Spec.NodeName == "" || p.Pod.Status.Phase == corev1.PodSucceeded || p.Pod.Status.Phase == corev1.PodFailed
}

// addUnknownClaim adds a kernel whose claims the gateway does not see.
func addUnknownClaim(nodes map[string]*launcher.GPUNode, p *Pod) {
	pool := poolOf(nodeOf(nodes, p.Pod.Spec.NodeName), claimPool)
	pool.Unit = launcher.UnitGPU
	pool.Holders = append(pool.Holders, p.holds(podspec.GPUs(p.Pod).Float(), claimPool))
}
