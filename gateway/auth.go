package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/elastic-kernel-gateway/ekg/gateway/identity"
)

// credential is the secret of the gateway's one owner, as a hash: comparing hashes takes the same time whatever was
// sent, its length included.
type credential struct {
	set    bool
	sum    [sha256.Size]byte
	secret string // for withholding it from supervisors
}

func newCredential(secret string) credential {
	return credential{set: secret != "", sum: sha256.Sum256([]byte(secret)), secret: secret}
}

// equals compares in constant time.
func (c credential) equals(sent string) bool {
	sum := sha256.Sum256([]byte(sent))
	return subtle.ConstantTimeCompare(sum[:], c.sum[:]) == 1
}

// secrets are what must not reach a supervisor: the gateway's own token, and whatever a request has sent for one.
type secrets []string

func (g *Gateway) secretsOf(r *http.Request) secrets {
	s := secrets(sentTokens(r))
	if g.token.set {
		s = append(s, g.token.secret)
	}
	return s
}

// leaks reports whether text contains a secret. It guards what is forwarded to a supervisor, see proxy.go. A secret of
// a few characters stands in every other websocket key by chance; it leaks only where it is the whole text.
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

var errNoToken = refuse(http.StatusForbidden, "Forbidden: the request has no valid token.").by(tokenCheck)

// authenticate finds out who a request is made for by its token: ?token=, which counts first if it is not empty (as in
// Jupyter Server), or the Authorization header. With authentication off whatever was sent is ignored, also the
// "token " without a token that Jupyter Server sends to a gateway then.
func (g *Gateway) authenticate(r *http.Request) (*caller, error) {
	var sent string
	if tokens := sentTokens(r); len(tokens) > 0 {
		sent = tokens[0]
	}
	if g.opts.Users == nil {
		if !g.token.set || sent != "" && g.token.equals(sent) {
			return theOne(), nil
		}
		return nil, errNoToken
	}
	user, err := g.opts.Users.Identify(r.Context(), sent)
	switch {
	case errors.Is(err, identity.ErrUnknown):
		return nil, errNoToken
	case err != nil:
		// Never 403: clients give up then, and the token may be a good one.
		return nil, &problem{status: http.StatusServiceUnavailable, err: err,
			message: "Whose token the request has cannot be told at this moment. Try again."}
	}
	return &caller{User: user, token: sent, has: ownKernel}, nil
}

// sentTokens returns the tokens in a request, the one that counts first.
func sentTokens(r *http.Request) []string {
	var all []string
	// What cannot be parsed is left out by ParseQuery; the rest may still hold a token.
	query, _ := url.ParseQuery(r.URL.RawQuery)
	values := query["token"]
	for i := len(values) - 1; i >= 0; i-- {
		t := strings.TrimSpace(values[i])
		if t == "" && i == len(values)-1 {
			break // the last one counts, and an empty one is none
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
