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
// That needs no token of the service. Has needs one.
type JupyterHub struct {
	user    string // URL
	users   string // URL
	service string
	token   string // of the service; "" for none
	client  *http.Client
}

// NewJupyterHub makes the source for a hub. api is the URL of its API, such as http://hub:8081/hub/api. service is this
// gateway's name in the hub's configuration. token is that service's; "" for none.
func NewJupyterHub(api, service, token string) (*JupyterHub, error) {
	u, err := url.Parse(api)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "", u.User != nil, u.RawQuery != "",
		u.Fragment != "":
		return nil, errors.New("it is not a URL like http://hub:8081/hub/api")
	case service == "":
		return nil, errors.New("the name of this service is missing")
	case !isWord(token):
		return nil, errors.New("the token of this service has characters that are not allowed in tokens")
	}
	return &JupyterHub{user: u.JoinPath("user").String(), users: u.JoinPath("users").String(), service: service,
		token: token, client: newClient()}, nil
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
	resp, err := h.ask(ctx, h.user, token)
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

// ask sends a GET request with a token. The caller closes the body.
func (h *JupyterHub) ask(ctx context.Context, address, token string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "token "+token)
	return h.client.Do(req)
}

// Has asks the hub for a user, with the token of this service. A token that may not read users is as good as none. The
// hub says itself that it has no user of the name: anything between may answer 404, too.
func (h *JupyterHub) Has(ctx context.Context, name string) (bool, error) {
	if h.token == "" {
		return false, ErrUnlisted
	}
	address := h.users + "/" + strings.ReplaceAll(url.PathEscape(name), ".", "%2E") // so that ".." stays a name
	resp, err := h.ask(ctx, address, h.token)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it matters
	var model struct {
		Status int    `json:"status"` // of an error
		Name   string `json:"name"`
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxHubAnswer)).Decode(&model)
	switch status := resp.StatusCode; {
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return false, fmt.Errorf("%w: the hub answers %s to its token, which needs the scope read:users:name", errRefused,
			resp.Status)
	case status == http.StatusOK && err == nil && model.Name != "":
		return model.Name == name, nil
	case status == http.StatusNotFound && err == nil && model.Status == status:
		return false, nil
	}
	return false, fmt.Errorf("%s answers %s, and not as a hub does", h.users, resp.Status)
}

// isWord reports whether a token has only printable ASCII characters and no space. RFC 6750 section 2.1 allows fewer.
func isWord(token string) bool {
	return !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}
