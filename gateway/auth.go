package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// credential is the secret of the gateway's one user, as a hash: comparing hashes takes the same time whatever was
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

// leaks reports whether text contains the secret. It guards what is forwarded to a supervisor, see proxy.go. A secret
// of a few characters stands in every other websocket key by chance; it leaks only where it is the whole text.
func (c credential) leaks(text string) bool {
	if len(c.secret) < 8 {
		return c.set && text == c.secret
	}
	return c.set && strings.Contains(text, c.secret)
}

// authorization is Jupyter Server's pattern for the header.
var authorization = regexp.MustCompile(`(?i)^\s*(?:token|bearer)\s+(.+?)\s*$`)

// authenticate lets a request with the right token through: as ?token=, which counts first if it is not empty (as in
// Jupyter Server), or in the Authorization header. With authentication off whatever was sent is ignored, also the
// "token " without a token that Jupyter Server sends to a gateway then.
func (g *Gateway) authenticate(r *http.Request) error {
	if !g.token.set {
		return nil
	}
	if sent := sentToken(r); sent != "" && g.token.equals(sent) {
		return nil
	}
	return refuse(http.StatusForbidden, "Forbidden: the request has no valid token.").by("token")
}

// sentToken returns the token of a request, "" if there is none.
func sentToken(r *http.Request) string {
	// What cannot be parsed is left out by ParseQuery; the rest may still hold a token.
	query, _ := url.ParseQuery(r.URL.RawQuery)
	if values := query["token"]; len(values) > 0 {
		if t := strings.TrimSpace(values[len(values)-1]); t != "" {
			return t
		}
	}
	if m := authorization.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
		return m[1]
	}
	return ""
}
