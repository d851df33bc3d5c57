package warmpods

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
	quotaPause  = 100 * time.Millisecond // between two looks whether the quota allows the pod
)

// madeRoom says on which node warm kernels were ended for a pod that waits, and when.
type madeRoom struct {
	node string
	at   time.Time
}

// giveWay ends warm kernels for pods that wait for GPUs. It returns the resources that these wait for, and the pods
// that it has ended.
func (s *Store) giveWay(ctx context.Context) (waited map[corev1.ResourceName]bool, ended map[types.UID]bool) {
	waited, ended = map[corev1.ResourceName]bool{}, map[types.UID]bool{}
	waits := s.o.Kernels.GPUWaits()
	has, reserved := s.recentRooms(waits)
	if len(waits) == 0 {
		return waited, ended
	}
	view, warm := s.o.Kernels.GPUs(), s.Pods()
	for _, w := range waits {
		waited[corev1.ResourceName(w.Resource)] = true
		if w.Nominated || has[w.UID] {
			continue // the scheduler makes room for it, or is about to use its room
		}
		chosen, node := w.ChooseWarm(view, warm, ended, reserved)
		all := len(chosen) > 0
		for _, pod := range chosen {
			if !s.end(ctx, pod, w.Kernel) {
				all = false // the next round chooses another one
				continue
			}
			ended[pod.UID] = true
		}
		if all {
			s.rooms[w.UID] = madeRoom{node, s.o.Now()}
		}
	}
	for _, pod := range warm { // those that wait for the same GPUs, and would take them first
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		for name := range podspec.GPUAmounts(pod) {
			if waited[name] && !ended[pod.UID] && s.end(ctx, pod, "") {
				ended[pod.UID] = true
			}
		}
	}
	return waited, ended
}

// recentRooms returns the pods for which room was made within gpuview.StaleRoom, and this room on each node and
// resource. It forgets older rooms, and the pods that do not wait any more.
func (s *Store) recentRooms(waits []gpuview.Wait) (has map[types.UID]bool, reserved map[string]float64) {
	has, reserved = map[types.UID]bool{}, map[string]float64{}
	rooms := map[types.UID]madeRoom{}
	for _, w := range waits {
		made, there := s.rooms[w.UID]
		if !there || s.o.Now().Sub(made.at) >= gpuview.StaleRoom {
			continue
		}
		rooms[w.UID], has[w.UID] = made, true
		reserved[made.node+" "+w.Resource] += w.Amount
	}
	s.rooms = rooms
	return has, reserved
}

// Within calls create, which creates a kernel's pod. A quota of the namespace may refuse the pod. Then warm kernels
// with the same GPUs end, one after the other, until the quota allows it. None ends if the quota would still refuse it.
func (s *Store) Within(ctx context.Context, pod *corev1.Pod, create func(context.Context) error) error {
	err := create(ctx)
	if s.pods == nil || !isOverQuota(err) {
		return err
	}
	refused := err
	ctx, cancel := context.WithTimeout(ctx, giveWayTime)
	defer cancel()
	s.refused.Add(1) // no warm kernel takes the place
	defer s.refused.Add(-1)
	for isOverQuota(err) {
		warm := s.endForQuota(ctx, pod, err)
		if warm == nil {
			return err
		}
		for s.isThere(warm) && goroutines.Sleep(ctx, quotaPause) == nil {
			// until it is gone, the quota counts it
		}
		counted := s.o.Now().Add(quotaCounts)
		for isOverQuota(err) && s.o.Now().Before(counted) && goroutines.Sleep(ctx, quotaPause) == nil {
			err = create(ctx)
		}
	}
	if err != nil && ctx.Err() != nil {
		return refused // the time is over
	}
	return err
}

// endForQuota ends one of the warm kernels without which a quota would allow a pod. It returns the pod of the warm
// kernel. It returns nil if there are none, or if the quota has refused another object, such as the pod's secret.
func (s *Store) endForQuota(ctx context.Context, pod *corev1.Pod, refused error) *corev1.Pod {
	over := (*OverQuota)(nil)
	if !errors.As(refused, &over) {
		return nil
	}
	warm := slices.DeleteFunc(s.staying(), func(warm *corev1.Pod) bool {
		return warm.Namespace != pod.Namespace || !asksForSame(warm, pod)
	})
	for {
		_, ends := launcher.GiveWay([]launcher.Place{over.place(warm)})
		if len(ends) == 0 {
			return nil
		}
		at := slices.IndexFunc(warm, func(pod *corev1.Pod) bool { return pod.Name == ends[0] })
		if one := warm[at]; s.end(ctx, one, pod.Labels[podspec.LabelKernel]) {
			return one
		}
		warm = slices.Delete(warm, at, at+1) // a start was faster
	}
}

// place returns the quota as a place where warm kernels may end for the refused pod, the newest first.
func (e *OverQuota) place(warm []*corev1.Pod) launcher.Place {
	var p launcher.Place
	pods := map[string]*corev1.Pod{}
	for _, pod := range slices.Backward(warm) {
		p.Ends, pods[pod.Name] = append(p.Ends, pod.Name), pod
	}
	p.Fits = func(ends []string) bool {
		for name, ex := range e.Exceeded {
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

// OverQuota is the error of a pod that a quota has refused.
type OverQuota struct {
	*launcher.FailedError
	Exceeded map[string]podstatus.Exceeded // by resource
}

// Unwrap returns the error without what the quota says.
func (e *OverQuota) Unwrap() error { return e.FailedError }

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
func (s *Store) isThere(pod *corev1.Pod) bool {
	o, there, err := s.pods.GetStore().Get(pod)
	found, _ := o.(*corev1.Pod)
	return err == nil && there && found.UID == pod.UID
}

// end deletes the pod of a warm kernel, unless a start has taken it. waits is the kernel that gets its GPUs. A
// pod without a node holds none: waits is "", and the end is not counted.
func (s *Store) end(ctx context.Context, pod *corev1.Pod, waits string) bool {
	for range giveWayTries {
		asking, cancel := s.o.Bound(ctx)
		err := s.delete(asking, pod, new(int64(giveWayGrace)))
		var now *corev1.Pod
		if apierrors.IsConflict(err) { // it has changed, or was taken
			now, err = s.o.Pods.Get(asking, pod.Name, metav1.GetOptions{})
		}
		cancel()
		switch {
		case apierrors.IsNotFound(err), now != nil && (now.UID != pod.UID || now.DeletionTimestamp != nil ||
			now.Labels[podspec.LabelManagedBy] != podspec.ManagerWarm):
			return false
		case err != nil:
			if ctx.Err() == nil {
				s.warnOf(pod, err)
			}
			return false
		case now == nil:
			s.o.Log.Info("warm kernel gives way to a kernel that waits", logkey.Kernel, pod.Labels[podspec.LabelKernel],
				logkey.Spec, specOf(pod), logkey.Pod, pod.Name, logkey.Waits, waits)
			if waits != "" {
				s.GaveWay(specOf(pod))
			}
			return true
		}
		pod = now
	}
	return false
}

// delete deletes exactly this version of the pod of a warm kernel: a start may take it at this moment.
func (s *Store) delete(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	return s.o.Pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: grace,
		Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}})
}
