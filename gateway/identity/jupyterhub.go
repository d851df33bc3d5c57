package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const maxHubAnswer = 1 << 20 // bytes

// JupyterHub verifies tokens of a hub's users. It sends the token to the hub's API, as the hub's documentation
// describes for services. The hub answers with the token's user and scopes, which must allow access to this service.
// The service needs no token of its own.
type JupyterHub struct {
	user    string // URL
	service string
	client  *http.Client
}

// NewJupyterHub makes the source for a hub. api is the URL of its API, such as http://hub:8081/hub/api. service is this
// gateway's name in the hub's configuration.
func NewJupyterHub(api, service string) (*JupyterHub, error) {
	u, err := url.Parse(api)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "",
		u.Fragment != "":
		return nil, errors.New("it is not a URL like http://hub:8081/hub/api")
	case service == "":
		return nil, errors.New("the name of this service is missing")
	}
	return &JupyterHub{user: u.JoinPath("user").String(), service: service, client: newClient()}, nil
}

// newClient makes a client that follows no redirect, which could send a token to another server.
func newClient() *http.Client {
	return &http.Client{
		Timeout:       verifyTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// String names the source.
func (h *JupyterHub) String() string { return "JupyterHub" }

// Takes reports true for all tokens but JSON Web Tokens, since a hub's tokens are plain words.
func (h *JupyterHub) Takes(token string) bool { return !isJWT(token) }

// Verify asks the hub for the token's user.
func (h *JupyterHub) Verify(ctx context.Context, token string) (User, time.Time, error) {
	if !isWord(token) { // or it could change the header
		return User{}, time.Time{}, fmt.Errorf("%w: it has characters that are not allowed in tokens", ErrUnknown)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.user, nil)
	if err != nil {
		return User{}, time.Time{}, err
	}
	req.Header.Set("Authorization", "token "+token)
	resp, err := h.client.Do(req)
	if err != nil {
		return User{}, time.Time{}, err
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it matters
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusForbidden, http.StatusUnauthorized:
		return User{}, time.Time{}, fmt.Errorf("%w: the hub answers %s", ErrUnknown, resp.Status)
	default:
		return User{}, time.Time{}, fmt.Errorf("%s answers %s", h.user, resp.Status)
	}
	var model struct {
		Kind   string   `json:"kind"`
		Name   string   `json:"name"`
		Groups []string `json:"groups"`
		Scopes []string `json:"scopes"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxHubAnswer)).Decode(&model); err != nil {
		return User{}, time.Time{}, fmt.Errorf("%s answers with invalid JSON: %w", h.user, err)
	}
	needed := "access:services!service=" + h.service
	switch {
	case model.Kind != "user":
		return User{}, time.Time{}, fmt.Errorf("%w: at the hub it belongs to a %q, not to a user", ErrUnknown, model.Kind)
	case !slices.Contains(model.Scopes, needed) && !slices.Contains(model.Scopes, "access:services"):
		return User{}, time.Time{},
			fmt.Errorf("%w: the token of the hub's user %q lacks the scope %s", ErrUnknown, model.Name, needed)
	}
	return User{Name: model.Name, Groups: model.Groups}, time.Time{}, nil
}

// isWord reports whether a token has only printable ASCII characters and no space. RFC 6750 section 2.1 allows fewer.
func isWord(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
