package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDCOptions configures an OpenID Connect issuer.
type OIDCOptions struct {
	Issuer    string // URL, exactly as it stands in tokens
	Audience  string // that tokens must have
	NameClaim string // claim with the user's name; "" for sub

	// MaxAge is how long after its issue (iat) a token is accepted at most; 0: until it expires.
	MaxAge time.Duration
}

// groupsClaim is the claim with the user's groups, as issuers usually name it. A token without it has no groups.
const groupsClaim = "groups"

// Times of an issuer's keys.
const (
	keepKeys  = 10 * time.Minute // until keys are fetched again, so that those that the issuer has withdrawn do not count
	retryKeys = time.Minute      // until the next attempt after one that has failed
)

// OIDC verifies signed tokens of an OpenID Connect issuer. It fetches the issuer's keys for the first token, for the
// first one after keepKeys, and for a token with an unknown key. While the issuer cannot be reached, the last keys
// count.
type OIDC struct {
	opts     OIDCOptions
	client   *http.Client
	keepKeys time.Duration // constant, but in tests

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // guarded by mu; nil until the issuer has answered
	previous *oidc.IDTokenVerifier // guarded by mu; the one before, until verifier has its keys; else nil
	renew    time.Time             // guarded by mu; when the keys are fetched again
}

// NewOIDC makes the source. It does not contact the issuer yet.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "",
		u.Fragment != "":
		return nil, errors.New("the issuer is not a URL like https://issuer.example/realm")
	case o.Audience == "":
		return nil, errors.New("the audience is missing: tokens for other services would be accepted")
	case o.MaxAge < 0:
		return nil, errors.New("the highest age of a token is negative")
	}
	if o.NameClaim == "" {
		o.NameClaim = "sub"
	}
	return &OIDC{opts: o, client: newClient(), keepKeys: keepKeys}, nil
}

// String names the source.
func (o *OIDC) String() string { return "OpenID Connect" }

// Takes reports true for JSON Web Tokens that name the issuer.
func (o *OIDC) Takes(token string) bool {
	issuer, ok := claimedIssuer(token)
	return ok && issuer == o.opts.Issuer
}

// Verify checks the token's signature, issuer, audience and times, and reads its user.
func (o *OIDC) Verify(ctx context.Context, token string) (User, time.Time, error) {
	verifier, previous, err := o.discover(ctx)
	if err != nil {
		return User{}, time.Time{}, err
	}
	var unreachable error
	verified, err := verifier.Verify(context.WithValue(ctx, keysMissing{}, &unreachable), token)
	switch {
	case err == nil && previous != nil:
		o.settle(verifier, verifier, o.keepKeys) // it has its keys
	case unreachable != nil && previous != nil:
		o.settle(verifier, previous, retryKeys)
		unreachable = nil
		verified, err = previous.Verify(context.WithValue(ctx, keysMissing{}, &unreachable), token)
	}
	switch {
	case unreachable != nil:
		return User{}, time.Time{}, unreachable
	case err != nil:
		return User{}, time.Time{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	var claims map[string]json.RawMessage
	if err := verified.Claims(&claims); err != nil {
		return User{}, time.Time{}, fmt.Errorf("%w: its claims are not an object", ErrUnknown)
	}
	until := verified.Expiry
	if o.opts.MaxAge > 0 {
		switch oldest := verified.IssuedAt.Add(o.opts.MaxAge); {
		case claims["iat"] == nil:
			return User{}, time.Time{}, fmt.Errorf("%w: it does not say when it was issued", ErrUnknown)
		case time.Now().After(oldest):
			return User{}, time.Time{}, fmt.Errorf("%w: it was issued more than %v ago", ErrUnknown, o.opts.MaxAge)
		case oldest.Before(until):
			until = oldest
		}
	}
	user, err := o.read(claims)
	return user, until, err
}

// Has returns ErrUnlisted: an issuer is asked for no names.
func (o *OIDC) Has(context.Context, string) (bool, error) { return false, ErrUnlisted }

// read returns the user of a token's claims.
func (o *OIDC) read(claims map[string]json.RawMessage) (User, error) {
	var u User
	if err := json.Unmarshal(claims[o.opts.NameClaim], &u.Name); err != nil {
		return u, fmt.Errorf("%w: its claim %s is not a string", ErrUnknown, o.opts.NameClaim)
	}
	// An unverified address is only what its user has entered.
	if o.opts.NameClaim == "email" && string(claims["email_verified"]) != "true" {
		return u, fmt.Errorf("%w: its address is not verified (claim email_verified)", ErrUnknown)
	}
	groups, ok := claims[groupsClaim]
	if !ok {
		return u, nil
	}
	if err := json.Unmarshal(groups, &u.Groups); err != nil {
		var one string
		if err := json.Unmarshal(groups, &one); err != nil {
			return u, fmt.Errorf("%w: its claim %s is not a list of strings", ErrUnknown, groupsClaim)
		}
		u.Groups = []string{one}
	}
	return u, nil
}

// signatures lists the allowed algorithms: neither those with a shared secret nor "none".
var signatures = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256,
	oidc.ES384, oidc.ES512, oidc.EdDSA}

// discover returns a verifier whose keys are not older than keepKeys, and the one before it, which may be nil. It asks
// the issuer for the URL of its keys first. If the issuer does not answer, the last verifier counts.
func (o *OIDC) discover(ctx context.Context) (verifier, previous *oidc.IDTokenVerifier, err error) {
	o.mu.Lock()
	verifier, previous = o.verifier, o.previous
	due := verifier == nil || time.Now().After(o.renew)
	if due {
		o.renew = time.Now().Add(retryKeys) // meanwhile, other requests take the last verifier
	}
	o.mu.Unlock()
	if !due {
		return verifier, previous, nil
	}
	next, err := o.newVerifier(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.previous, o.verifier = o.verifier, next
		o.renew = time.Now().Add(o.keepKeys)
	case o.verifier == nil:
		return nil, nil, err
	}
	return o.verifier, o.previous, nil
}

// settle chooses between a new verifier and the one before it, once it is known whether the new one gets its keys. No
// other request can undo the choice until keys are fetched again, which is after the given time.
func (o *OIDC) settle(latest, chosen *oidc.IDTokenVerifier, after time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.verifier == latest {
		o.verifier, o.previous = chosen, nil
		o.renew = time.Now().Add(after)
	}
}

// newVerifier asks the issuer for the URL of its keys. The keys are fetched for the first token.
func (o *OIDC) newVerifier(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, o.client), o.opts.Issuer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.opts.Issuer, withoutBody(err))
	}
	var metadata struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&metadata); err != nil {
		return nil, fmt.Errorf("%s: %w", o.opts.Issuer, err)
	}
	algorithms := slices.DeleteFunc(metadata.Algorithms, func(a string) bool { return !slices.Contains(signatures, a) })
	// The key set uses nothing of the context but its client.
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), o.client), metadata.Keys)
	return oidc.NewVerifier(o.opts.Issuer, keySet{keys},
		&oidc.Config{ClientID: o.opts.Audience, SupportedSigningAlgs: algorithms}), nil
}

// withoutBody cuts an error that contains an issuer's answer, which may be a page of HTML.
func withoutBody(err error) error {
	text, _, cut := strings.Cut(err.Error(), "\n")
	if !cut && len(text) <= 300 {
		return err
	}
	return errors.New(text[:min(len(text), 300)] + "...")
}

// keysMissing is the context key of a *error, which gets the error of fetching the issuer's keys.
type keysMissing struct{}

// keySet reports errors of fetching keys apart from those of invalid tokens, which the library's error does not.
type keySet struct{ *oidc.RemoteKeySet }

// VerifySignature is the library's, but notes the error of fetching keys.
func (k keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.RemoteKeySet.VerifySignature(ctx, jwt)
	if at, ok := ctx.Value(keysMissing{}).(*error); ok && err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		*at = withoutBody(err)
	}
	return payload, err
}
