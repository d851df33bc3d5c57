package kube

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/admission"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/endings"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Claim gives a start a warm kernel of a kind, if one fits. The error is a *launcher.LimitError if limits do not allow
// the start.
func (w *warmStore) Claim(ctx context.Context, kind podbuild.WarmKind, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	tries := 0
	for _, pod := range w.l.warmPods() {
		if pod.Annotations[podspec.AnnotationWarm] != kind.Content || !runsWarm(pod) {
			continue
		}
		if tries++; tries > warmTries {
			break
		}
		if d, result, err = w.claim(ctx, kind, pod, req); result != launcher.ClaimEmpty {
			return d, result, err
		}
	}
	return d, launcher.ClaimEmpty, nil
}

// claim makes a warm kernel the kernel of a request. The result is launcher.ClaimEmpty if another start was faster.
func (w *warmStore) claim(ctx context.Context, kind podbuild.WarmKind, pod *corev1.Pod, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	l := w.l
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
	supervisor, err := l.supervisors.Client(pod)
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
	assigning, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	if err := supervisor.Assign(assigning, assignment); err != nil {
		if ctx.Err() == nil { // else its client has gone
			w.Failed(rec.SpecName, kind.Content, err.Error())
		}
		l.discard(context.WithoutCancel(ctx), made)
		return d, launcher.ClaimFailed, nil
	}
	l.replicas.Notify(context.WithoutCancel(ctx), k.id)
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

// discard removes a kernel that was taken and could not be given to its owner. From now on it does not count for the
// limits of its owner, whose start goes on. If it fails, the reaper removes it.
func (l *Launcher) discard(ctx context.Context, pod *corev1.Pod) {
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
