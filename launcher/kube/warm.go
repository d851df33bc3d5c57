package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
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
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
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

// warmPool is the warm kernels of one cluster. Its ledger is guarded by Launcher.mu.
type warmPool struct {
	pods   cache.SharedIndexInformer // fixed; nil: this gateway has no warm kernels
	urgent chan struct{}             // fixed; capacity 1: a pod waits for GPUs

	rooms   map[types.UID]madeRoom // of pods that wait for GPUs; only the reaper uses it
	refused atomic.Int64           // starts that wait until a quota does not count a warm kernel any more
	ledger  launcher.WarmLedger
	made    map[string]madeWarm // by id, guarded by Launcher.mu: created ones that the watch has not reported
}

// madeWarm is a warm kernel that this gateway has created.
type madeWarm struct {
	spec string
	pod  string // name
	at   time.Time
}

// watchWarm watches the pods of warm kernels.
func (l *Launcher) watchWarm() (err error) {
	if l.opts.Warm == nil {
		return nil
	}
	if l.warm.pods, err = l.warmInformer(); err != nil {
		return err
	}
	_, err = l.warm.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if pod, ok := o.(*corev1.Pod); ok {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.warm.made, pod.Labels[podspec.LabelKernel])
		}
	}})
	return err
}

// warmInformer watches the pods of warm kernels in the kernels' namespace. It ends with the launcher.
func (l *Launcher) warmInformer() (cache.SharedIndexInformer, error) {
	ns := l.opts.Pods.Namespace
	pods := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
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

// warmFailed notes why a warm kernel could not be started, has ended, or could not be given to its owner.
func (l *Launcher) warmFailed(spec, content, reason string) {
	l.mu.Lock()
	if !l.warm.ledger.May(spec, content, l.timing.now()) {
		l.mu.Unlock()
		return // it is known
	}
	pause := l.warm.ledger.Failed(spec, content, reason, l.timing.now())
	l.mu.Unlock()
	l.log.Warn("warm kernels of a kernelspec fail", logkey.Spec, spec, logkey.Reason, reason, logkey.Pause, pause)
}

// keepWarm ends warm kernels that are not wanted, and creates those that are missing. The reaper calls it.
func (l *Launcher) keepWarm(ctx context.Context) {
	if l.warm.pods == nil || !l.warm.pods.HasSynced() {
		return
	}
	counts, kinds := map[string]launcher.WarmCount{}, map[string]podspec.WarmKind{}
	for _, w := range l.opts.Warm() {
		name := w.Start.Spec.Name
		kind, err := podspec.NewWarmKind(l.opts.Pods, w.Start)
		if err != nil {
			counts[name] = launcher.WarmCount{Wanted: w.Count, Reason: err.Error()}
			l.warmFailed(name, "", err.Error())
			continue
		}
		kinds[name], counts[name] = kind, launcher.WarmCount{Wanted: w.Count}
	}
	leaving := l.takenPods()
	waited, ended := l.giveWay(ctx)
	unreported := l.unreportedWarm(ctx) // first: the watch may report one meanwhile
	for _, pod := range l.allWarmPods() {
		rec, err := podspec.ReadRecord(pod)
		if err != nil {
			continue
		}
		delete(unreported, rec.ID)
		c := counts[rec.SpecName]
		if pod.DeletionTimestamp == nil && !ended[pod.UID] && l.keepsWarm(ctx, pod, rec, kinds[rec.SpecName], c) {
			c.Waiting++
			if pod.Spec.NodeName == "" {
				c.Reason = podstatus.Explain(pod, l.eventsOf(pod), l.clusterNow()).Text
			}
			counts[rec.SpecName] = c
		} else {
			leaving[rec.SpecName]++
		}
	}
	for _, spec := range unreported {
		c := counts[spec]
		c.Waiting++
		counts[spec] = c
	}
	for name, kind := range kinds {
		if l.warm.refused.Load() > 0 && len(kind.GPUs) > 0 ||
			slices.ContainsFunc(kind.GPUs, func(name corev1.ResourceName) bool { return waited[name] }) {
			c := counts[name]
			c.Reason = launcher.WaitsForGPU
			counts[name] = c
			continue
		}
		counts[name] = l.createMissing(ctx, kind, name, counts[name], leaving[name])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.warm.ledger.SetCounts(counts)
}

// takenPods returns for each kernelspec how many pods of warm kernels were taken and have no owner: their start has not
// ended yet, or they were discarded. Such a pod counts for no limit, so no other pod replaces it before it is gone.
func (l *Launcher) takenPods() map[string]int {
	taken := map[string]int{}
	for _, informer := range l.informers {
		for _, o := range informer.GetStore().List() {
			pod, ok := o.(*corev1.Pod)
			if !ok || podspec.TakenAt(pod).IsZero() || !podspec.IsDiscarded(pod) && !l.isBeingGiven(pod) {
				continue
			}
			if rec, err := podspec.ReadRecord(pod); err == nil {
				taken[rec.SpecName]++
			}
		}
	}
	return taken
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

// keepsWarm reports whether a pod is that of a warm kernel that is wanted. Others are deleted.
func (l *Launcher) keepsWarm(ctx context.Context, pod *corev1.Pod, rec podspec.Record, kind podspec.WarmKind,
	c launcher.WarmCount) bool {
	content := pod.Annotations[podspec.AnnotationWarm]
	age := l.clusterNow().Sub(warmSince(pod))
	waits := pod.Spec.NodeName == "" && len(kind.GPUs) > 0 // for as long as it takes
	switch runs := runsWarm(pod); {
	case podstatus.HasEnded(pod), !runs && hasRun(pod), !runs && !waits && age > warmStartLimit:
		why := podstatus.Explain(pod, l.eventsOf(pod), l.clusterNow()).Text
		l.warmFailed(rec.SpecName, content, cmp.Or(why, "its containers do not run"))
	case content == kind.Content && c.Waiting < c.Wanted:
		if runs && age > warmProof {
			l.mu.Lock()
			l.warm.ledger.Works(rec.SpecName)
			l.mu.Unlock()
		}
		return true
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	err := l.deleteWarm(asking, pod, nil)
	switch {
	case err == nil:
		l.log.Info("warm kernel is not wanted any more", logkey.Kernel, rec.ID, logkey.Spec, rec.SpecName)
	case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil:
		l.log.Warn("the pod of a warm kernel could not be removed; this is tried again", logkey.Pod, pod.Name, logkey.Err,
			err)
	}
	return false
}

// warmSince returns when a pod was scheduled, or created if it has no node.
func warmSince(pod *corev1.Pod) time.Time {
	since := pod.CreationTimestamp.Time
	if c := podScheduled(pod); c != nil && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(since) {
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

// createMissing creates warm kernels of a kind, a few at once. No pod replaces one of those that are leaving.
func (l *Launcher) createMissing(ctx context.Context, kind podspec.WarmKind, name string, c launcher.WarmCount,
	leaving int) launcher.WarmCount {
	for range min(c.Wanted-c.Waiting-leaving, launcher.WarmAtOnce) {
		l.mu.Lock()
		may := l.warm.ledger.May(name, kind.Content, l.timing.now())
		l.mu.Unlock()
		if !may || ctx.Err() != nil {
			break
		}
		if err := l.createWarm(ctx, kind, name); err != nil {
			if ctx.Err() == nil {
				l.warmFailed(name, kind.Content, err.Error())
			}
			break
		}
		c.Waiting++
	}
	return c
}

// createWarm creates the pod and the secret of a warm kernel.
func (l *Launcher) createWarm(ctx context.Context, kind podspec.WarmKind, name string) error {
	id := uuid.NewString()
	pod, err := kind.Build(l.opts.Pods, podspec.Record{ID: id, Created: l.clusterNow().UTC().Round(0),
		MasterKey: l.keys[0].Fingerprint})
	if err != nil {
		return err
	}
	l.noteMadeWarm(id, name, pod.Name)
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	made, err := l.client.CoreV1().Pods(pod.Namespace).Create(asking, pod, metav1.CreateOptions{})
	if err != nil {
		l.forgetMadeWarm(id)
		return errors.New(podstatus.ExplainError(err).Text)
	}
	if part, err := l.createParts(ctx, made); err != nil {
		l.forgetMadeWarm(id)
		return errors.Join(errors.New(partFailed(part, err).Reason),
			l.deletePod(context.WithoutCancel(ctx), made))
	}
	l.log.Info("warm kernel was created", logkey.Kernel, made.Labels[podspec.LabelKernel], logkey.Spec, name, logkey.Pod,
		made.Name)
	return nil
}

// noteMadeWarm notes that a warm kernel is about to be created. Until the watch reports it, the reaper counts it: the
// next round would create another one. The store of the watch is not changed, since it may have a newer state already.
func (l *Launcher) noteMadeWarm(id, spec, pod string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.warm.made == nil {
		l.warm.made = map[string]madeWarm{}
	}
	l.warm.made[id] = madeWarm{spec, pod, l.timing.now()}
}

func (l *Launcher) forgetMadeWarm(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.warm.made, id)
}

// unreportedWarm returns the kernelspecs of the warm kernels that were created and that the watch has not reported, by
// id. A watch may be late, so it reads the pod of one that was created long ago.
func (l *Launcher) unreportedWarm(ctx context.Context) map[string]string {
	specs, late := map[string]string{}, map[string]string{}
	l.mu.Lock()
	for id, m := range l.warm.made {
		specs[id] = m.spec
		if now := l.timing.now(); now.Sub(m.at) > warmReport {
			late[id] = m.pod
			m.at = now
			l.warm.made[id] = m
		}
	}
	l.mu.Unlock()
	for id, pod := range late {
		asking, cancel := l.apiContext(ctx)
		_, err := l.client.CoreV1().Pods(l.opts.Pods.Namespace).Get(asking, pod, metav1.GetOptions{})
		cancel()
		if apierrors.IsNotFound(err) {
			l.forgetMadeWarm(id)
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
