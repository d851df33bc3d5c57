package kube

import (
	"cmp"
	"context"
	"encoding/json"
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
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
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
)

// warmPool is the warm kernels of one cluster. Its ledger is guarded by Launcher.mu.
type warmPool struct {
	pods   cache.SharedIndexInformer // fixed; nil: this gateway has no warm kernels
	urgent chan struct{}             // fixed; capacity 1: a pod waits for GPUs

	rooms   map[types.UID]madeRoom // of pods that wait for GPUs; only the reaper uses it
	refused atomic.Int64           // starts that wait until a quota does not count a warm kernel any more
	ledger  launcher.WarmLedger
}

// watchWarm watches the pods of warm kernels.
func (l *Launcher) watchWarm() (err error) {
	if l.opts.Warm != nil {
		l.warm.pods, err = l.watchOwn("warm kernels", selectWarm)
	}
	return err
}

// watchOwn watches those pods of the kernels' namespace that a selector chooses, and that are no kernel's. They are
// called name in the log. The informer ends with the launcher.
func (l *Launcher) watchOwn(name, selector string) (cache.SharedIndexInformer, error) {
	ns := l.opts.Pods.Namespace
	pods := cache.NewSharedIndexInformer(listThenWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			return l.client.CoreV1().Pods(ns).List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return l.client.CoreV1().Pods(ns).Watch(ctx, o)
		},
	}}, &corev1.Pod{}, l.timing.resync, nil)
	if err := errors.Join(pods.SetTransform(trimPod), pods.SetWatchErrorHandlerWithContext(
		func(_ context.Context, _ *cache.Reflector, err error) {
			l.log.Warn(name+" cannot be watched; this is tried again", logkey.Err, err)
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

// takeWarm gives a start a warm kernel, if one fits. The error is a *launcher.LimitError if limits do not allow the
// start. Without a warm kernel, taken is false and the start is an ordinary one.
func (l *Launcher) takeWarm(ctx context.Context, req launcher.Request) (d launcher.Kernel, taken bool, err error) {
	if l.warm.pods == nil {
		return d, false, nil
	}
	wanted := l.opts.Warm()
	at := slices.IndexFunc(wanted, func(w launcher.Warm) bool { return w.Start.Spec.Name == req.Spec.Name })
	if at < 0 {
		return d, false, nil
	}
	result := launcher.ClaimUnfit
	defer func() {
		l.mu.Lock()
		l.warm.ledger.Claimed(req.Spec.Name, result)
		l.mu.Unlock()
	}()
	if !req.AnyID {
		return d, false, nil
	}
	kind, err := podspec.NewWarmKind(l.opts.Pods, wanted[at].Start)
	if err != nil {
		return d, false, nil
	}
	result = launcher.ClaimEmpty
	tries := 0
	for _, pod := range l.warmPods() {
		if pod.Annotations[podspec.AnnotationWarm] != kind.Content || !runsWarm(pod) {
			continue
		}
		if tries++; tries > warmTries {
			break
		}
		d, result, err = l.takePod(ctx, kind, pod, req)
		if result != launcher.ClaimEmpty {
			return d, result == launcher.ClaimTaken, err
		}
	}
	return d, false, nil
}

// takePod makes a warm kernel the kernel of a request. The result is launcher.ClaimEmpty if another start was faster.
func (l *Launcher) takePod(ctx context.Context, kind podspec.WarmKind, pod *corev1.Pod, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	requested := l.clusterNow()
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return d, launcher.ClaimEmpty, nil
	}
	rec.Owner, rec.Groups, rec.Created = req.Owner, req.Groups, requested.UTC().Round(0)
	req.ID = rec.ID
	want, assignment, ok := kind.Fit(l.opts.Pods, req, rec)
	if !ok || !l.seemsAllowed(pod, rec) {
		return d, launcher.ClaimUnfit, nil
	}
	patch, err := l.claimPatch(pod, want)
	if err != nil {
		return d, launcher.ClaimUnfit, err
	}
	asking, cancel := l.apiContext(ctx)
	made, err := l.client.CoreV1().Pods(pod.Namespace).Patch(asking, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	cancel()
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return d, launcher.ClaimEmpty, nil
	case err != nil:
		return d, launcher.ClaimFailed, l.explainStart(ctx, err)
	}
	// It is a kernel with an owner from now on.
	l.updatePod(made)
	l.mu.Lock()
	k := l.kernels[rec.ID]
	l.mu.Unlock()
	if k == nil {
		return d, launcher.ClaimFailed, l.goneError(rec.ID)
	}
	if admitted, err := l.awaitAdmission(ctx, k); err != nil || !admitted {
		return d, launcher.ClaimFailed, err
	}
	assignment.ID = uuid.NewString()
	if err := l.assign(ctx, k, assignment); err != nil {
		if ctx.Err() == nil { // else its client has gone
			l.warmFailed(rec.SpecName, kind.Content, err.Error())
		}
		l.discard(context.WithoutCancel(ctx), made)
		return d, launcher.ClaimFailed, nil
	}
	l.notifyPeers(context.WithoutCancel(ctx), k.id)
	now := l.clusterNow()
	l.opts.Observer.KernelUp(rec.SpecName, []launcher.Phase{{Name: launcher.PhaseAdmission, Took: now.Sub(requested)}})
	l.log.Info("warm kernel has got its owner", logkey.Kernel, k.id, logkey.Spec, rec.SpecName, logkey.Pod, pod.Name,
		logkey.Took, now.Sub(requested))
	d, err = l.describe(k)
	if err != nil {
		return d, launcher.ClaimFailed, err
	}
	return d, launcher.ClaimTaken, nil
}

// seemsAllowed reports whether limits allow the start that would take a warm kernel, by the kernels that this gateway
// knows. If not, the start becomes an ordinary one, about which the gateway that holds the lease decides: a refusal
// must not cost a warm kernel, which nothing makes warm again.
func (l *Launcher) seemsAllowed(pod *corev1.Pod, rec podspec.Record) bool {
	if !launcher.HasLimits(l.opts.Limits) {
		return true
	}
	var held []launcher.Held
	l.mu.Lock()
	for _, k := range l.kernels {
		if c := (&candidate{pod: k.pod, rec: k.rec}); !k.removed && c.counts() {
			held = append(held, l.heldLocked(c))
		}
	}
	start := l.heldLocked(&candidate{pod: pod, rec: rec})
	l.mu.Unlock()
	return l.opts.Limits.Admit(start, held) == nil
}

// awaitAdmission waits until limits have admitted a start that has taken a warm kernel, and ends the kernel if they
// have not. The error is a *launcher.LimitError if they refuse the start. Without a decision in time the start
// becomes an ordinary one, whose pod may wait longer.
func (l *Launcher) awaitAdmission(ctx context.Context, k *kernel) (admitted bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	err = l.awaitDecision(waiting, k)
	cancel()
	if err != nil {
		l.removeRefused(context.WithoutCancel(ctx), k)
		return false, err
	}
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	if podstatus.IsGated(pod) {
		l.log.Info("limits have not decided in time about a warm kernel that was taken; it is ended", logkey.Kernel, k.id)
		l.discard(context.WithoutCancel(ctx), pod)
		return false, nil
	}
	return true, nil
}

// claimPatch makes exactly this version of a warm pod the pod of a kernel. With limits, the start then waits for its
// decision.
func (l *Launcher) claimPatch(pod, want *corev1.Pod) ([]byte, error) {
	annotations := want.Annotations
	annotations[annotationClaimed] = unclaimed
	annotations[podspec.AnnotationClaim] = podspec.ClaimDecided
	if launcher.HasLimits(l.opts.Limits) {
		annotations[podspec.AnnotationClaim] = podspec.ClaimUndecided
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
		"resourceVersion": pod.ResourceVersion, "labels": want.Labels, "annotations": annotations}})
}

// assign gives the kernel in a pod to its owner.
func (l *Launcher) assign(ctx context.Context, k *kernel, a api.Assignment) error {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	client, err := l.supervisor(pod)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	return client.Assign(ctx, a)
}

// discard removes a kernel that was taken and could not be given to its owner. From now on it does not count for the
// limits of its owner, whose start goes on. If it fails, the reaper removes it.
func (l *Launcher) discard(ctx context.Context, pod *corev1.Pod) {
	end := storedEnding{Reason: "it could not be given to its owner", At: l.clusterNow().UTC(), Stopped: true}
	changed := endingAnnotation(pod, end)
	changed[podspec.AnnotationClaim] = podspec.ClaimDiscarded
	err := l.annotate(ctx, pod, "", changed)
	if err == nil {
		err = l.deletePod(ctx, pod)
	}
	if err != nil {
		l.log.Warn("a kernel that could not be given to its owner could not be removed; this is tried again", logkey.Pod,
			pod.Name, logkey.Err, err)
	}
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
	for _, pod := range l.allWarmPods() {
		rec, err := podspec.ReadRecord(pod)
		if err != nil {
			continue
		}
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
	pod, err := kind.Build(l.opts.Pods, podspec.Record{ID: uuid.NewString(), Created: l.clusterNow().UTC().Round(0),
		MasterKey: l.keys[0].fingerprint})
	if err != nil {
		return err
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	made, err := l.client.CoreV1().Pods(pod.Namespace).Create(asking, pod, metav1.CreateOptions{})
	if err != nil {
		return errors.New(podstatus.ExplainError(err).Text)
	}
	if part, err := l.createParts(ctx, made); err != nil {
		return errors.Join(errors.New(partFailed(part, err).Reason),
			l.deletePod(context.WithoutCancel(ctx), made))
	}
	if err := l.warm.pods.GetStore().Add(podspec.Trimmed(made)); err != nil { // else the next round creates another one
		return err
	}
	l.log.Info("warm kernel was created", logkey.Kernel, made.Labels[podspec.LabelKernel], logkey.Spec, name, logkey.Pod,
		made.Name)
	return nil
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
