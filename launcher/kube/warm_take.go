package kube

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

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
	supervisor, err := l.supervisor(pod)
	if err != nil {
		return d, launcher.ClaimUnfit, err
	}
	// The connection takes as long as the claim, or longer: outside the cluster it passes the API server and the kubelet.
	dial, closeUnused := dialAhead(ctx, supervisor.Dial)
	defer closeUnused()
	supervisor.Dial = dial
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
	if err := assign(ctx, supervisor, assignment); err != nil {
		if ctx.Err() == nil { // else its client has gone
			l.warmFailed(rec.SpecName, kind.Content, err.Error())
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
	var held []launcher.Held
	l.mu.Lock()
	for _, k := range l.kernels {
		if c := (&candidate{pod: k.pod, rec: k.rec}); !k.removed && c.counts() {
			held = append(held, l.heldLocked(c))
		}
	}
	start := l.heldLocked(&candidate{pod: pod, rec: rec})
	l.mu.Unlock()
	return l.opts.Limits.Decide(start, held).Refused == nil
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

// assign gives a supervisor's kernel to its owner.
func assign(ctx context.Context, supervisor *api.Client, a api.Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	return supervisor.Assign(ctx, a)
}

// earlyTime is how long a connection may wait for its request. A supervisor closes it after 10 s.
const earlyTime = 5 * time.Second

// dialAhead begins to dial, in a goroutine. The first call of early returns that connection. If it could not be made,
// if it is older than earlyTime, and in each further call, early dials again. Only one call of early may be in
// progress. closeUnused ends the goroutine, waits for it, and closes a connection that no call has returned. It is
// called once, after the last call of early.
func dialAhead(ctx context.Context, dial func(context.Context) (net.Conn, error),
) (early func(context.Context) (net.Conn, error), closeUnused func()) {
	ctx, cancel := context.WithCancel(ctx)
	var c net.Conn      // nil after early has returned it
	var since time.Time // when c was made
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		var err error
		if c, err = dial(ctx); err != nil {
			c = nil // early dials again, and has the error of that
		}
		since = time.Now()
	}()
	early = func(ctx context.Context) (net.Conn, error) {
		select {
		case <-dialed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if c == nil {
			return dial(ctx)
		}
		made := c
		c = nil
		if time.Since(since) > earlyTime {
			_ = made.Close() // nothing was sent on it
			return dial(ctx)
		}
		return made, nil
	}
	closeUnused = func() {
		cancel()
		<-dialed
		if c != nil {
			_ = c.Close() // nothing was sent on it
		}
	}
	return early, closeUnused
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
