package identity

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// isJWT reports whether a token has the form of a signed JSON Web Token (RFC 7519).
func isJWT(token string) bool {
	_, ok := claimedIssuer(token)
	return ok
}

// claimedIssuer returns the unverified issuer of a JSON Web Token; false if the token has another form.
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
