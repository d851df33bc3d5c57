package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/flavor"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/warmpods"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// startAttempts bounds how often Start is repeated because the kernel that it found has gone.
const startAttempts = 3

// errLost says that another Start with the same id was faster.
var errLost = errors.New("another start was faster")

// Start creates a kernel's pod and secret, or returns the kernel that has the id. Once its pod exists, the kernel
// exists: any gateway can create what is missing.
func (l *Launcher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if !launcher.ValidID(req.ID) {
		return launcher.Kernel{}, false, fmt.Errorf("%q is not a kernel id", req.ID)
	}
	if k, taken, err := l.warm.Take(ctx, req); taken || err != nil {
		return k, taken, err
	}
	for range startAttempts {
		k, err := l.lookUp(req.ID)
		if err != nil && !errors.Is(err, launcher.ErrNotFound) {
			return launcher.Kernel{}, false, err
		}
		if k == nil {
			if launcher.OfOther(l.endings.Gone(req.ID), req.Owner) {
				return launcher.Kernel{}, false, launcher.ErrConflict
			}
			d, err := l.create(ctx, req)
			if !errors.Is(err, errLost) {
				return d, err == nil, err
			}
			if k, err = l.find(ctx, req.ID); errors.Is(err, launcher.ErrNotFound) {
				continue // it is gone
			} else if err != nil {
				return launcher.Kernel{}, false, err
			}
		}
		d, err := l.existing(ctx, k, req)
		if errors.Is(err, launcher.ErrNotFound) {
			continue // it has gone
		}
		return d, false, err
	}
	return launcher.Kernel{}, false, fmt.Errorf("%w: it is being started and stopped at the same time",
		launcher.ErrUnavailable)
}

// existing answers a Start for a kernel that exists.
func (l *Launcher) existing(ctx context.Context, k *kernel, req launcher.Request) (launcher.Kernel, error) {
	l.mu.Lock()
	rec := k.rec
	l.mu.Unlock()
	if rec.Owner != req.Owner || rec.SpecName != req.Spec.Name {
		return launcher.Kernel{}, launcher.ErrConflict
	}
	if err := l.awaitDecision(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	return l.describe(k)
}

// create creates the first pod of a kernel.
func (l *Launcher) create(ctx context.Context, req launcher.Request) (launcher.Kernel, error) {
	requested := l.clusterNow()
	rec := podspec.Record{
		ID:         req.ID,
		Generation: 1,
		Owner:      req.Owner,
		SpecName:   req.Spec.Name,
		Created:    l.clusterNow().UTC().Round(0),
		Protocol:   api.ProtocolVersion,
		MasterKey:  l.keys[0].Fingerprint,
		Groups:     req.Groups,
	}
	pod, err := podbuild.Build(l.opts.Pods, req, rec)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if err := l.objects.Seal(pod); err != nil {
		return launcher.Kernel{}, err
	}
	pod.Annotations[podspec.AnnotationClaimed] = podspec.Unclaimed
	l.addGate(pod)
	var k *kernel
	if err := l.warm.Within(ctx, pod, func(ctx context.Context) (err error) {
		k, err = l.createPod(ctx, pod, req.Flavor)
		return err
	}); err != nil {
		return launcher.Kernel{}, err
	}
	err = l.checkOnly(ctx, pod, req)
	if err == nil {
		err = l.awaitDecision(ctx, k)
	}
	if err != nil {
		l.removeRefused(context.WithoutCancel(ctx), k)
		return launcher.Kernel{}, err
	}
	l.trackStart(req.ID, start{requested: requested, podCreated: l.clusterNow()})
	l.log.Info("kernel's pod was created", logkey.Kernel, req.ID, logkey.Spec, rec.SpecName, logkey.Namespace,
		pod.Namespace, logkey.Pod, pod.Name)
	return l.describe(k)
}

// checkOnly returns launcher.ErrConflict if another namespace has a pod of the same kernel. The names of pods make ids
// unique in one namespace only. If two starts use one id at the same time, one or both are refused. An id that a
// gateway has made is random, so it is not checked.
func (l *Launcher) checkOnly(ctx context.Context, pod *corev1.Pod, req launcher.Request) error {
	if req.AnyID || !l.opts.Pods.NamespacePerOwner() {
		return nil
	}
	pods, err := l.listPods(ctx, metav1.NamespaceAll, podspec.LabelKernel+"="+req.ID)
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if other := &pods.Items[i]; other.Namespace != pod.Namespace && l.namespaces.Serves(other) {
			return launcher.ErrConflict
		}
	}
	return nil
}

// removeRefused removes a kernel that limits do not allow. If it fails, the reaper removes it.
func (l *Launcher) removeRefused(ctx context.Context, k *kernel) {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	if err := l.deletePod(ctx, pod); err != nil {
		l.log.Warn("the pod of a kernel that was refused could not be removed; this is tried again", logkey.Pod, pod.Name,
			logkey.Err, err)
		return
	}
	l.podRemoved(pod)
}

// createPod creates a pod, what it owns and what its flavor needs, and records the pod. The error is errLost if a pod
// of that name exists. After any other error nothing is left, if the cluster answers the deletion.
func (l *Launcher) createPod(ctx context.Context, pod *corev1.Pod, chosen *flavor.Flavor) (*kernel, error) {
	if why := l.namespaces.Denial(pod.Namespace); why != "" {
		return nil, &launcher.FailedError{Reason: why}
	}
	if err := l.homes.Make(ctx, pod); err != nil {
		return nil, err
	}
	if len(pod.Spec.ResourceClaims) > 0 { // else the client has given the flavor's GPUs up
		if err := l.createClaimTemplate(ctx, podspec.ClaimTemplate(chosen, pod.Namespace)); err != nil {
			return nil, err
		}
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	made, err := cluster.UntilCounted(asking, func() (*corev1.Pod, error) {
		return l.client.CoreV1().Pods(pod.Namespace).Create(asking, pod, metav1.CreateOptions{})
	})
	if err != nil {
		return nil, l.explainStart(ctx, err)
	}
	// The pod exists, so the rest is done even if the caller has left.
	ctx = context.WithoutCancel(ctx)
	if part, err := l.objects.Create(ctx, made); err != nil {
		l.log.Error("the "+part+" of a new pod could not be created", logkey.Pod, made.Name, logkey.Err, err)
		if derr := l.deletePod(ctx, made); derr != nil {
			l.log.Error("pod without its "+part+" could not be removed", logkey.Pod, made.Name, logkey.Err, derr)
		}
		return nil, partFailed(part, err)
	}
	l.updatePod(made)
	l.mu.Lock()
	k := l.kernels[made.Labels[podspec.LabelKernel]]
	elsewhere := k != nil && k.pod.Namespace != made.Namespace
	l.mu.Unlock()
	if k == nil {
		return nil, l.endings.Gone(made.Labels[podspec.LabelKernel])
	}
	if elsewhere { // the id is that of a kernel in another namespace, which this gateway has just learned
		if err := l.deletePod(ctx, made); err != nil {
			l.log.Error("pod with the id of another kernel could not be removed", logkey.Namespace, made.Namespace,
				logkey.Pod, made.Name, logkey.Err, err)
		}
		return nil, launcher.ErrConflict
	}
	l.replicas.Notify(ctx, k.id)
	return k, nil
}

// createClaimTemplate creates a flavor's resource claim template, unless it exists. All kernels of the flavor share it,
// so it stays. Nil needs nothing.
func (l *Launcher) createClaimTemplate(ctx context.Context, template *resourcev1.ResourceClaimTemplate) error {
	if template == nil {
		return nil
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	templates := l.client.ResourceV1().ResourceClaimTemplates(template.Namespace)
	_, err := cluster.UntilCounted(asking, func() (*resourcev1.ResourceClaimTemplate, error) {
		return templates.Create(asking, template, metav1.CreateOptions{})
	})
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	err = l.explainStart(ctx, err)
	if failed := (*launcher.FailedError)(nil); errors.As(err, &failed) {
		failed.Reason = "its resource claim template could not be created: " + failed.Reason
	}
	return err
}

// explainStart turns the API server's rejection of a pod into an error for its owner.
func (l *Launcher) explainStart(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsAlreadyExists(err):
		return errLost
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		apierrors.IsNotFound(err), apierrors.IsRequestEntityTooLargeError(err):
		failed := &launcher.FailedError{Reason: podstatus.ExplainError(err).Text, Class: podstatus.ErrorFailure(err)}
		if exceeded := podstatus.ExceededQuota(err); len(exceeded) > 0 {
			return &warmpods.OverQuota{FailedError: failed, Exceeded: exceeded}
		}
		return failed
	}
	return l.unavailable(ctx, "new pod", err)
}

// partFailed returns the error of a start whose pod lacks a part.
func partFailed(part string, err error) *launcher.FailedError {
	why, class := podstatus.ExplainError(err).Text, podstatus.ErrorFailure(err)
	if own := (*launcher.FailedError)(nil); errors.As(err, &own) {
		why, class = own.Reason, own.Class
	}
	return &launcher.FailedError{Reason: "its " + part + " could not be created: " + why, Class: class}
}

// Revive creates the next pod of a kernel whose last pod has ended. It is built from what Start was given, under the
// present policy. A pod whose supervisor this gateway cannot speak to is ended before.
func (l *Launcher) Revive(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	// A supervisor that is about to end cannot restart its kernel; its pod ends soon.
	l.follower.Await(ctx, &k.supervisor, func() bool {
		return k.end != nil || k.pod.DeletionTimestamp == nil && k.supervisor.Status.State != api.Dead
	})
	if err := l.endUnsupported(k); err != nil {
		return launcher.Kernel{}, err
	}
	l.mu.Lock()
	old, rec, dead := k.pod, k.rec, k.end != nil
	l.mu.Unlock()
	if !dead {
		return l.describe(k)
	}
	pod, chosen, err := l.nextPod(old, rec)
	if err != nil {
		return launcher.Kernel{}, err
	}
	l.addGate(pod)
	next, err := l.createPod(ctx, pod, chosen)
	if errors.Is(err, errLost) { // another gateway does the same
		if err := l.refresh(ctx, id); err != nil {
			return launcher.Kernel{}, err
		}
		if next, err = l.lookUp(id); err != nil || next == nil {
			return launcher.Kernel{}, errors.Join(err, launcher.ErrUnavailable)
		}
		if err := l.awaitDecision(ctx, next); err != nil {
			return launcher.Kernel{}, err
		}
		return l.describe(next)
	}
	if err != nil {
		return launcher.Kernel{}, err
	}
	if err := l.deletePod(context.WithoutCancel(ctx), old); err != nil {
		l.log.Warn("a kernel's earlier pod could not be removed; this is tried again", logkey.Pod, old.Name, logkey.Err, err)
	}
	if err := l.awaitDecision(ctx, next); err != nil {
		return launcher.Kernel{}, err
	}
	l.log.Info("kernel revived", logkey.Kernel, id, logkey.Pod, pod.Name)
	return l.describe(next)
}

// nextPod returns the pod of a kernel's next generation. It is built from the stored request, with the present options
// and policy. So it has nothing that the cluster has put into the last pod: a network's addresses, a scheduler's
// bookings, containers that webhooks have injected, the supervisor's earlier image. The notes stay. nextPod also
// returns the flavor, nil for none.
func (l *Launcher) nextPod(old *corev1.Pod, rec podspec.Record) (*corev1.Pod, *flavor.Flavor, error) {
	rec.Generation++
	rec.MasterKey = l.keys[0].Fingerprint // its secret is a new one
	opened, err := l.objects.Open(old)
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: its objects: %w", old.Name, err)
	}
	req, err := podbuild.ReadRequest(opened, rec)
	if err != nil {
		return nil, nil, fmt.Errorf("pod %s: its request: %w", old.Name, err)
	}
	rec.Protocol = api.ProtocolVersion
	pod, err := podbuild.Build(l.opts.Pods, req, rec)
	if err != nil {
		return nil, nil, err
	}
	if err := l.objects.Seal(pod); err != nil {
		return nil, nil, err
	}
	for _, key := range []string{podspec.AnnotationSessions, podspec.AnnotationShared, podspec.AnnotationSharedToUse} {
		if value, ok := old.Annotations[key]; ok {
			pod.Annotations[key] = value
		}
	}
	pod.Annotations[podspec.AnnotationClaimed] = podspec.Claimed // a request has named it
	return pod, req.Flavor, nil
}
