package cluster

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReviewToken asks the cluster for the user of a token. The gateway's account needs the right to create tokenreviews,
// as in the cluster role system:auth-delegator. Without audiences the token must be for the cluster itself. ok is false
// if the cluster does not know the token, or if the token has none of the audiences.
func (c *Cluster) ReviewToken(ctx context.Context, token string,
	audiences []string) (name string, groups []string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, AnswerTime)
	defer cancel()
	review, err := c.Client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
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
