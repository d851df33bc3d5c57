package identity

import (
	"context"
	"fmt"
	"time"
)

// TokenReviewer asks a Kubernetes cluster whose token it is; ok is false if the cluster says that it is nobody's, or
// that it is for none of the audiences. No audiences stand for the cluster's own. Package launcher/kube has one.
type TokenReviewer interface {
	ReviewToken(ctx context.Context, token string, audiences []string) (name string, groups []string, ok bool, err error)
}

// TokenReview is a cluster whose tokens are taken: those of service accounts, and of whatever else its API server knows that
// are JSON Web Tokens.
type TokenReview struct {
	Reviewer  TokenReviewer
	Audiences []string // one of which a token has to be for
}

// String names the source.
func (t *TokenReview) String() string { return "TokenReview" }

// Takes takes JSON Web Tokens.
func (t *TokenReview) Takes(token string) bool { return isJWT(token) }

// Verify has the cluster review the token.
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
