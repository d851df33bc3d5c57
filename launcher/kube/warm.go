package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/gpuview"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/warm"
)

// The pod of a warm kernel is no kernel's pod for any gateway, until a start takes it. That is one patch of exactly one
// version of the pod, so two starts never take the same. The patch makes it a pod like any other, with an owner. Then
// the gateway assigns the kernel in it. If it dies before, the reaper removes the kernel. Nothing makes a pod warm
// again.

const (
	selectWarm = podspec.LabelManagedBy + "=" + podspec.ManagerWarm

	warmStartLimit = 10 * time.Minute // for the containers of a warm kernel to run
	warmProof      = 15 * time.Second // for which they run if the kernelspec works
	warmFinish     = time.Minute      // for a kernel that was taken to get its owner
	warmTries      = 4                // kernels that one start tries to take
	warmReport     = time.Minute      // for the watch to report a pod that was created; then the pod is read
)

// warmStore is the warm kernels of one cluster, as launcher/warm keeps them.
type warmStore struct {
	l *Launcher
	*warm.Pool[podbuild.WarmKind]
	pods   cache.SharedIndexInformer // fixed; nil: this gateway has no warm kernels
	urgent chan struct{}             // fixed; capacity 1: a pod waits for GPUs

	// Owned by the reaper.
	rooms  map[types.UID]madeRoom       // of pods that wait for GPUs
	waited map[corev1.ResourceName]bool // what pods wait for in this round
	listed map[string]*corev1.Pod       // by kernel, in this round

	refused atomic.Int64 // starts that wait until a quota does not count a warm kernel any more

	mu   sync.Mutex          // the last that is locked
	made map[string]madeWarm // by id: created ones that the watch has not reported
}

// madeWarm is a warm kernel that this gateway has created.
type madeWarm struct {
	spec string
	pod  string // name
	at   time.Time
}

func newWarmStore(l *Launcher) *warmStore {
	w := &warmStore{l: l, urgent: make(chan struct{}, 1), made: map[string]madeWarm{}}
	w.Pool = warm.NewPool(l.opts.Warm, w, l.timing.now, l.log)
	return w
}

// watch watches the pods of warm kernels.
func (w *warmStore) watch() (err error) {
	if w.l.opts.Warm == nil {
		return nil
	}
	if w.pods, err = w.l.warmInformer(); err != nil {
		return err
	}
	_, err = w.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			w.forgetMade(pod.Labels[podspec.LabelKernel])
		}
	}})
	return err
}

// warmInformer watches the pods of warm kernels in the kernels' namespace. It ends with the launcher.
func (l *Launcher) warmInformer() (cache.SharedIndexInformer, error) {
	ns := l.opts.Pods.Namespace
	pods := cache.NewSharedIndexInformer(gpuview.ListThenWatch{ListWatch: &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selectWarm
			return l.client.CoreV1().Pods(ns).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selectWarm
			return l.client.CoreV1().Pods(ns).Watch(ctx, o)
		},
	}}, &corev1.Pod{}, l.timing.resync, nil)
	if err := errors.Join(pods.SetTransform(trimPod), pods.SetWatchErrorHandlerWithContext(
		func(_ context.Context, _ *cache.Reflector, err error) {
			l.log.Warn("warm kernels cannot be watched; this is tried again", logkey.Err, err)
		})); err != nil {
		return nil, err
	}
	l.goroutines.Go(func() { pods.Run(l.ctx.Done()) })
	return pods, nil
}

// warmPods returns the pods of warm kernels that are not being deleted, the oldest first.
func (l *Launcher) warmPods() []*corev1.Pod {
	return slices.DeleteFunc(l.allWarmPods(), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// allWarmPods returns the pods of warm kernels, the oldest first.
func (l *Launcher) allWarmPods() (all []*corev1.Pod) {
	for _, o := range l.warm.pods.GetStore().List() {
		if pod, ok := o.(*corev1.Pod); ok && pod.Labels[podspec.LabelManagedBy] == podspec.ManagerWarm {
			all = append(all, pod)
		}
	}
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// runsWarm reports whether both containers of a pod run.
func runsWarm(pod *corev1.Pod) bool {
	for _, name := range []string{podspec.ContainerSupervisor, podspec.ContainerKernel} {
		if st := podstatus.ContainerStatus(pod, name); st == nil || st.State.Running == nil {
			return false
		}
	}
	return true
}

// keepWarm ends warm kernels that are not wanted, and creates those that are missing. The reaper calls it.
func (l *Launcher) keepWarm(ctx context.Context) {
	if l.warm.pods == nil || !l.warm.pods.HasSynced() {
		return
	}
	if err := l.warm.Round(ctx); err != nil {
		l.log.Warn("warm kernels cannot be kept; this is tried again", logkey.Err, err)
	}
}

// Kind returns from what the warm kernels of a plain start are created.
func (w *warmStore) Kind(start launcher.Request) (kind podbuild.WarmKind, content string, err error) {
	kind, err = podbuild.NewWarmKind(w.l.opts.Pods, start)
	return kind, kind.Content, err
}

// List returns the warm kernels, after some have given way to pods that wait for GPUs.
func (w *warmStore) List(ctx context.Context) ([]warm.Kernel, error) {
	all := w.taken()
	var ended map[types.UID]bool
	w.waited, ended = w.l.giveWay(ctx)
	w.listed = map[string]*corev1.Pod{}
	unreported := w.unreported(ctx) // first: the watch may report one meanwhile
	for _, pod := range w.l.allWarmPods() {
		rec, err := podspec.ReadRecord(pod)
		if err != nil {
			continue
		}
		delete(unreported, rec.ID)
		w.listed[rec.ID] = pod
		k := w.look(pod, rec)
		if ended[pod.UID] {
			k.State = warm.Leaving
		}
		all = append(all, k)
	}
	for id, spec := range unreported {
		all = append(all, warm.Kernel{ID: id, SpecName: spec, State: warm.Created})
	}
	return all, nil
}

// WhyNot says whether pods wait for the GPUs of a kind.
func (w *warmStore) WhyNot(kind podbuild.WarmKind) string {
	if w.refused.Load() > 0 && len(kind.GPUs) > 0 ||
		slices.ContainsFunc(kind.GPUs, func(name corev1.ResourceName) bool { return w.waited[name] }) {
		return launcher.WaitsForGPU
	}
	return ""
}

// taken returns the pods of warm kernels that were taken and have no owner: their start has not ended yet, or they were
// discarded. Such a pod counts for no limit, so no other pod replaces it before it is gone.
func (w *warmStore) taken() (all []warm.Kernel) {
	for _, informer := range w.l.informers {
		for _, o := range informer.GetStore().List() {
			pod, ok := o.(*corev1.Pod)
			if !ok || podspec.TakenAt(pod).IsZero() || !podspec.IsDiscarded(pod) && !w.l.isBeingGiven(pod) {
				continue
			}
			if rec, err := podspec.ReadRecord(pod); err == nil {
				all = append(all, warm.Kernel{ID: rec.ID, SpecName: rec.SpecName, State: warm.Leaving})
			}
		}
	}
	return all
}

// isBeingGiven reports whether a warm kernel was just taken, and it is not known that it has its owner.
func (l *Launcher) isBeingGiven(pod *corev1.Pod) bool {
	if l.clusterNow().Sub(podspec.TakenAt(pod)) >= warmFinish {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID == pod.UID && k.end == nil && k.stop == nil &&
		(!k.supervisor.HasStatus || k.supervisor.Status.Warm)
}

// look returns what a pod says about its warm kernel.
func (w *warmStore) look(pod *corev1.Pod, rec podspec.Record) warm.Kernel {
	k := warm.Kernel{ID: rec.ID, SpecName: rec.SpecName, Content: pod.Annotations[podspec.AnnotationWarm]}
	now := w.l.clusterNow()
	age, runs := now.Sub(warmSince(pod)), runsWarm(pod)
	waits := pod.Spec.NodeName == "" && len(podspec.GPUAmounts(pod)) > 0 // for as long as it takes
	switch {
	case pod.DeletionTimestamp != nil:
		k.State = warm.Leaving
	case podstatus.HasEnded(pod), !runs && hasRun(pod), !runs && !waits && age > warmStartLimit:
		k.State = warm.Failed
		k.Reason = cmp.Or(podstatus.Explain(pod, w.l.eventsOf(pod), now).Text, "its containers do not run")
	case runs && age > warmProof:
		k.State = warm.Proven
	case pod.Spec.NodeName == "":
		k.Reason = podstatus.Explain(pod, w.l.eventsOf(pod), now).Text
	}
	return k
}

// Delete deletes the pod of a warm kernel that is not wanted. It counts until it is gone.
func (w *warmStore) Delete(ctx context.Context, k warm.Kernel) bool {
	pod := w.listed[k.ID]
	asking, cancel := w.l.apiContext(ctx)
	defer cancel()
	err := w.l.deleteWarm(asking, pod, nil)
	switch {
	case err == nil:
		w.l.log.Info("warm kernel is not wanted any more", logkey.Kernel, k.ID, logkey.Spec, k.SpecName)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil:
		w.l.log.Warn("the pod of a warm kernel could not be removed; this is tried again", logkey.Pod, pod.Name,
			logkey.Err, err)
	}
	return true
}

// warmSince returns when a pod was scheduled, or created if it has no node.
func warmSince(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if c := gpuview.PodScheduled(pod); c != nil && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	return since
}

// hasRun reports whether a container of a pod has ended.
func hasRun(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(st corev1.ContainerStatus) bool {
		return st.RestartCount > 0 || st.State.Terminated != nil
	})
}

// Create creates the pod and the secret of a warm kernel.
func (w *warmStore) Create(ctx context.Context, kind podbuild.WarmKind) error {
	l, id := w.l, uuid.NewString()
	pod, err := kind.Build(l.opts.Pods, podspec.Record{ID: id, Created: l.clusterNow().UTC().Round(0),
		MasterKey: l.keys[0].Fingerprint})
	if err != nil {
		return err
	}
	name := specOf(pod)
	w.noteMade(id, name, pod.Name)
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	made, err := l.client.CoreV1().Pods(pod.Namespace).Create(asking, pod, metav1.CreateOptions{})
	if err != nil {
		w.forgetMade(id)
		return errors.New(podstatus.ExplainError(err).Text)
	}
	if part, err := l.createParts(ctx, made); err != nil {
		w.forgetMade(id)
		return errors.Join(errors.New(partFailed(part, err).Reason),
			l.deletePod(context.WithoutCancel(ctx), made))
	}
	l.log.Info("warm kernel was created", logkey.Kernel, made.Labels[podspec.LabelKernel], logkey.Spec, name, logkey.Pod,
		made.Name)
	return nil
}

// noteMade notes that a warm kernel is about to be created. Until the watch reports it, the reaper counts it: the next
// round would create another one. The store of the watch is not changed, since it may have a newer state already.
func (w *warmStore) noteMade(id, spec, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made[id] = madeWarm{spec, pod, w.l.timing.now()}
}

func (w *warmStore) forgetMade(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.made, id)
}

// unreported returns the kernelspecs of the warm kernels that were created and that the watch has not reported, by id.
// A watch may be late, so it reads the pod of one that was created long ago.
func (w *warmStore) unreported(ctx context.Context) map[string]string {
	specs, late := map[string]string{}, map[string]string{}
	w.mu.Lock()
	for id, m := range w.made {
		specs[id] = m.spec
		if now := w.l.timing.now(); now.Sub(m.at) > warmReport {
			late[id] = m.pod
			m.at = now
			w.made[id] = m
		}
	}
	w.mu.Unlock()
	for id, pod := range late {
		asking, cancel := w.l.apiContext(ctx)
		_, err := w.l.client.CoreV1().Pods(w.l.opts.Pods.Namespace).Get(asking, pod, metav1.GetOptions{})
		cancel()
		if apierrors.IsNotFound(err) {
			w.forgetMade(id)
			delete(specs, id)
		}
	}
	return specs
}

// isHalfTaken reports whether a kernel was taken from the warm ones, and its owner was not assigned in time.
func (l *Launcher) isHalfTaken(pod *corev1.Pod) bool {
	at := podspec.TakenAt(pod)
	if at.IsZero() || l.clusterNow().Sub(at) < warmFinish {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	return k != nil && k.pod.UID == pod.UID && k.end == nil && k.stop == nil && k.supervisor.HasStatus &&
		k.supervisor.Status.Warm
}
