// Package homes makes what a kernel's owner has in the cluster before the kernel's pod: a namespace of the owner's own
// with its objects, and the claim of the owner's home. It also deletes homes that no pod has had for long. Begin with
// Make, then homes.go for claims and namespace.go for namespaces. Package podbuild says how these objects look.
//
// Everything it knows is in the cluster: it keeps no state, and starts no goroutines. Any number of gateways may do the
// same at one time.
package homes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
	"github.com/elastic-kernel-gateway/ekg/launcher/logkey"
)

// Options configures Homes. All fields are needed.
type Options struct {
	Cluster *cluster.Cluster
	Pods    podbuild.Options
	Watched []string // namespaces in which Sweep looks; metav1.NamespaceAll for all

	// Bound bounds one request. Unavailable returns the error for one that was not answered.
	Bound       func(context.Context) (context.Context, context.CancelFunc)
	Unavailable func(ctx context.Context, what string, err error) error
	Now         func() time.Time // by the API server's clock
	Log         *slog.Logger
}

// Homes makes the namespaces and homes of owners. All methods may be called concurrently.
type Homes struct{ o Options }

// New returns Homes for one cluster.
func New(o Options) *Homes { return &Homes{o} }

// Make makes the namespace and the home of a pod's owner, unless they exist or the policy has none. The error is a
// *launcher.FailedError if the owner cannot have them.
func (h *Homes) Make(ctx context.Context, pod *corev1.Pod) error {
	if err := h.makeNamespace(ctx, pod); err != nil {
		return err
	}
	return h.makeHome(ctx, podbuild.HomeClaim(h.o.Pods, pod))
}

// annotationSpawner is KubeSpawner's annotation of a claim: the name of its user.
const annotationSpawner = "hub.jupyter.org/username"

// makeHome creates the claim of an owner's home, unless it exists. It does nothing if claim is nil. An existing claim
// is taken as it is. But claims of ekg and KubeSpawner name their owner, and one of another owner is an error.
func (h *Homes) makeHome(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim == nil {
		return nil
	}
	asking, cancel := h.o.Bound(ctx)
	defer cancel()
	claims := h.o.Cluster.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	got, err := claims.Get(asking, claim.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		got, err = cluster.UntilCounted(asking, func() (*corev1.PersistentVolumeClaim, error) {
			return claims.Create(asking, claim, metav1.CreateOptions{})
		})
		if apierrors.IsAlreadyExists(err) {
			got, err = claims.Get(asking, claim.Name, metav1.GetOptions{}) // another replica was faster
		} else if err == nil {
			h.o.Log.Info("a home was created", logkey.Namespace, claim.Namespace, logkey.Claim, claim.Name)
		}
	}
	owner := claim.Annotations[podspec.AnnotationOwner]
	others := func(annotation string) bool {
		return got.Annotations[annotation] != "" && got.Annotations[annotation] != owner
	}
	switch {
	case err != nil:
		return h.failure(ctx, claim.Name, err)
	case got.DeletionTimestamp != nil:
		return homeFailed(claim.Name, homeGoes, launcher.FailedRefused)
	case others(podspec.AnnotationOwner), others(annotationSpawner):
		return homeFailed(claim.Name, "its claim belongs to another user", launcher.FailedRefused)
	case got.Annotations[podbuild.AnnotationHomeUnused] == "":
		return nil
	}
	return h.keep(ctx, got)
}

// keep takes away the mark of a home that no pod had: a pod will have it. If the right is missing, sweeps do it.
func (h *Homes) keep(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	got, err := h.mark(ctx, claim, "")
	switch {
	case apierrors.IsForbidden(err):
		h.o.Log.Warn("the use of a home cannot be noted", logkey.Namespace, claim.Namespace, logkey.Claim, claim.Name,
			logkey.Err, err)
		return nil
	case err != nil:
		return h.failure(ctx, claim.Name, err)
	case got == nil || got.DeletionTimestamp != nil:
		return homeFailed(claim.Name, homeGoes, launcher.FailedRefused)
	}
	return nil
}

// failure returns the error of a start that could not ask for its home, or that the cluster has refused it.
func (h *Homes) failure(ctx context.Context, claim string, err error) error {
	return h.explainOwners(ctx, "home", err, func(why string, class launcher.Failure) error {
		return homeFailed(claim, why, class)
	})
}

// explainOwners returns the error of a start that could not get something of its owner's. failed makes an answer of the
// cluster that error.
func (h *Homes) explainOwners(ctx context.Context, what string, err error,
	failed func(why string, class launcher.Failure) error) error {
	if ctx.Err() != nil || !cluster.IsAnswer(err) {
		return h.o.Unavailable(ctx, what, err)
	}
	return failed(podstatus.ExplainError(err).Text, podstatus.ErrorFailure(err))
}

// homeGoes is why a home that is being deleted cannot be used.
const homeGoes = "its claim is being deleted"

func homeFailed(claim, why string, class launcher.Failure) error {
	return &launcher.FailedError{Reason: fmt.Sprintf("the home %s of its owner cannot be used: %s", claim, why),
		Class: class}
}

// mark writes since when no pod has a home, and that this was seen now. "" removes both. It returns the claim as it
// is then, and nil if the claim that was read is gone.
func (h *Homes) mark(ctx context.Context, claim *corev1.PersistentVolumeClaim, since string,
) (*corev1.PersistentVolumeClaim, error) {
	asking, cancel := h.o.Bound(ctx)
	defer cancel()
	metadata := map[string]any{"uid": claim.UID,
		"annotations": map[string]any{podbuild.AnnotationHomeUnused: nil, podbuild.AnnotationHomeSeen: nil}}
	if since != "" {
		metadata["annotations"] = map[string]any{podbuild.AnnotationHomeUnused: since,
			podbuild.AnnotationHomeSeen: h.now()}
		metadata["resourceVersion"] = claim.ResourceVersion // else it could write again what a start has removed
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, err
	}
	got, err := h.o.Cluster.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(asking, claim.Name,
		types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil, nil
	}
	return got, err
}

// now is the time of a mark that is written now.
func (h *Homes) now() string { return h.o.Now().UTC().Format(time.RFC3339) }

// Sweep deletes the homes that no pod has had for as long as the policy says. It counts only time in which
// gateways have looked. So a home is not deleted because gateways or their rights were missing, or because the policy
// had another time before. Claims that these gateways have not created stay. Two reapers at one time do no harm: a
// claim that has changed since it was read is not deleted.
func (h *Homes) Sweep(ctx context.Context) error {
	after := podbuild.HomesDeletedAfter(h.o.Pods)
	if after == 0 {
		return nil
	}
	var errs []error
	for _, ns := range h.o.Watched {
		errs = append(errs, h.sweepIn(ctx, ns, after))
	}
	return errors.Join(errs...)
}

func (h *Homes) sweepIn(ctx context.Context, ns string, after time.Duration) error {
	asking, cancel := h.o.Bound(ctx)
	defer cancel()
	claims, err := h.o.Cluster.Client.CoreV1().PersistentVolumeClaims(ns).List(asking, metav1.ListOptions{
		LabelSelector: podspec.SelectManaged + "," + podbuild.LabelKernelsOf + "=" + h.o.Pods.Namespace})
	if err != nil {
		return err
	}
	// Pods of all programs count: a JupyterLab may have the same home.
	asking, cancel = h.o.Bound(ctx)
	defer cancel()
	pods, err := h.o.Cluster.Client.CoreV1().Pods(ns).List(asking, metav1.ListOptions{})
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
	var errs []error
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.DeletionTimestamp == nil && podbuild.IsHome(h.o.Pods, claim) && ctx.Err() == nil {
			used := used[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
			errs = append(errs, h.sweep(ctx, claim, used, after))
		}
	}
	return errors.Join(errs...)
}

// sweep marks one home as used or unused, or deletes it.
func (h *Homes) sweep(ctx context.Context, claim *corev1.PersistentVolumeClaim, used bool,
	after time.Duration,
) error {
	now := h.o.Now()
	sinceText := claim.Annotations[podbuild.AnnotationHomeUnused]
	since, err := time.Parse(time.RFC3339, sinceText)
	seen, seenErr := time.Parse(time.RFC3339, claim.Annotations[podbuild.AnnotationHomeSeen])
	switch {
	case used && sinceText == "":
		return nil
	case used:
		_, err = h.mark(ctx, claim, "")
	case err != nil, seenErr != nil, now.Sub(seen) > podbuild.HomeSeenMost:
		_, err = h.mark(ctx, claim, h.now())
	case now.Sub(since) > after:
		return h.remove(ctx, claim, since)
	case now.Sub(seen) > podbuild.HomeSeenEvery:
		_, err = h.mark(ctx, claim, sinceText)
	}
	return err
}

// remove deletes the claim of a home, unless it has changed since it was read.
func (h *Homes) remove(ctx context.Context, claim *corev1.PersistentVolumeClaim, since time.Time) error {
	asking, cancel := h.o.Bound(ctx)
	defer cancel()
	claims := h.o.Cluster.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	err := claims.Delete(asking, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the next sweep looks again
	}
	if err != nil {
		return err
	}
	h.o.Log.Info("a home was deleted: no pod has had it for long enough", logkey.Namespace, claim.Namespace,
		logkey.Claim, claim.Name, logkey.Unused, since)
	return nil
}
