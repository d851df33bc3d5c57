package cluster

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// FieldManager names the gateways as the writers of objects. All replicas are one writer.
const FieldManager = "ekg"

// QuotaPause lies between two attempts in a namespace whose quota is not counted yet, and between two at an object that
// another writer has just changed.
const QuotaPause = 100 * time.Millisecond

// UntilCounted repeats a request until the cluster has counted the quota of its namespace. It admits nothing to a new
// namespace before.
func UntilCounted[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		got, err := ask()
		if !podstatus.IsUncounted(err) || goroutines.Sleep(ctx, QuotaPause) != nil {
			return got, err
		}
	}
}

// IsAnswer reports whether an error is an answer of an API server that works.
func IsAnswer(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonServiceUnavailable, metav1.StatusReasonInternalError,
		metav1.StatusReasonTooManyRequests:
		return false
	}
	return true
}

// Decided reports whether the API server has decided about a request that failed. A failed or refusing webhook
// counts as a decision: the next attempt may fail, too.
func Decided(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsTooManyRequests(err) &&
		!apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err)
}
