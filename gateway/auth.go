package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
	"github.com/elastic-kernel-gateway/ekg/gateway/kernels"
)

// credential is the token of the gateway's only owner. It is compared as a hash, which takes the same time for any text
// of any length.
type credential struct {
	set    bool
	sum    [sha256.Size]byte
	secret string // to withhold it from supervisors
}

func newCredential(secret string) credential {
	return credential{set: secret != "", sum: sha256.Sum256([]byte(secret)), secret: secret}
}

// equals compares in constant time.
func (c credential) equals(sent string) bool {
	sum := sha256.Sum256([]byte(sent))
	return subtle.ConstantTimeCompare(sum[:], c.sum[:]) == 1
}

// secrets are texts that must not reach a supervisor: the gateway's own token, and all tokens in a request.
type secrets []string

// secretsOf returns the secrets to withhold when a request is forwarded.
func (g *Gateway) secretsOf(r *http.Request) secrets {
	s := secrets(sentTokens(r))
	if g.token.set {
		s = append(s, g.token.secret)
	}
	return s
}

// leaks reports whether text contains a secret. A secret of a few characters occurs in random websocket keys; it counts
// only where it is the whole text.
func (s secrets) leaks(text string) bool {
	for _, secret := range s {
		if text == secret || len(secret) >= 8 && strings.Contains(text, secret) {
			return true
		}
	}
	return false
}

// authorization is Jupyter Server's pattern for the header.
var authorization = regexp.MustCompile(`(?i)^\s*(?:token|bearer)\s+(.+?)\s*$`)

// tokenAgain is the Retry-After of a token that was not verified because too many others are.
const tokenAgain = time.Second

var errNoToken = refuse(http.StatusForbidden, "Forbidden: the request has no valid token.").by(tokenCheck)

// authenticate identifies the caller by the request's token: a ?token= that is not empty, as in Jupyter Server, else
// the Authorization header. With authentication off all credentials are ignored, also the "token " without a token that
// Jupyter Server then sends.
func (g *Gateway) authenticate(r *call) (kernels.Caller, error) {
	var sent string
	if tokens := sentTokens(r.Request); len(tokens) > 0 {
		sent = tokens[0]
	}
	if g.opts.Users == nil {
		if !g.token.set || sent != "" && g.token.equals(sent) {
			return kernels.SoleOwner(), nil
		}
		return kernels.Caller{}, errNoToken
	}
	user, err := g.opts.Users.Identify(identity.From(r.Context(), r.Remote), sent)
	switch {
	case errors.Is(err, identity.ErrTooMany):
		p := refuse(http.StatusTooManyRequests, "Too many unknown tokens of your address are being verified. Try again.")
		p.retry = tokenAgain
		return kernels.Caller{}, p.by(tokenCheck)
	case errors.Is(err, identity.ErrUnknown):
		return kernels.Caller{}, errNoToken
	case err != nil:
		// Never 403: the token may be valid, and clients give up after a 403.
		return kernels.Caller{}, &problem{status: http.StatusServiceUnavailable, err: err,
			message: "The user of this token cannot be verified at the moment. Try again."}
	}
	return kernels.Caller{User: user, Token: sent, Has: ownKernel}, nil
}

// sentTokens returns the tokens in a request, the one that counts first.
func sentTokens(r *http.Request) []string {
	var all []string
	// ParseQuery leaves out what it cannot parse; the rest may still hold a token.
	query, _ := url.ParseQuery(r.URL.RawQuery)
	values := query["token"]
	for i := len(values) - 1; i >= 0; i-- {
		t := strings.TrimSpace(values[i])
		if t == "" && i == len(values)-1 {
			break // the last one counts, and it is empty: the header counts instead
		}
		if t != "" {
			all = append(all, t)
		}
	}
	if m := authorization.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
		all = append(all, m[1])
	}
	return all
}
