package identity

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// isJWT reports whether a token has the form of a signed JSON Web Token (RFC 7519), whatever is in it.
func isJWT(token string) bool {
	_, ok := claimedIssuer(token)
	return ok
}

// claimedIssuer returns who a token says has made it, which nobody has verified; false if it is no JSON Web Token.
func claimedIssuer(token string) (string, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", false
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(b, &claims); err != nil {
		return "", false
	}
	return claims.Issuer, true
}
