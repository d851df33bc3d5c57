package gpuview

import (
	"encoding/json"
	"reflect"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

func amounts(of map[string]string) corev1.ResourceList {
	all := corev1.ResourceList{}
	for name, text := range of {
		all[corev1.ResourceName(name)] = resource.MustParse(text)
	}
	return all
}

func gpuTestNode(name string, labels, capacity, allocatable map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{Capacity: amounts(capacity), Allocatable: amounts(allocatable),
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}}
}

func gpuTestPod(name, node string, limits map[string]string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", CreationTimestamp: metav1.Unix(100, 0)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: amounts(limits)}}}}}
	pod.Status.Phase = corev1.PodRunning
	if change != nil {
		change(pod)
	}
	return pod
}

// TestGPUNodes compares whole views.
func TestGPUNodes(t *testing.T) {
	since := time.Unix(100, 0).UTC()
	idle := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	memory := map[string]string{"aliyun.com/gpu-mem": "28", "aliyun.com/gpu-count": "2",
		"aliyun.com/gpu-core.percentage": "200", "cpu": "8"}
	whole := map[string]string{"nvidia.com/gpu": "8"}
	gpushare := func(annotation, text string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Annotations = map[string]string{annotation: text} }
	}
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		pods  []Pod
		want  []launcher.GPUNode
	}{
		"no GPUs": {[]*corev1.Node{gpuTestNode("n", nil, map[string]string{"cpu": "8"}, nil)},
			[]Pod{{Pod: gpuTestPod("p", "n", map[string]string{"cpu": "1"}, nil)}}, nil},
		"whole GPUs": {
			[]*corev1.Node{gpuTestNode("n", map[string]string{flavor.ProductLabel: "Tesla-T4"}, whole,
				map[string]string{"nvidia.com/gpu": "7"})},
			[]Pod{
				{Pod: gpuTestPod("k", "n", map[string]string{"nvidia.com/gpu": "2"}, nil),
					Holder:  launcher.GPUHolder{Kernel: "id", Owner: "ann"},
					Samples: []api.GPU{{BusySince: api.Timestamp(idle)}, {IdleSince: api.Timestamp(idle)}}},
				{Pod: gpuTestPod("foreign", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
					pod.DeletionTimestamp = &metav1.Time{Time: since}
				})},
				{Pod: gpuTestPod("ended", "n", whole, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded })},
				{Pod: gpuTestPod("waits", "", whole, nil)},
			},
			[]launcher.GPUNode{{Name: "n", Address: "10.0.0.1", Status: "Ready", Pools: []launcher.GPUPool{{
				Resource: "nvidia.com/gpu", Model: "Tesla-T4", Unit: launcher.UnitGPU, Total: 7, Unhealthy: 1,
				Holders: []launcher.GPUHolder{
					{Namespace: "ns", Pod: "foreign", Amount: 1, Since: since, Ending: true},
					{Kernel: "id", Owner: "ann", Namespace: "ns", Pod: "k", Amount: 2, Since: since, Measured: 2, Busy: 1},
				}}}}},
		},
		"gpushare": {
			[]*corev1.Node{gpuTestNode("n", map[string]string{labelModelOfACK: "Tesla-T4"}, memory, memory)},
			[]Pod{
				{Pod: gpuTestPod("a", "n", map[string]string{"aliyun.com/gpu-mem": "4"}, gpushare(gpushareIndex, "1")),
					Samples: []api.GPU{{IdleSince: api.Timestamp(idle)}}},
				{Pod: gpuTestPod("b", "n", map[string]string{"aliyun.com/gpu-mem": "6", "aliyun.com/gpu-core.percentage": "30"},
					gpushare(gpushareAllocation, `{"0":{"0":2,"1":4}}`))},
				{Pod: gpuTestPod("c", "n", map[string]string{"aliyun.com/gpu-mem": "1"}, gpushare(gpushareIndex, "-1"))},
			},
			[]launcher.GPUNode{{Name: "n", Address: "10.0.0.1", Status: "Ready", Pools: []launcher.GPUPool{{
				Resource: "aliyun.com/gpu-mem", Model: "Tesla-T4", Unit: launcher.UnitGiB, Total: 28,
				Devices: []launcher.GPUDevice{{Index: 0, Total: 14}, {Index: 1, Total: 14}},
				Holders: []launcher.GPUHolder{
					{Namespace: "ns", Pod: "a", Amount: 4, Devices: map[int]float64{1: 4}, Since: since, Measured: 4,
						IdleSince: idle},
					{Namespace: "ns", Pod: "b", Amount: 6, Devices: map[int]float64{0: 2, 1: 4}, Since: since},
					{Namespace: "ns", Pod: "c", Amount: 1, Since: since},
				}}}}},
		},
		"a pod of low priority makes room": {
			[]*corev1.Node{gpuTestNode("n", nil, whole, whole)},
			[]Pod{
				{Pod: gpuTestPod("room", "n", map[string]string{"nvidia.com/gpu": "1"}, ofPriority(-10))},
				{Pod: gpuTestPod("other", "n", map[string]string{"nvidia.com/gpu": "1"}, ofPriority(0))},
				{Pod: gpuTestPod("k", "n", map[string]string{"nvidia.com/gpu": "1"}, ofPriority(-10)),
					Holder: launcher.GPUHolder{Kernel: "a"}},
			},
			[]launcher.GPUNode{{Name: "n", Address: "10.0.0.1", Status: "Ready", Pools: []launcher.GPUPool{{
				Resource: "nvidia.com/gpu", Unit: launcher.UnitGPU, Total: 8,
				Holders: []launcher.GPUHolder{{Kernel: "a", Namespace: "ns", Pod: "k", Amount: 1, Since: since},
					{Namespace: "ns", Pod: "other", Amount: 1, Since: since}}}}}},
		},
		"replicas": {
			[]*corev1.Node{gpuTestNode("n", map[string]string{labelReplicas: "4"}, whole, whole)}, nil,
			[]launcher.GPUNode{{Name: "n", Address: "10.0.0.1", Status: "Ready", Pools: []launcher.GPUPool{{
				Resource: "nvidia.com/gpu", Unit: launcher.UnitShare, Total: 8}}}},
		},
		"nodes are not seen": {nil,
			[]Pod{{Pod: gpuTestPod("k", "n", map[string]string{"nvidia.com/mig-1g.10gb": "1"}, nil)}},
			[]launcher.GPUNode{{Name: "n", Pools: []launcher.GPUPool{{Resource: "nvidia.com/mig-1g.10gb",
				Unit:    launcher.UnitGPU,
				Holders: []launcher.GPUHolder{{Namespace: "ns", Pod: "k", Amount: 1, Since: since}}}}}},
		},
		"init containers": {nil,
			[]Pod{{Pod: gpuTestPod("k", "n", map[string]string{"nvidia.com/gpu": "1"}, func(pod *corev1.Pod) {
				always := corev1.ContainerRestartPolicyAlways
				of := func(n string) corev1.ResourceRequirements {
					return corev1.ResourceRequirements{Limits: amounts(map[string]string{"nvidia.com/gpu": n})}
				}
				pod.Spec.InitContainers = []corev1.Container{{Resources: of("1")}, {Resources: of("2"), RestartPolicy: &always},
					{Resources: of("2")}}
			})}},
			[]launcher.GPUNode{{Name: "n", Pools: []launcher.GPUPool{{Resource: "nvidia.com/gpu", Unit: launcher.UnitGPU,
				Holders: []launcher.GPUHolder{{Namespace: "ns", Pod: "k", Amount: 4, Since: since}}}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i, node := range c.nodes {
				o, err := trimNode(node)
				if err != nil {
					t.Fatal(err)
				}
				c.nodes[i] = o.(*corev1.Node)
			}
			for i := range c.pods {
				o, err := trimPod(c.pods[i].Pod)
				if err != nil {
					t.Fatal(err)
				}
				c.pods[i].Pod = o.(*corev1.Pod)
			}
			got := launcher.GPUs{Nodes: gpuNodes(seenMachines{nodes: c.nodes}, c.pods)}
			got.Sort()
			for i := range got.Nodes {
				got.Nodes[i].Labels = nil
			}
			if !reflect.DeepEqual(got.Nodes, c.want) {
				text, err := json.MarshalIndent(got.Nodes, "", " ")
				t.Errorf("got %s\nwant %+v\n%v", text, c.want, err)
			}
		})
	}
}

// ofPriority gives a pod a priority.
func ofPriority(n int32) func(*corev1.Pod) { return func(pod *corev1.Pod) { pod.Spec.Priority = &n } }

// TestFlavorRoom counts the kernels that fit.
func TestFlavorRoom(t *testing.T) {
	node := func(name, status, model string, pool launcher.GPUPool) launcher.GPUNode {
		return launcher.GPUNode{Name: name, Status: status, Labels: map[string]string{flavor.ProductLabel: model},
			Pools: []launcher.GPUPool{pool}}
	}
	whole := func(total, held float64) launcher.GPUPool {
		return launcher.GPUPool{Resource: "nvidia.com/gpu", Total: total, Holders: []launcher.GPUHolder{{Amount: held}}}
	}
	view := launcher.GPUs{Nodes: []launcher.GPUNode{
		node("a", "Ready", "T4", whole(8, 3)), node("b", "Ready", "A100", whole(4, 1)),
		node("c", "NotReady", "T4", whole(8, 0)), node("d", "Ready,SchedulingDisabled", "T4", whole(8, 0)),
		node("e", "Ready", "T4", launcher.GPUPool{Resource: "aliyun.com/gpu-mem", Total: 28,
			Devices: []launcher.GPUDevice{{Index: 0, Total: 14}, {Index: 1, Total: 14}},
			Holders: []launcher.GPUHolder{{Amount: 6, Devices: map[int]float64{0: 6}},
				{Amount: 6, Devices: map[int]float64{1: 6}}}}),
	}}
	t4 := map[string]string{flavor.ProductLabel: "T4"}
	for name, c := range map[string]struct {
		flavor flavor.Flavor
		want   launcher.GPURoom
	}{
		"any":     {flavor.Flavor{GPU: &flavor.Devices{Count: 1}}, launcher.GPURoom{Free: 8, Total: 12}},
		"two":     {flavor.Flavor{GPU: &flavor.Devices{Count: 2}}, launcher.GPURoom{Free: 3, Total: 6}},
		"a model": {flavor.Flavor{GPU: &flavor.Devices{Count: 1}, NodeSelector: t4}, launcher.GPURoom{Free: 5, Total: 8}},
		"memory":  {flavor.Flavor{GPUMem: &flavor.GPUMem{Units: 9}}, launcher.GPURoom{Free: 0, Total: 2}},
		"less":    {flavor.Flavor{GPUMem: &flavor.GPUMem{Units: 4}}, launcher.GPURoom{Free: 4, Total: 6}},
		"none":    {flavor.Flavor{MIG: &flavor.MIG{Profile: "1g.10gb"}}, launcher.GPURoom{}},
	} {
		asks := podspec.RequestOf(&c.flavor)
		if got := roomFor(view, string(asks.Counted), float64(asks.Amount), c.flavor.NodeSelector); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestGPUNodes_Claims: devices of dynamic resource allocation, and who holds them.
func TestGPUNodes_Claims(t *testing.T) {
	node := "n"
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	offered := func(name, driver string, generation int64, devices ...string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: generation}}}
		for _, d := range devices {
			s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{Name: d,
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"productName": text("T4"),
					"uuid": text("GPU-" + d), "large": text("x")}})
		}
		return s
	}
	claim := func(driver string, devices []string, pods ...string) *resourceapi.ResourceClaim {
		at := metav1.Unix(200, 0)
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
		c.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: &at}
		for _, d := range devices {
			c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
				resourceapi.DeviceRequestAllocationResult{Driver: driver, Pool: node, Device: d})
		}
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods",
				Name: p, UID: types.UID(p)})
		}
		return c
	}
	withClaim := func(name string) *corev1.Pod {
		return gpuTestPod(name, node, nil, func(pod *corev1.Pod) {
			pod.UID = types.UID(name)
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
		})
	}
	seen := seenMachines{
		slices: []*resourceapi.ResourceSlice{offered("old", "gpu.nvidia.com", 1, "gone"),
			offered("new", "gpu.nvidia.com", 2, "a", "b", "c"), offered("net", "nic.example.com", 1, "eth0"),
			offered("other", "devcluster", 1, "x")},
		claims: []*resourceapi.ResourceClaim{claim("gpu.nvidia.com", []string{"a", "c"}, "k"),
			claim("gpu.nvidia.com", []string{"b"}, "foreign", "another"), claim("nic.example.com", []string{"eth0"}, "foreign"),
			claim("devcluster", []string{"x"}, "k2"), claim("unseen.example.com", []string{"y"}, "k4")},
	}
	for i, s := range seen.slices {
		o, err := trimSlice(s)
		if err != nil {
			t.Fatal(err)
		}
		seen.slices[i] = o.(*resourceapi.ResourceSlice)
	}
	for i, c := range seen.claims {
		o, err := trimClaim(c)
		if err != nil {
			t.Fatal(err)
		}
		seen.claims[i] = o.(*resourceapi.ResourceClaim)
	}
	pods := []Pod{{Pod: withClaim("k"), Holder: launcher.GPUHolder{Kernel: "1"}},
		{Pod: withClaim("k2"), Holder: launcher.GPUHolder{Kernel: "2"}},
		{Pod: withClaim("k3"), Holder: launcher.GPUHolder{Kernel: "3"}},
		{Pod: withClaim("k4"), Holder: launcher.GPUHolder{Kernel: "4"}}}
	got := launcher.GPUs{Nodes: gpuNodes(seen, pods)}
	got.Sort()
	since := time.Unix(200, 0).UTC()
	want := []launcher.GPUNode{{Name: node, Pools: []launcher.GPUPool{
		{Resource: "devcluster", Model: "T4", Unit: launcher.UnitGPU, Total: 1,
			Devices: []launcher.GPUDevice{{UUID: "GPU-x", Total: 1}},
			Holders: []launcher.GPUHolder{{Kernel: "2", Namespace: "ns", Pod: "k2", Amount: 1,
				Devices: map[int]float64{0: 1}, Since: since}}},
		{Resource: "gpu.nvidia.com", Model: "T4", Unit: launcher.UnitGPU, Total: 3,
			Devices: []launcher.GPUDevice{{UUID: "GPU-a", Total: 1}, {Index: 1, UUID: "GPU-b", Total: 1},
				{Index: 2, UUID: "GPU-c", Total: 1}},
			Holders: []launcher.GPUHolder{
				{Namespace: "ns", Pod: "another", Amount: 0.5, Devices: map[int]float64{1: 0.5}, Since: since},
				{Namespace: "ns", Pod: "foreign", Amount: 0.5, Devices: map[int]float64{1: 0.5}, Since: since},
				{Kernel: "1", Namespace: "ns", Pod: "k", Amount: 2, Devices: map[int]float64{0: 1, 2: 1}, Since: since},
			}},
		{Resource: claimPool, Unit: launcher.UnitGPU, Holders: []launcher.GPUHolder{
			{Kernel: "3", Namespace: "ns", Pod: "k3", Since: time.Unix(100, 0).UTC()},
			{Kernel: "4", Namespace: "ns", Pod: "k4", Since: time.Unix(100, 0).UTC()}}},
	}}}
	if !reflect.DeepEqual(got.Nodes, want) {
		text, err := json.MarshalIndent(got.Nodes, "", " ")
		t.Errorf("got %s, %v", text, err)
	}
}

// TestTrimNode: an informer keeps little of a node.
func TestTrimNode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7",
		Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"c": "d"}}}
	node.Spec.Taints = []corev1.Taint{{Key: "x"}}
	node.Spec.Unschedulable, node.Spec.ProviderID = true, "aws:///1"
	node.Status.Images = []corev1.ContainerImage{{Names: []string{"large"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: "VMEventScheduled"}}
	o, err := trimNode(node)
	got := o.(*corev1.Node)
	if err != nil || got.Name != "n" || got.ResourceVersion != "7" || len(got.Spec.Taints) != 1 ||
		!got.Spec.Unschedulable || len(got.Status.Conditions) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if got.Annotations != nil || got.Labels != nil || got.Status.Images != nil || got.Spec.ProviderID != "" {
		t.Errorf("%+v is kept", got)
	}
}

// BenchmarkGPUNodes computes the view of a cluster with 1,000 nodes and 10,000 kernels with a GPU each.
func BenchmarkGPUNodes(b *testing.B) {
	var seen seenMachines
	var pods []Pod
	eight := map[string]string{"nvidia.com/gpu": "16", "cpu": "64"}
	for n := range 1000 {
		name := "node-" + strconv.Itoa(n)
		seen.nodes = append(seen.nodes, gpuTestNode(name, nil, eight, eight))
		for i := range 10 {
			pods = append(pods, Pod{Pod: gpuTestPod("pod-"+strconv.Itoa(10*n+i), name,
				map[string]string{"nvidia.com/gpu": "1"}, nil), Holder: launcher.GPUHolder{Kernel: strconv.Itoa(10*n + i)}})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		view := launcher.GPUs{Nodes: gpuNodes(seen, pods)}
		view.Sort()
	}
}
