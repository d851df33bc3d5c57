package kube

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChoosesUsers reports whether the cluster chooses the users of pods by their namespaces, as OpenShift does: a pod with
// a user of its own is then rejected. Every account may read which kinds of objects a cluster has. If this one may not,
// the answer is no.
func (c *Cluster) ChoosesUsers(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	err := c.client.CoreV1().RESTClient().Get().AbsPath("/apis/security.openshift.io").Do(ctx).Error()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil
	}
	return err == nil, err
}

// ReviewToken asks the cluster for the user of a token. The gateway's account needs the right to create tokenreviews,
// as in the cluster role system:auth-delegator. Without audiences the token must be for the cluster itself. ok is false
// if the cluster does not know the token, or if the token has none of the audiences.
func (c *Cluster) ReviewToken(ctx context.Context, token string,
	audiences []string) (name string, groups []string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	review, err := c.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		return "", nil, false, err
	}
	if !review.Status.Authenticated || len(audiences) > 0 && !intersect(audiences, review.Status.Audiences) {
		// A cluster that does not support audiences returns none, and has checked none.
		return "", nil, false, nil
	}
	return review.Status.User.Username, review.Status.User.Groups, true, nil
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}
