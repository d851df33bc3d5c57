package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor"
)

// startAttempts bounds how often Start begins anew because the kernel that it found went away at that moment.
const startAttempts = 3

// errLost says that another Start with the same id was faster.
var errLost = errors.New("another start was faster")

// Start makes a kernel's pod and secret, or returns the kernel that has the id. From the pod on the kernel exists: any gateway
// can finish what is missing.
func (l *Launcher) Start(ctx context.Context, req launcher.Request) (launcher.Kernel, bool, error) {
	if !launcher.ValidID(req.ID) {
		return launcher.Kernel{}, false, fmt.Errorf("%q is no kernel id", req.ID)
	}
	for range startAttempts {
		k, err := l.lookUp(req.ID)
		if err != nil && !errors.Is(err, launcher.ErrNotFound) {
			return launcher.Kernel{}, false, err
		}
		if k == nil {
			d, err := l.create(ctx, req)
			if !errors.Is(err, errLost) {
				return d, err == nil, err
			}
			if k, err = l.find(ctx, req.ID); errors.Is(err, launcher.ErrNotFound) {
				continue // it is gone again
			} else if err != nil {
				return launcher.Kernel{}, false, err
			}
		}
		d, err := l.existing(ctx, k, req)
		if errors.Is(err, launcher.ErrNotFound) {
			continue // it went just now
		}
		return d, false, err
	}
	return launcher.Kernel{}, false, fmt.Errorf("%w: it is being started and stopped at the same time", launcher.ErrUnavailable)
}

// existing answers a Start for a kernel that is there.
func (l *Launcher) existing(ctx context.Context, k *kernel, req launcher.Request) (launcher.Kernel, error) {
	l.mu.Lock()
	rec := k.rec
	l.mu.Unlock()
	if rec.owner != req.Owner || rec.spec != req.Spec.Name {
		return launcher.Kernel{}, launcher.ErrConflict
	}
	if err := l.awaitDecision(ctx, k); err != nil {
		return launcher.Kernel{}, err
	}
	return l.describe(k)
}

// create makes the first pod of a kernel.
func (l *Launcher) create(ctx context.Context, req launcher.Request) (launcher.Kernel, error) {
	asked := l.timing.now()
	rec := record{id: req.ID, generation: 1, owner: req.Owner, spec: req.Spec.Name, created: l.timing.now().UTC().Round(0),
		protocol: supervisor.ProtocolVersion, keyVersion: keyVersion, groups: req.Groups}
	pod, err := buildPod(l.opts.Pods, req, rec)
	if err != nil {
		return launcher.Kernel{}, err
	}
	pod.Annotations[annotationClaimed] = unclaimed
	l.addGate(pod)
	k, err := l.createPod(ctx, pod)
	if err != nil {
		return launcher.Kernel{}, err
	}
	if err := l.awaitDecision(ctx, k); err != nil {
		l.removeRefused(context.WithoutCancel(ctx), k)
		return launcher.Kernel{}, err
	}
	l.followStart(req.ID, start{asked: asked, made: l.timing.now()})
	l.log.Info("kernel's pod was made", "kernel", req.ID, "spec", rec.spec, "namespace", pod.Namespace, "pod", pod.Name)
	return l.describe(k)
}

// removeRefused removes a kernel that limits do not allow. If it fails, whoever clears away does that.
func (l *Launcher) removeRefused(ctx context.Context, k *kernel) {
	l.mu.Lock()
	pod := k.pod
	l.mu.Unlock()
	if err := l.deletePod(ctx, pod); err != nil {
		l.log.Warn("the pod of a kernel that was refused could not be removed; this is tried again", "pod", pod.Name, "err", err)
		return
	}
	l.enterRemoved(pod)
}

// createPod makes a pod and its secret, and enters them. The error is errLost if there is a pod of that name. Failing, it
// leaves nothing, as far as the cluster answers.
func (l *Launcher) createPod(ctx context.Context, pod *corev1.Pod) (*kernel, error) {
	if why := l.rights.refusal(pod.Namespace); why != "" {
		return nil, &launcher.FailedError{Reason: why}
	}
	asking, cancel := l.asking(ctx)
	defer cancel()
	made, err := l.client.CoreV1().Pods(pod.Namespace).Create(asking, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, l.explainStart(ctx, err)
	}
	// What follows is done whether or not the caller still waits: the pod is there.
	ctx = context.WithoutCancel(ctx)
	if err := l.createSecret(ctx, made); err != nil {
		l.log.Error("secret of a new pod could not be made", "pod", made.Name, "err", err)
		if derr := l.deletePod(ctx, made); derr != nil {
			l.log.Error("pod without its secret could not be removed", "pod", made.Name, "err", derr)
		}
		return nil, &launcher.FailedError{Reason: "its secret could not be made: " + errorReason(err).text, Class: failureClass(err)}
	}
	l.enterPod(made)
	l.mu.Lock()
	k := l.kernels[made.Labels[LabelKernel]]
	l.mu.Unlock()
	if k == nil {
		return nil, l.goneError(made.Labels[LabelKernel])
	}
	l.tellPeers(ctx, k.id)
	return k, nil
}

// explainStart turns the API server's refusal of a pod into an error for its owner.
func (l *Launcher) explainStart(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case apierrors.IsAlreadyExists(err):
		return errLost
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err), apierrors.IsRequestEntityTooLargeError(err):
		return &launcher.FailedError{Reason: errorReason(err).text, Class: failureClass(err)}
	}
	return l.unavailable(ctx, "new pod", err)
}

// createSecret makes the secret of a pod, which owns it. One that is there is as good: it can only be the same.
func (l *Launcher) createSecret(ctx context.Context, pod *corev1.Pod) error {
	k, err := l.keysOf(pod)
	if err != nil {
		return err
	}
	secret := buildSecret(pod, k)
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		asking, cancel := l.asking(ctx)
		_, err = l.client.CoreV1().Secrets(pod.Namespace).Create(asking, secret, metav1.CreateOptions{})
		cancel()
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err), pause > time.Second:
			return err
		}
		if serr := sleep(l.ctx, pause); serr != nil {
			return errors.Join(err, serr)
		}
	}
}

// deletePod deletes exactly this pod, in peace.
func (l *Launcher) deletePod(ctx context.Context, pod *corev1.Pod) error {
	asking, cancel := l.asking(ctx)
	defer cancel()
	err := l.client.CoreV1().Pods(pod.Namespace).Delete(asking, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it is gone, or another has its name
		return nil
	}
	return err
}

// Revive makes the next pod of a kernel whose last one has ended, as that was.
func (l *Launcher) Revive(ctx context.Context, id string) (launcher.Kernel, error) {
	k, err := l.find(ctx, id)
	if err != nil {
		return launcher.Kernel{}, err
	}
	// A supervisor that is about to end cannot start its kernel again; its pod ends soon.
	l.await(ctx, k, func() bool {
		return k.end != nil || k.pod.DeletionTimestamp == nil && k.status.State != string(launcher.Dead)
	})
	l.mu.Lock()
	old, rec, dead := k.pod, k.rec, k.end != nil
	l.mu.Unlock()
	if !dead {
		return l.describe(k)
	}
	rec.generation++
	pod := again(old, rec)
	l.addGate(pod)
	next, err := l.createPod(ctx, pod)
	if errors.Is(err, errLost) { // another gateway does the same
		if err := l.ask(ctx, id); err != nil {
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
		l.log.Warn("a kernel's earlier pod could not be removed; this is tried again", "pod", old.Name, "err", err)
	}
	if err := l.awaitDecision(ctx, next); err != nil {
		return launcher.Kernel{}, err
	}
	l.log.Info("kernel revived", "kernel", id, "pod", pod.Name)
	return l.describe(next)
}

// again is the pod of a kernel's next generation: what was asked for the last one, without what the cluster has added.
func again(old *corev1.Pod, next record) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: old.Namespace, Labels: maps.Clone(old.Labels), Annotations: maps.Clone(old.Annotations)},
		Spec: *old.Spec.DeepCopy()}
	for _, key := range []string{annotationEnding, annotationTerm, annotationAdmitted, annotationLimit} {
		delete(pod.Annotations, key)
	}
	pod.Annotations[annotationClaimed] = claimed // a request has named it
	next.write(pod)
	pod.Spec.NodeName = ""
	pod.Spec.SchedulingGates = slices.DeleteFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == gateLimits })
	pod.Spec.EphemeralContainers = nil
	for i := range pod.Spec.Volumes {
		if s := pod.Spec.Volumes[i].Secret; s != nil && s.SecretName == secretName(old.Name) {
			s.SecretName = secretName(pod.Name)
		}
	}
	return pod
}
