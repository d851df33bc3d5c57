package kube

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Warm kernels hold GPUs only while no kernel waits for them. A warm kernel becomes a kernel, so its pod has the
// priority of kernels, and the scheduler does not remove it. The reaper does. It looks for pods of kernels for which
// the scheduler finds too few GPUs. launcher.GiveWay decides which warm kernels end for such a pod. While the pod
// waits, no warm kernel is created that asks for the same GPUs. A warm pod that waits for the same GPUs is deleted.

const (
	// giveWayGrace is the grace period of such a pod in seconds: a kernel waits for its GPUs.
	giveWayGrace = 1
	// staleRoom is how long the scheduler may take to use the room on a node. After it, the node does not help the pod:
	// another rule keeps the pod away. The scheduler waits up to 10 s before it tries a pod again.
	staleRoom = 15 * time.Second
	// giveWayTries bounds how often a pod is read again because it has changed before it was deleted.
	giveWayTries = 3
	// giveWayTime bounds how long a start waits for warm kernels that a quota counts.
	giveWayTime = 10 * time.Second
	// quotaCounts is how long the cluster may take to notice that a pod is gone which a quota has counted.
	quotaCounts = 2 * time.Second
)

// madeRoom says on which node warm kernels were ended for a pod that waits, and when.
type madeRoom struct {
	node string
	at   time.Time
}

// noticeWait wakes the reaper if the scheduler finds too few GPUs for a kernel's pod.
func (l *Launcher) noticeWait(pod *corev1.Pod) {
	if !l.reaping.Load() {
		return
	}
	if _, waits := waitOf(pod); waits && pod.DeletionTimestamp == nil {
		goroutines.Wake(l.warm.urgent)
	}
}

// rest waits until the reaper's next round. It keeps the warm kernels meanwhile if a pod waits for GPUs. The error is
// that of ctx.
func (l *Launcher) rest(ctx context.Context) error {
	timer := time.NewTimer(l.timing.maintenance)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case <-l.warm.urgent:
			l.keepWarm(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// giveWay ends warm kernels for pods that wait for GPUs. It returns the resources that these wait for, and the pods
// that it has ended.
func (l *Launcher) giveWay(ctx context.Context) (waited map[corev1.ResourceName]bool, ended map[types.UID]bool) {
	waited, ended = map[corev1.ResourceName]bool{}, map[types.UID]bool{}
	waits := l.gpuWaits()
	has, reserved := l.recentRooms(waits)
	if len(waits) == 0 {
		return waited, ended
	}
	view, warm := l.viewNodes(), l.allWarmPods()
	for _, w := range waits {
		waited[corev1.ResourceName(w.resource)] = true
		if w.nominated || has[w.uid] {
			continue // the scheduler makes room for it, or is about to use its room
		}
		chosen, node := w.chooseWarm(view, warm, ended, reserved)
		all := len(chosen) > 0
		for _, pod := range chosen {
			if !l.endWarmPod(ctx, pod, w.Kernel) {
				all = false // the next round chooses another one
				continue
			}
			ended[pod.UID] = true
		}
		if all {
			l.warm.rooms[w.uid] = madeRoom{node, l.timing.now()}
		}
	}
	for _, pod := range warm { // those that wait for the same GPUs, and would take them first
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		for name := range podspec.GPUAmounts(pod) {
			if waited[name] && !ended[pod.UID] && l.endWarmPod(ctx, pod, "") {
				ended[pod.UID] = true
			}
		}
	}
	return waited, ended
}

// recentRooms returns the pods for which room was made within staleRoom, and this room on each node and resource. It
// forgets older rooms, and the pods that do not wait any more.
func (l *Launcher) recentRooms(waits []gpuWait) (has map[types.UID]bool, reserved map[string]float64) {
	has, reserved = map[types.UID]bool{}, map[string]float64{}
	rooms := map[types.UID]madeRoom{}
	for _, w := range waits {
		made, there := l.warm.rooms[w.uid]
		if !there || l.timing.now().Sub(made.at) >= staleRoom {
			continue
		}
		rooms[w.uid], has[w.uid] = made, true
		reserved[made.node+" "+w.resource] += w.amount
	}
	l.warm.rooms = rooms
	return has, reserved
}

// gpuWaits returns the pods for which the scheduler finds too few GPUs, the longest first.
func (l *Launcher) gpuWaits() []gpuWait {
	now := l.clusterNow()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []gpuWait
	for _, k := range l.kernels {
		if k.pod == nil || k.removed || k.end != nil || k.pod.DeletionTimestamp != nil {
			continue
		}
		if w, waits := waitOf(k.pod); waits {
			w.Kernel, w.uid, w.For = k.id, k.pod.UID, now.Sub(podScheduled(k.pod).LastTransitionTime.Time)
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b gpuWait) int { return launcher.LongestFirst(a.GPUWait, b.GPUWait) })
	return all
}

// chooseWarm returns the warm kernels whose end makes room for the kernel on one node, and the node. It returns none if
// a node has room, or if no node can have enough. reserved is the room on each node that other kernels get. chooseWarm
// adds the room that this kernel gets.
func (w *gpuWait) chooseWarm(view launcher.GPUs, warm []*corev1.Pod, ended map[types.UID]bool,
	reserved map[string]float64) (chosen []*corev1.Pod, at string) {
	nodes := w.nodesOf(view, warm)
	var places []launcher.Place
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		room, known := n.room(w.resource, warm, ended)
		room = max(room-reserved[name+" "+w.resource], min(room, 0)) // what is reserved may not be there any more
		switch {
		case room < w.amount:
			places = append(places, w.place(n, room, known, warm, ended))
		case w.For < staleRoom: // the scheduler is about to use this room
			reserved[name+" "+w.resource] += w.amount
			return nil, ""
		}
	}
	at, ends := launcher.GiveWay(places)
	if at != "" {
		reserved[at+" "+w.resource] += w.amount
	}
	for _, name := range ends {
		chosen = append(chosen, warm[slices.IndexFunc(warm, func(pod *corev1.Pod) bool { return pod.Name == name })])
	}
	return chosen, at
}

// place returns a node on which warm kernels may end for the kernel, the newest first. The node has this room. If its
// room is not known, all warm kernels there together count as enough. Then only those count whose pods select the same
// nodes as the kernel's pod, or fewer.
func (w *gpuWait) place(n warmNode, room float64, known bool, warm []*corev1.Pod, ended map[types.UID]bool,
) launcher.Place {
	p, amounts := launcher.Place{Name: n.name}, map[string]float64{}
	for _, pod := range slices.Backward(warm) {
		amount := amountOf(pod, w.resource)
		if pod.Spec.NodeName != n.name || amount == 0 || pod.DeletionTimestamp != nil || ended[pod.UID] ||
			!known && !covers(pod.Spec.NodeSelector, w.selector) {
			continue
		}
		p.Ends, amounts[pod.Name] = append(p.Ends, pod.Name), amount
	}
	p.Fits = func(ends []string) bool {
		sum := room
		for _, name := range ends {
			sum += amounts[name]
		}
		return sum >= w.amount || !known && len(ends) > 0 && len(ends) == len(p.Ends)
	}
	return p
}

// warmNode is a node on which a pod could run.
type warmNode struct {
	name string
	node *launcher.GPUNode // nil: only a warm kernel names it
}

// nodesOf returns the nodes that may take the pod, as far as is known.
func (w *gpuWait) nodesOf(view launcher.GPUs, warm []*corev1.Pod) map[string]warmNode {
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

// room returns how much of a resource is free. What pods hold that are being deleted counts as free. Of a node that the
// gateway does not see, it is only what such warm kernels hold.
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

// specOf returns the name of the kernelspec of a pod.
func specOf(pod *corev1.Pod) string {
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return ""
	}
	return rec.SpecName
}

// createWithin creates a kernel's pod as createPod does. A quota of the namespace may refuse the pod. Then warm kernels
// with the same GPUs end, one after the other, until the quota allows it. None ends if the quota would still refuse it.
func (l *Launcher) createWithin(ctx context.Context, pod *corev1.Pod, chosen *flavor.Flavor) (*kernel, error) {
	k, err := l.createPod(ctx, pod, chosen)
	if l.warm.pods == nil || !isOverQuota(err) {
		return k, err
	}
	refused := err
	ctx, cancel := context.WithTimeout(ctx, giveWayTime)
	defer cancel()
	l.warm.refused.Add(1) // no warm kernel takes the place
	defer l.warm.refused.Add(-1)
	for isOverQuota(err) {
		warm := l.endForQuota(ctx, pod, err)
		if warm == nil {
			return nil, err
		}
		for l.isThere(warm) && goroutines.Sleep(ctx, quotaPause) == nil {
			// until it is gone, the quota counts it
		}
		counted := l.timing.now().Add(quotaCounts)
		for isOverQuota(err) && l.timing.now().Before(counted) && goroutines.Sleep(ctx, quotaPause) == nil {
			k, err = l.createPod(ctx, pod, chosen)
		}
	}
	if err != nil && ctx.Err() != nil {
		return nil, refused // the time is over
	}
	return k, err
}

// endForQuota ends one of the warm kernels without which a quota would allow a pod. It returns the pod of the warm
// kernel. It returns nil if there are none, or if the quota has refused another object, such as the pod's secret.
func (l *Launcher) endForQuota(ctx context.Context, pod *corev1.Pod, refused error) *corev1.Pod {
	over := (*overQuota)(nil)
	if !errors.As(refused, &over) {
		return nil
	}
	warm := slices.DeleteFunc(l.warmPods(), func(warm *corev1.Pod) bool {
		return warm.Namespace != pod.Namespace || !asksForSame(warm, pod)
	})
	for {
		_, ends := launcher.GiveWay([]launcher.Place{over.place(warm)})
		if len(ends) == 0 {
			return nil
		}
		at := slices.IndexFunc(warm, func(pod *corev1.Pod) bool { return pod.Name == ends[0] })
		if one := warm[at]; l.endWarmPod(ctx, one, pod.Labels[podspec.LabelKernel]) {
			return one
		}
		warm = slices.Delete(warm, at, at+1) // a start was faster
	}
}

// place returns the quota as a place where warm kernels may end for the refused pod, the newest first.
func (e *overQuota) place(warm []*corev1.Pod) launcher.Place {
	var p launcher.Place
	pods := map[string]*corev1.Pod{}
	for _, pod := range slices.Backward(warm) {
		p.Ends, pods[pod.Name] = append(p.Ends, pod.Name), pod
	}
	p.Fits = func(ends []string) bool {
		for name, ex := range e.exceeded {
			used := ex.Used.DeepCopy()
			for _, end := range ends {
				used.Sub(countedFor(pods[end], name))
			}
			if used.Sign() < 0 {
				used = resource.Quantity{}
			}
			used.Add(ex.Requested)
			if used.Cmp(ex.Limit) > 0 {
				return false
			}
		}
		return true
	}
	return p
}

// countedFor returns at most how much of a quota's resource a pod uses. It is 0 for one that no pod uses.
func countedFor(pod *corev1.Pod, name string) (sum resource.Quantity) {
	if name == "pods" || name == "count/pods" {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	of, limits := strings.CutPrefix(name, "limits.")
	of = strings.TrimPrefix(of, "requests.")
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		q, there := c.Resources.Requests[corev1.ResourceName(of)]
		if limits || !there {
			q = c.Resources.Limits[corev1.ResourceName(of)]
		}
		sum.Add(q)
	}
	return sum
}

// overQuota is the error of a pod that a quota has refused.
type overQuota struct {
	*launcher.FailedError
	exceeded map[string]podstatus.Exceeded
}

func (e *overQuota) Unwrap() error { return e.FailedError }

// isOverQuota reports whether a pod was refused because of a quota.
func isOverQuota(err error) bool {
	failed := (*launcher.FailedError)(nil)
	return errors.As(err, &failed) && failed.Class == launcher.FailedQuota
}

// asksForSame reports whether two pods ask for GPUs of the same resource.
func asksForSame(a, b *corev1.Pod) bool {
	of := podspec.GPUAmounts(b)
	for name := range podspec.GPUAmounts(a) {
		if of[name] > 0 {
			return true
		}
	}
	return false
}

// isThere reports whether the pod of a warm kernel exists.
func (l *Launcher) isThere(pod *corev1.Pod) bool {
	o, there, err := l.warm.pods.GetStore().Get(pod)
	found, _ := o.(*corev1.Pod)
	return err == nil && there && found.UID == pod.UID
}

// endWarmPod deletes the pod of a warm kernel, unless a start has taken it. waits is the kernel that gets its GPUs. A
// pod without a node holds none: waits is "", and the end is not counted.
func (l *Launcher) endWarmPod(ctx context.Context, pod *corev1.Pod, waits string) bool {
	for range giveWayTries {
		asking, cancel := l.apiContext(ctx)
		err := l.deleteWarm(asking, pod, new(int64(giveWayGrace)))
		var now *corev1.Pod
		if apierrors.IsConflict(err) { // it has changed, or was taken
			now, err = l.client.CoreV1().Pods(pod.Namespace).Get(asking, pod.Name, metav1.GetOptions{})
		}
		cancel()
		switch {
		case apierrors.IsNotFound(err), now != nil && (now.UID != pod.UID || now.DeletionTimestamp != nil ||
			now.Labels[podspec.LabelManagedBy] != podspec.ManagerWarm):
			return false
		case err != nil:
			if ctx.Err() == nil {
				l.log.Warn("the pod of a warm kernel could not be removed; this is tried again", logkey.Pod, pod.Name,
					logkey.Err, err)
			}
			return false
		case now == nil:
			l.log.Info("warm kernel gives way to a kernel that waits", logkey.Kernel, pod.Labels[podspec.LabelKernel],
				logkey.Spec, specOf(pod), logkey.Pod, pod.Name, logkey.Waits, waits)
			if waits != "" {
				l.warm.GaveWay(specOf(pod))
			}
			return true
		}
		pod = now
	}
	return false
}

// deleteWarm deletes exactly this version of the pod of a warm kernel: a start may take it at this moment.
func (l *Launcher) deleteWarm(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	return l.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: grace,
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
}
