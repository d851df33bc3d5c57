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

// OIDCOptions says whose tokens are taken, and how a user is read from one.
type OIDCOptions struct {
	Issuer      string // URL, exactly as it stands in tokens
	Audience    string // that a token has to be for
	NameClaim   string // "" for sub
	GroupsClaim string // "" for none
}

// OIDC is an OpenID Connect issuer whose signed tokens are taken. The issuer is asked for its keys when the first token
// comes, and when one is signed with a key that is new.
type OIDC struct {
	opts   OIDCOptions
	client *http.Client

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // guarded by mu; nil until the issuer has answered
}

// NewOIDC makes the source. Nothing is asked of the issuer yet.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("the issuer is not a URL like https://issuer.example/realm")
	case o.Audience == "":
		return nil, errors.New("the audience is missing: a token for somebody else would be taken")
	}
	if o.NameClaim == "" {
		o.NameClaim = "sub"
	}
	return &OIDC{opts: o, client: newClient()}, nil
}

// String names the source.
func (o *OIDC) String() string { return "OpenID Connect" }

// Takes takes JSON Web Tokens that say they are the issuer's.
func (o *OIDC) Takes(token string) bool {
	issuer, ok := claimedIssuer(token)
	return ok && issuer == o.opts.Issuer
}

// Verify checks the token's signature, issuer, audience and time, and reads its user.
func (o *OIDC) Verify(ctx context.Context, token string) (User, time.Time, error) {
	verifier, err := o.discover(ctx)
	if err != nil {
		return User{}, time.Time{}, err
	}
	var unreachable error
	verified, err := verifier.Verify(context.WithValue(ctx, keysMissing{}, &unreachable), token)
	switch {
	case unreachable != nil:
		return User{}, time.Time{}, unreachable
	case err != nil:
		return User{}, time.Time{}, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	var claims map[string]json.RawMessage
	if err := verified.Claims(&claims); err != nil {
		return User{}, time.Time{}, fmt.Errorf("%w: its claims are no object", ErrUnknown)
	}
	user, err := o.read(claims)
	return user, verified.Expiry, err
}

// read makes a user of a token's claims.
func (o *OIDC) read(claims map[string]json.RawMessage) (User, error) {
	var u User
	if err := json.Unmarshal(claims[o.opts.NameClaim], &u.Name); err != nil {
		return u, fmt.Errorf("%w: its claim %s is no text", ErrUnknown, o.opts.NameClaim)
	}
	// An address that nobody has verified is whatever its user has entered.
	if verified, ok := claims["email_verified"]; o.opts.NameClaim == "email" && ok && string(verified) != "true" {
		return u, fmt.Errorf("%w: its address is not verified", ErrUnknown)
	}
	groups, ok := claims[o.opts.GroupsClaim]
	if !ok || o.opts.GroupsClaim == "" {
		return u, nil
	}
	if err := json.Unmarshal(groups, &u.Groups); err != nil {
		var one string
		if err := json.Unmarshal(groups, &one); err != nil {
			return u, fmt.Errorf("%w: its claim %s is no list of texts", ErrUnknown, o.opts.GroupsClaim)
		}
		u.Groups = []string{one}
	}
	return u, nil
}

// signatures are what a token may be signed with: never a secret that is shared, and never nothing.
var signatures = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}

// discover asks the issuer where its keys are, once.
func (o *OIDC) discover(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	o.mu.Lock()
	verifier := o.verifier
	o.mu.Unlock()
	if verifier != nil {
		return verifier, nil
	}
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
	// Of the context only the client is kept.
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), o.client), metadata.Keys)
	verifier = oidc.NewVerifier(o.opts.Issuer, keySet{keys}, &oidc.Config{ClientID: o.opts.Audience, SupportedSigningAlgs: algorithms})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.verifier = verifier
	return verifier, nil
}

// withoutBody keeps what an issuer answers, a page of HTML perhaps, out of the log.
func withoutBody(err error) error {
	text, _, cut := strings.Cut(err.Error(), "\n")
	if !cut && len(text) <= 300 {
		return err
	}
	return errors.New(text[:min(len(text), 300)] + "...")
}

// keysMissing is the key of a *error in a context: why the issuer's keys could not be had.
type keysMissing struct{}

// keySet tells a token that is wrong from keys that are not there, which the library's error does not.
type keySet struct{ *oidc.RemoteKeySet }

// VerifySignature is the library's.
func (k keySet) VerifySignature(ctx context.Context, jwt string) ([]byte, error) {
	payload, err := k.RemoteKeySet.VerifySignature(ctx, jwt)
	if at, ok := ctx.Value(keysMissing{}).(*error); ok && err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		*at = withoutBody(err)
	}
	return payload, err
}
