package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer is a small OpenID Connect issuer: its metadata, its keys, and tokens that it has signed.
type issuer struct {
	*httptest.Server
	t *testing.T

	mu          sync.Mutex
	keys        []jose.JSONWebKey
	down        bool // it answers nothing
	keyRequests int  // for keys
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{t: t}
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.down {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = fmt.Fprint(w, "<html>\naway</html>")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"authorization_endpoint":                i.URL + "/a",
			"token_endpoint":                        i.URL + "/t",
			"id_token_signing_alg_values_supported": []string{"RS256", "ES256", "HS256", "none"}})
	case "/keys":
		i.keyRequests++
		set := jose.JSONWebKeySet{}
		for _, k := range i.keys {
			set.Keys = append(set.Keys, k.Public())
		}
		_ = json.NewEncoder(w).Encode(set)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (i *issuer) setDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// newKey makes a key; with publish its public half is among the issuer's.
func (i *issuer) newKey(id string, alg jose.SignatureAlgorithm, publish bool) jose.JSONWebKey {
	i.t.Helper()
	var key any
	var err error
	if alg == jose.ES256 {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		i.t.Fatal(err)
	}
	k := jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(alg), Use: "sig"}
	if publish {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.keys = append(i.keys, k)
	}
	return k
}

type claims = map[string]any

func sign(t *testing.T, key jose.JSONWebKey, c claims) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(s).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestOIDC(t *testing.T) {
	i := newIssuer(t)
	rsaKey, ecKey := i.newKey("r", jose.RS256, true), i.newKey("e", jose.ES256, true)
	foreign := i.newKey("r", jose.RS256, false) // the name of a key proves nothing
	source, err := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ekg", NameClaim: "preferred_username"})
	if err != nil {
		t.Fatal(err)
	}
	v, logged := verifierOf(t, Options{Sources: []Source{source}})
	hour := time.Now().Add(time.Hour).Unix()
	with := func(change claims) claims {
		c := claims{"iss": i.URL, "aud": "ekg", "exp": hour, "sub": "1234", "preferred_username": "ann",
			"groups": []string{"b", "a"}}
		for name, value := range change {
			if c[name] = value; value == nil {
				delete(c, name)
			}
		}
		return c
	}
	i.setDown(true)
	if _, err := v.Identify(t.Context(), sign(t, rsaKey, with(nil))); !errors.Is(err, ErrUnavailable) {
		t.Errorf("before the issuer was ever there: %v", err)
	}
	i.setDown(false)
	for name, token := range map[string]string{
		"RSA":                  sign(t, rsaKey, with(nil)),
		"elliptic curve":       sign(t, ecKey, with(nil)),
		"several audiences":    sign(t, rsaKey, with(claims{"aud": []string{"x", "ekg"}})),
		"one group, no list":   sign(t, rsaKey, with(claims{"groups": "b"})),
		"groups not mentioned": sign(t, rsaKey, with(claims{"groups": nil})),
	} {
		u, err := v.Identify(t.Context(), token)
		if err != nil || u.Name != "ann" || u.Admin {
			t.Errorf("%s: got %+v, %v", name, u, err)
		}
		if want := []string{"a", "b"}; name == "RSA" && !slices.Equal(u.Groups, want) {
			t.Errorf("groups: got %v, want %v", u.Groups, want)
		}
	}
	shared := jose.JSONWebKey{Key: []byte("0123456789abcdef0123456789abcdef"), KeyID: "r", Algorithm: "HS256"}
	good := strings.Split(sign(t, rsaKey, with(nil)), ".")
	other := strings.Split(sign(t, rsaKey, with(claims{"preferred_username": "root"})), ".")
	for name, token := range map[string]string{
		"another's key":          sign(t, foreign, with(nil)),
		"a shared secret":        sign(t, shared, with(nil)),
		"another audience":       sign(t, rsaKey, with(claims{"aud": "other"})),
		"no audience":            sign(t, rsaKey, with(claims{"aud": nil})),
		"expired":                sign(t, rsaKey, with(claims{"exp": time.Now().Add(-time.Second).Unix()})),
		"without an end":         sign(t, rsaKey, with(claims{"exp": nil})),
		"not yet":                sign(t, rsaKey, with(claims{"nbf": hour})),
		"another issuer":         sign(t, rsaKey, with(claims{"iss": i.URL + "/x"})),
		"no name":                sign(t, rsaKey, with(claims{"preferred_username": nil})),
		"a name that is no text": sign(t, rsaKey, with(claims{"preferred_username": 5})),
		"a name of two lines":    sign(t, rsaKey, with(claims{"preferred_username": "a\r\nb"})),
		"groups that are none":   sign(t, rsaKey, with(claims{"groups": 5})),
		"no signature":           good[0] + "." + good[1] + ".",
		"another's claims":       good[0] + "." + other[1] + "." + good[2],
		"algorithm none":         "eyJhbGciOiJub25lIn0." + good[1] + ".",
		"no JSON Web Token":      "ekg",
	} {
		if u, err := v.Identify(t.Context(), token); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: got %+v, %v", name, u, err)
		}
	}
	t.Run("keys are changed", func(t *testing.T) {
		next := i.newKey("next", jose.RS256, true)
		if u, err := v.Identify(t.Context(), sign(t, next, with(nil))); err != nil {
			t.Errorf("got %+v, %v", u, err)
		}
		unseen := i.newKey("unseen", jose.RS256, true)
		i.setDown(true)
		defer i.setDown(false)
		if _, err := v.Identify(t.Context(), sign(t, unseen, with(nil))); !errors.Is(err, ErrUnavailable) {
			t.Errorf("with a key that cannot be had: %v", err)
		}
		if _, err := v.Identify(t.Context(), sign(t, next, with(claims{"x": 1}))); err != nil {
			t.Errorf("with a key that is known: %v", err)
		}
	})
	t.Run("a key is withdrawn", func(t *testing.T) {
		withdrawn := i.newKey("withdrawn", jose.RS256, true)
		token := sign(t, withdrawn, with(nil))
		source, err := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ekg", NameClaim: "preferred_username"})
		if err != nil {
			t.Fatal(err)
		}
		source.keepKeys = 0 // the keys are fetched for each token
		verify := func() error { _, _, err := source.Verify(t.Context(), token); return err }
		if err := verify(); err != nil {
			t.Fatal(err)
		}
		i.mu.Lock()
		i.keys = i.keys[:len(i.keys)-1]
		i.mu.Unlock()
		i.setDown(true)
		if err := verify(); err != nil {
			t.Errorf("while the issuer is down: %v", err)
		}
		i.setDown(false)
		source.mu.Lock()
		source.renew = time.Time{} // the next attempt is due
		source.mu.Unlock()
		if err := verify(); !errors.Is(err, ErrUnknown) {
			t.Errorf("after it: %v", err)
		}
	})
	t.Run("a token is too old", func(t *testing.T) {
		source, err := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ekg", MaxAge: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for _, c := range []struct {
			name   string
			issued any
			good   bool
		}{
			{"new", now.Add(-30 * time.Minute).Unix(), true}, {"old", now.Add(-2 * time.Hour).Unix(), false},
			{"of no known age", nil, false},
		} {
			_, until, err := source.Verify(t.Context(),
				sign(t, rsaKey, with(claims{"iat": c.issued, "exp": now.Add(8 * time.Hour).Unix()})))
			if (err == nil) != c.good || err != nil && !errors.Is(err, ErrUnknown) {
				t.Errorf("%s: %v", c.name, err)
			}
			if left := until.Sub(now); c.good && (left < 29*time.Minute || left > 31*time.Minute) {
				t.Errorf("%s: it is valid for %v", c.name, left)
			}
		}
	})
	t.Run("an address counts once it is verified", func(t *testing.T) {
		source, err := NewOIDC(OIDCOptions{Issuer: i.URL, Audience: "ekg", NameClaim: "email"})
		if err != nil {
			t.Fatal(err)
		}
		v, _ := verifierOf(t, Options{Sources: []Source{source}})
		for _, tt := range []struct {
			verified any
			good     bool
		}{{true, true}, {nil, false}, {false, false}, {"no", false}} {
			u, err := v.Identify(t.Context(),
				sign(t, rsaKey, with(claims{"email": "ann@example.org", "email_verified": tt.verified})))
			if (err == nil) != tt.good || err == nil && u.Name != "ann@example.org" {
				t.Errorf("%v: got %+v, %v", tt.verified, u, err)
			}
		}
	})
	if text := logged.String(); strings.Contains(text, good[2]) || strings.Contains(text, good[1]) ||
		strings.Contains(text, "away") {
		t.Errorf("log: %s", text)
	}
}

func TestNewOIDC_Refuses(t *testing.T) {
	for _, o := range []OIDCOptions{
		{}, {Issuer: "issuer.example", Audience: "x"}, {Issuer: "https://u:p@issuer", Audience: "x"},
		{Issuer: "https://issuer"},
	} {
		if _, err := NewOIDC(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}
