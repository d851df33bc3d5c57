package warmpods

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
)

// Claim gives a start a warm kernel of a kind, if one fits. The error is a *launcher.LimitError if limits do not allow
// the start.
func (s *Store) Claim(ctx context.Context, kind podbuild.WarmKind, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	tries := 0
	for _, pod := range s.staying() {
		if pod.Annotations[podspec.AnnotationWarm] != kind.Content || !Runs(pod) {
			continue
		}
		if tries++; tries > claimTries {
			break
		}
		if d, result, err = s.claim(ctx, kind, pod, req); result != launcher.ClaimEmpty {
			return d, result, err
		}
	}
	return d, launcher.ClaimEmpty, nil
}

// claim makes a warm kernel the kernel of a request. The result is launcher.ClaimEmpty if another start was faster. A
// start that limits seem to refuse becomes an ordinary one, about which the gateway that holds the lease decides: a
// refusal must not cost a warm kernel, which nothing makes warm again.
func (s *Store) claim(ctx context.Context, kind podbuild.WarmKind, pod *corev1.Pod, req launcher.Request,
) (d launcher.Kernel, result string, err error) {
	requested := s.o.ClusterNow()
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return d, launcher.ClaimEmpty, nil
	}
	rec.Owner, rec.Groups, rec.Created = req.Owner, req.Groups, requested.UTC().Round(0)
	req.ID = rec.ID
	want, assignment, ok := kind.Fit(s.o.Build, req, rec)
	if !ok || !s.o.Kernels.Allows(pod, rec) {
		return d, launcher.ClaimUnfit, nil
	}
	patch, err := s.claimPatch(pod, want)
	if err != nil {
		return d, launcher.ClaimUnfit, err
	}
	supervisor, err := s.o.Supervisor(pod)
	if err != nil {
		return d, launcher.ClaimUnfit, err
	}
	asking, cancel := s.o.Bound(ctx)
	made, err := s.o.Pods.Patch(asking, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	cancel()
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return d, launcher.ClaimEmpty, nil
	case err != nil:
		return d, launcher.ClaimFailed, s.o.Kernels.Failed(ctx, err)
	}
	// It is a kernel with an owner from now on.
	if admitted, err := s.o.Kernels.Admit(ctx, made); err != nil || !admitted {
		return d, launcher.ClaimFailed, err
	}
	assignment.ID = uuid.NewString()
	assigning, cancel := context.WithTimeout(ctx, launcher.WarmAssignTime)
	defer cancel()
	if err := supervisor.Assign(assigning, assignment); err != nil {
		if ctx.Err() == nil { // else its client has gone
			s.Failed(rec.SpecName, kind.Content, err.Error())
		}
		s.o.Kernels.Discard(context.WithoutCancel(ctx), made)
		return d, launcher.ClaimFailed, nil
	}
	d, err = s.o.Kernels.Given(context.WithoutCancel(ctx), made, requested)
	if err != nil {
		return d, launcher.ClaimFailed, err
	}
	return d, launcher.ClaimTaken, nil
}

// claimPatch makes exactly this version of a warm pod the pod of a kernel. With limits, the start then waits for its
// decision.
func (s *Store) claimPatch(pod, want *corev1.Pod) ([]byte, error) {
	annotations := want.Annotations
	annotations[podspec.AnnotationClaimed] = podspec.Unclaimed
	annotations[podspec.AnnotationClaim] = podspec.ClaimDecided
	if s.o.Limits() {
		annotations[podspec.AnnotationClaim] = podspec.ClaimUndecided
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID,
		"resourceVersion": pod.ResourceVersion, "labels": want.Labels, "annotations": annotations}})
}
