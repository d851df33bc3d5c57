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

// JupyterHub is a hub whose users' tokens are taken. As the hub's documentation has it for services, a token is shown to
// the hub's API, which says whose it is and what it may be used for; it has to be allowed to access this service. The
// service needs no token of its own for that.
type JupyterHub struct {
	user    string // URL
	service string
	client  *http.Client
}

// NewJupyterHub makes the source for the hub whose API has a URL, such as http://hub:8081/hub/api. Service is the name that
// the hub's configuration gives this gateway.
func NewJupyterHub(api, service string) (*JupyterHub, error) {
	u, err := url.Parse(api)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, errors.New("it is not a URL like http://hub:8081/hub/api")
	case service == "":
		return nil, errors.New("the name of this service is missing")
	}
	return &JupyterHub{user: u.JoinPath("user").String(), service: service, client: newClient()}, nil
}

// newClient makes a client that takes a token nowhere else.
func newClient() *http.Client {
	return &http.Client{
		Timeout:       verifyTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// String names the source.
func (h *JupyterHub) String() string { return "JupyterHub" }

// Takes takes all tokens but those that others make: a hub's are plain words.
func (h *JupyterHub) Takes(token string) bool { return !isJWT(token) }

// Verify shows the token to the hub.
func (h *JupyterHub) Verify(ctx context.Context, token string) (User, time.Time, error) {
	if !isWord(token) { // it would make a header of another kind
		return User{}, time.Time{}, fmt.Errorf("%w: it has characters that no token has", ErrUnknown)
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
		return User{}, time.Time{}, fmt.Errorf("%s answers what is no JSON: %w", h.user, err)
	}
	needed := "access:services!service=" + h.service
	switch {
	case model.Kind != "user":
		return User{}, time.Time{}, fmt.Errorf("%w: it is not a user's at the hub but that of a %q", ErrUnknown, model.Kind)
	case !slices.Contains(model.Scopes, needed) && !slices.Contains(model.Scopes, "access:services"):
		return User{}, time.Time{}, fmt.Errorf("%w: that of the hub's user %q has no scope %s", ErrUnknown, model.Name, needed)
	}
	return User{Name: model.Name, Groups: model.Groups}, time.Time{}, nil
}

// isWord reports whether a token has only the characters that RFC 6750 section 2.1 allows, and those of RFC 7235's token.
func isWord(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
