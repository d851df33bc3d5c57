package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
	"github.com/elastic-kernel-gateway/ekg/launcher/sleep"
)

// annotationSpawner is KubeSpawner's annotation of a claim: the name of its user.
const annotationSpawner = "hub.jupyter.org/username"

// createHome creates the claim of an owner's home, unless it exists. Nil needs nothing. An existing claim is taken as
// it is, unless it says that it is another owner's, as claims of ekg and KubeSpawner do.
func (l *Launcher) createHome(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim == nil {
		return nil
	}
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	deletes := podspec.HomesDeletedAfter(l.opts.Pods) > 0
	if deletes {
		claim.Annotations[podspec.AnnotationHomeUsed] = l.clusterNow().UTC().Format(time.RFC3339)
	}
	claims := l.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	got, err := claims.Get(asking, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		for got, err = claims.Create(asking, claim, metav1.CreateOptions{}); podstatus.IsUncounted(err) &&
			sleep.For(asking, quotaPause) == nil; {
			got, err = claims.Create(asking, claim, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			got, err = claims.Get(asking, claim.Name, metav1.GetOptions{}) // another replica was faster
		} else if err == nil {
			l.log.Info("a home was created", logkey.Namespace, claim.Namespace, logkey.Claim, claim.Name)
		}
	}
	if err == nil && deletes && podspec.IsHome(l.opts.Pods, got) {
		got, err = l.noteHomeUsed(asking, got)
	}
	owner := claim.Annotations[podspec.AnnotationOwner]
	others := func(annotation string) bool {
		return got.Annotations[annotation] != "" && got.Annotations[annotation] != owner
	}
	switch {
	case err != nil && !isAnswer(err):
		return l.unavailable(ctx, "home", err)
	case err != nil:
		return homeFailed(claim.Name, podstatus.ExplainError(err).Text, podstatus.ErrorFailure(err))
	case got == nil, got.DeletionTimestamp != nil:
		return homeFailed(claim.Name, "its claim is being deleted", launcher.FailedRefused)
	case others(podspec.AnnotationOwner), others(annotationSpawner):
		return homeFailed(claim.Name, "its claim belongs to another user", launcher.FailedRefused)
	}
	return nil
}

func homeFailed(claim, why string, class launcher.Failure) error {
	return &launcher.FailedError{Reason: fmt.Sprintf("the home %s of its owner cannot be used: %s", claim, why),
		Class: class}
}

// noteHomeUsed writes into a home's claim that it is in use, unless that was written lately. It returns the claim as it
// is then, and nil if the claim is gone. Without the right it changes nothing: then no home is deleted, either.
func (l *Launcher) noteHomeUsed(ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	now := l.clusterNow().UTC()
	if used, known := homeUsed(claim); known && now.Sub(used) < podspec.HomeUsedEvery {
		return claim, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "annotations": map[string]string{podspec.AnnotationHomeUsed: now.Format(time.RFC3339)}}})
	if err != nil {
		return nil, err
	}
	claims := l.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	got, err := claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsForbidden(err):
		l.log.Warn("the use of a home cannot be noted", logkey.Namespace, claim.Namespace, logkey.Claim, claim.Name,
			logkey.Err, err)
		return claim, nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil, nil
	}
	return got, err
}

// homeUsed returns when a kernel was last known to have a home.
func homeUsed(claim *corev1.PersistentVolumeClaim) (at time.Time, known bool) {
	at, err := time.Parse(time.RFC3339, claim.Annotations[podspec.AnnotationHomeUsed])
	return at, err == nil
}

// sweepHomes deletes the homes that no pod has had for as long as the policy says. Claims that ekg has not created
// stay. Two reapers at one time do no harm: a claim that has changed since it was read is not deleted.
func (l *Launcher) sweepHomes(ctx context.Context) error {
	after := podspec.HomesDeletedAfter(l.opts.Pods)
	if after == 0 {
		return nil
	}
	for _, ns := range l.watched {
		if err := l.sweepHomesIn(ctx, ns, after); err != nil {
			return err
		}
	}
	return nil
}

func (l *Launcher) sweepHomesIn(ctx context.Context, ns string, after time.Duration) error {
	asking, cancel := l.apiContext(ctx)
	defer cancel()
	claims, err := l.client.CoreV1().PersistentVolumeClaims(ns).List(asking,
		metav1.ListOptions{LabelSelector: podspec.LabelManagedBy + "=" + podspec.Manager})
	if err != nil {
		return err
	}
	// Pods of all programs count: a JupyterLab may have the same home.
	pods, err := l.listPods(ctx, ns, "")
	if err != nil {
		return err
	}
	used := map[types.NamespacedName]bool{}
	for i := range pods.Items {
		for _, v := range pods.Items[i].Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				used[types.NamespacedName{Namespace: pods.Items[i].Namespace, Name: v.PersistentVolumeClaim.ClaimName}] = true
			}
		}
	}
	now := l.clusterNow()
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp != nil || !podspec.IsHome(l.opts.Pods, claim) {
			continue
		}
		at, known := homeUsed(claim)
		switch {
		case !known, used[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]:
			if _, err := l.noteHomeUsed(asking, claim); err != nil {
				return err
			}
		case now.Sub(at) > after:
			if err := l.deleteHome(asking, claim, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteHome deletes the claim of a home, unless it has changed since it was read.
func (l *Launcher) deleteHome(ctx context.Context, claim *corev1.PersistentVolumeClaim, used time.Time) error {
	err := l.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the next sweep looks again
	}
	if err != nil {
		return err
	}
	l.log.Info("a home was deleted: no pod has had it for long enough", logkey.Namespace, claim.Namespace,
		logkey.Claim, claim.Name, logkey.Used, used)
	return nil
}
