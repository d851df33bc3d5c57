package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	owner := claim.Annotations[podspec.AnnotationOwner]
	others := func(annotation string) bool {
		return got.Annotations[annotation] != "" && got.Annotations[annotation] != owner
	}
	switch {
	case err != nil && !isAnswer(err):
		return l.unavailable(ctx, "home", err)
	case err != nil:
		return homeFailed(claim.Name, podstatus.ExplainError(err).Text, podstatus.ErrorFailure(err))
	case got.DeletionTimestamp != nil:
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
