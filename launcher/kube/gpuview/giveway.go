package gpuview

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// StaleRoom is how long the scheduler may take to use the room on a node. After it, the node does not help the pod:
// another rule keeps the pod away. The scheduler waits up to 10 s before it tries a pod again.
const StaleRoom = 15 * time.Second

// ChooseWarm returns the warm kernels whose end makes room for the kernel on one node, and the node. It returns none if
// a node has room, or if no node can have enough. reserved is the room on each node that other kernels get. ChooseWarm
// adds the room that this kernel gets.
func (w *Wait) ChooseWarm(view launcher.GPUs, warm []*corev1.Pod, ended map[types.UID]bool,
	reserved map[string]float64) (chosen []*corev1.Pod, at string) {
	nodes := w.nodesOf(view, warm)
	var places []launcher.Place
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		room, known := n.room(w.Resource, warm, ended)
		room = max(room-reserved[name+" "+w.Resource], min(room, 0)) // what is reserved may not be there any more
		switch {
		case room < w.Amount:
			places = append(places, w.place(n, room, known, warm, ended))
		case w.For < StaleRoom: // the scheduler is about to use this room
			reserved[name+" "+w.Resource] += w.Amount
			return nil, ""
		}
	}
	at, ends := launcher.GiveWay(places)
	if at != "" {
		reserved[at+" "+w.Resource] += w.Amount
	}
	for _, name := range ends {
		chosen = append(chosen, warm[slices.IndexFunc(warm, func(pod *corev1.Pod) bool { return pod.Name == name })])
	}
	return chosen, at
}

// place returns a node on which warm kernels may end for the kernel, the newest first. The node has this room. If its
// room is not known, all warm kernels there together count as enough. Then only those count whose pods select the same
// nodes as the kernel's pod, or fewer.
func (w *Wait) place(n warmNode, room float64, known bool, warm []*corev1.Pod, ended map[types.UID]bool,
) launcher.Place {
	p, amounts := launcher.Place{Name: n.name}, map[string]float64{}
	for _, pod := range slices.Backward(warm) {
		amount := amountOf(pod, w.Resource)
		if pod.Spec.NodeName != n.name || amount == 0 || pod.DeletionTimestamp != nil || ended[pod.UID] ||
			!known && !covers(pod.Spec.NodeSelector, w.Selector) {
			continue
		}
		p.Ends, amounts[pod.Name] = append(p.Ends, pod.Name), amount
	}
	p.Fits = func(ends []string) bool {
		sum := room
		for _, name := range ends {
			sum += amounts[name]
		}
		return sum >= w.Amount || !known && len(ends) > 0 && len(ends) == len(p.Ends)
	}
	return p
}

// warmNode is a node on which a pod could run.
type warmNode struct {
	name string
	node *launcher.GPUNode // nil: only a warm kernel names it
}

// nodesOf returns the nodes that may take the pod, as far as is known.
func (w *Wait) nodesOf(view launcher.GPUs, warm []*corev1.Pod) map[string]warmNode {
	nodes := map[string]warmNode{}
	for _, pod := range warm {
		if pod.Spec.NodeName != "" {
			nodes[pod.Spec.NodeName] = warmNode{name: pod.Spec.NodeName}
		}
	}
	for i := range view.Nodes {
		switch n := &view.Nodes[i]; {
		case n.Status == "" || n.Name == "":
		case w.mayUse(n):
			nodes[n.Name] = warmNode{n.Name, n}
		default:
			delete(nodes, n.Name)
		}
	}
	return nodes
}

// room returns how much of a resource is free on the node, and whether the gateway sees the node. Pods that are being
// deleted count as gone. The gateway does not see what else runs on an unseen node, so the room there is only that of
// the warm kernels that are leaving.
func (n warmNode) room(resource string, warm []*corev1.Pod, ended map[types.UID]bool) (room float64, known bool) {
	var leaving, staying float64
	for _, pod := range warm {
		switch {
		case pod.Spec.NodeName != n.name:
		case pod.DeletionTimestamp != nil, ended[pod.UID]:
			leaving += amountOf(pod, resource)
		default:
			staying += amountOf(pod, resource)
		}
	}
	if n.node == nil {
		return leaving, false
	}
	for i := range n.node.Pools {
		p := &n.node.Pools[i]
		if p.Resource != resource {
			continue
		}
		room += p.Total
		for j := range p.Holders {
			if !p.Holders[j].Ending {
				room -= p.Holders[j].Amount
			}
		}
	}
	return room - staying, true
}

// amountOf returns how much of a resource a pod asks for.
func amountOf(pod *corev1.Pod, resource string) float64 {
	return float64(podspec.GPUAmounts(pod)[corev1.ResourceName(resource)])
}

// covers reports whether every node that a selector chooses is chosen by another one, too.
func covers(selector, other map[string]string) bool {
	for name, value := range other {
		if had, there := selector[name]; !there || had != value {
			return false
		}
	}
	return true
}
