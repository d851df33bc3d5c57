package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/warmpods"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// warmFinish is the time for a warm kernel that was taken to get its owner.
const warmFinish = time.Minute

// newWarm returns the warm kernels, which are watched from now on.
func newWarm(l *Launcher) (*warmpods.Store, error) {
	return warmpods.New(warmpods.Options{
		Pods:       l.client.CoreV1().Pods(l.opts.Pods.Namespace),
		Build:      l.opts.Pods,
		MasterKey:  l.keys[0].Fingerprint,
		Limits:     func() bool { return launcher.HasLimits(l.opts.Limits) },
		Kernels:    warmKernels{l},
		Supervisor: l.supervisors.Client,
		Wanted:     l.opts.Warm,
		Bound:      l.apiContext,
		Now:        l.timing.now,
		ClusterNow: l.clusterNow,
		Resync:     l.timing.resync,
		Life:       l.ctx,
		Goroutines: &l.goroutines,
		Log:        l.log,
	})
}

// warmKernels implements warmpods.Kernels, also in gpus.go.
type warmKernels struct{ l *Launcher }

// Unowned implements warmpods.Kernels.
func (w warmKernels) Unowned() (all []*corev1.Pod) {
	for _, informer := range w.l.watches.pods {
		for _, o := range informer.GetStore().List() {
			if pod, ok := o.(*corev1.Pod); ok && !podspec.TakenAt(pod).IsZero() {
				if given, _ := w.taken(pod); given || podspec.IsDiscarded(pod) {
					all = append(all, pod)
				}
			}
		}
	}
	return all
}

// taken reports whether a warm kernel was just taken, and it is not known that it has its owner. half says that it was
// taken, and its owner was not assigned in time.
func (w warmKernels) taken(pod *corev1.Pod) (given, half bool) {
	l, at := w.l, podspec.TakenAt(pod)
	if at.IsZero() {
		return false, false
	}
	late := l.clusterNow().Sub(at) >= warmFinish
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kernels[pod.Labels[podspec.LabelKernel]]
	if k == nil || k.pod.UID != pod.UID || k.end != nil || k.stop != nil {
		return false, false
	}
	isWarm := k.supervisor.HasStatus && k.supervisor.Status.Warm
	return !late && (!k.supervisor.HasStatus || isWarm), late && isWarm
}

// isHalfTaken reports whether a kernel was taken from the warm ones, and its owner was not assigned in time.
func (w warmKernels) isHalfTaken(pod *corev1.Pod) bool {
	_, half := w.taken(pod)
	return half
}

// Why implements warmpods.Kernels.
func (w warmKernels) Why(pod *corev1.Pod) string {
	return podstatus.Explain(pod, w.l.events.Of(pod.UID), w.l.clusterNow()).Text
}

// CreateParts implements warmpods.Kernels.
func (w warmKernels) CreateParts(ctx context.Context, pod *corev1.Pod) error {
	if part, err := w.l.objects.Create(ctx, pod); err != nil {
		return errors.Join(errors.New(partFailed(part, err).Reason), w.l.deletePod(context.WithoutCancel(ctx), pod))
	}
	return nil
}

// Failed implements warmpods.Kernels.
func (w warmKernels) Failed(ctx context.Context, err error) error { return w.l.explainStart(ctx, err) }

// Allows implements warmpods.Kernels, by the kernels that this gateway knows.
func (w warmKernels) Allows(pod *corev1.Pod, rec podspec.Record) bool {
	l := w.l
	if !launcher.HasLimits(l.opts.Limits) {
		return true
	}
	all := []admission.Pod{{Pod: pod, Record: rec}}
	l.mu.Lock()
	for _, k := range l.kernels {
		if p := (admission.Pod{Pod: k.pod, Record: k.rec}); !k.removed && p.Counts(false) {
			all = append(all, p)
		}
	}
	l.mu.Unlock()
	held := admissionCluster{l}.Held(all)
	return l.opts.Limits.Decide(held[0], held[1:]).Refused == nil
}

// Admit implements warmpods.Kernels. Without a decision in time the start becomes an ordinary one, whose pod may wait
// longer.
func (w warmKernels) Admit(ctx context.Context, pod *corev1.Pod) (admitted bool, err error) {
	l, id := w.l, pod.Labels[podspec.LabelKernel]
	l.updatePod(pod)
	l.mu.Lock()
	k := l.kernels[id]
	l.mu.Unlock()
	if k == nil {
		return false, l.endings.Gone(id)
	}
	waiting, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	err = l.awaitDecision(waiting, k)
	cancel()
	if err != nil {
		l.removeRefused(context.WithoutCancel(ctx), k)
		return false, err
	}
	l.mu.Lock()
	pod = k.pod
	l.mu.Unlock()
	if podstatus.IsGated(pod) {
		l.log.Info("limits have not decided in time about a warm kernel that was taken; it is ended", logkey.Kernel, id)
		w.Discard(context.WithoutCancel(ctx), pod)
		return false, nil
	}
	return true, nil
}

// Discard implements warmpods.Kernels. From now on the pod does not count for the limits of its owner, whose start goes
// on. If it fails, the reaper removes the pod.
func (w warmKernels) Discard(ctx context.Context, pod *corev1.Pod) {
	l := w.l
	end := endings.Ending{Reason: "it could not be given to its owner", At: l.clusterNow().UTC(), Stopped: true}
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

// Given implements warmpods.Kernels.
func (w warmKernels) Given(ctx context.Context, pod *corev1.Pod, requested time.Time) (launcher.Kernel, error) {
	l, id := w.l, pod.Labels[podspec.LabelKernel]
	k, err := l.lookUp(id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if k == nil {
		return launcher.Kernel{}, l.endings.Gone(id)
	}
	l.replicas.Notify(ctx, id)
	l.mu.Lock()
	spec := k.rec.SpecName
	l.mu.Unlock()
	took := l.clusterNow().Sub(requested)
	l.opts.Observer.KernelUp(spec, []launcher.Phase{{Name: launcher.PhaseAdmission, Took: took}})
	l.log.Info("warm kernel has got its owner", logkey.Kernel, id, logkey.Spec, spec, logkey.Pod, pod.Name,
		logkey.Took, took)
	return l.describe(k)
}
