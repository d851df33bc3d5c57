package identity

import (
	"context"
	"fmt"
	"time"
)

// TokenReviewer asks a Kubernetes cluster for the user of a token. ok is false if the cluster does not accept the token
// or if the token has none of the audiences. No audiences mean the cluster's own. Package launcher/kube implements it.
type TokenReviewer interface {
	ReviewToken(ctx context.Context, token string, audiences []string) (name string, groups []string, ok bool, err error)
}

// TokenReview verifies JSON Web Tokens with a cluster: those of service accounts, and others that its API server
// accepts.
type TokenReview struct {
	Reviewer  TokenReviewer
	Audiences []string // a token must have one of them
}

// String names the source.
func (t *TokenReview) String() string { return "TokenReview" }

// Takes reports true for JSON Web Tokens.
func (t *TokenReview) Takes(token string) bool { return isJWT(token) }

// Verify asks the cluster to review the token.
func (t *TokenReview) Verify(ctx context.Context, token string) (User, time.Time, error) {
	name, groups, ok, err := t.Reviewer.ReviewToken(ctx, token, t.Audiences)
	if err != nil {
		return User{}, time.Time{}, err
	}
	if !ok {
		return User{}, time.Time{}, fmt.Errorf("%w: the cluster does not know it", ErrUnknown)
	}
	return User{Name: name, Groups: groups}, time.Time{}, nil
}

// Has returns ErrUnlisted: a cluster has no list of the users whose tokens it accepts.
func (t *TokenReview) Has(context.Context, string) (bool, error) { return false, ErrUnlisted }
