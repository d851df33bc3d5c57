package kube

import (
	"context"
	"errors"
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
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
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
	if _, waits := gpuview.WaitOf(pod); waits && pod.DeletionTimestamp == nil {
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
		waited[corev1.ResourceName(w.Resource)] = true
		if w.Nominated || has[w.UID] {
			continue // the scheduler makes room for it, or is about to use its room
		}
		chosen, node := w.ChooseWarm(view, warm, ended, reserved)
		all := len(chosen) > 0
		for _, pod := range chosen {
			if !l.endWarmPod(ctx, pod, w.Kernel) {
				all = false // the next round chooses another one
				continue
			}
			ended[pod.UID] = true
		}
		if all {
			l.warm.rooms[w.UID] = madeRoom{node, l.timing.now()}
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

// recentRooms returns the pods for which room was made within gpuview.StaleRoom, and this room on each node and
// resource. It forgets older rooms, and the pods that do not wait any more.
func (l *Launcher) recentRooms(waits []gpuview.Wait) (has map[types.UID]bool, reserved map[string]float64) {
	has, reserved = map[types.UID]bool{}, map[string]float64{}
	rooms := map[types.UID]madeRoom{}
	for _, w := range waits {
		made, there := l.warm.rooms[w.UID]
		if !there || l.timing.now().Sub(made.at) >= gpuview.StaleRoom {
			continue
		}
		rooms[w.UID], has[w.UID] = made, true
		reserved[made.node+" "+w.Resource] += w.Amount
	}
	l.warm.rooms = rooms
	return has, reserved
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
