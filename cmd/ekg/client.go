package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Bounds of the commands' requests to a gateway.
const (
	askTime       = 15 * time.Second // for an answer to begin
	maxKernelList = 64 << 20         // bytes
	maxRefusal    = 64 << 10
)

// gatewayClient sends requests to one gateway. It may be used concurrently. Method close ends its idle connections.
type gatewayClient struct {
	shown string // its URL, without a token
	base  string // of every request, with a slash at the end
	token string
	http  http.Client
}

// newGatewayClient returns a client for a URL as `ekg serve` prints it. The scheme is http or https; with +unix, the
// host is a socket's path. A token in the URL is used if the parameter is "". Certificate is the SHA-256 of the only
// trusted certificate, or "" for those that the system trusts.
func newGatewayClient(address, token, certificate string) (*gatewayClient, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	scheme, onSocket := strings.CutSuffix(scheme, "+unix")
	if !ok || scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("%q is not a URL like http://host:port/", withoutQuery(address))
	}
	socket := ""
	if onSocket { // net/url accepts no slashes in a host
		host, path, _ := strings.Cut(rest, "/")
		var err error
		if socket, err = url.QueryUnescape(host); err != nil {
			return nil, fmt.Errorf("%q names no socket", withoutQuery(address))
		}
		rest = "localhost/" + path
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("%q is not a URL like http://host:port/", withoutQuery(address))
	}
	if token == "" {
		token = u.Query().Get("token")
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	u.Path = strings.TrimRight(u.Path, "/") + "/"
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		ResponseHeaderTimeout: askTime,
		TLSHandshakeTimeout:   askTime,
		DialContext:           (&net.Dialer{Timeout: askTime}).DialContext,
		IdleConnTimeout:       time.Second,
	}
	if onSocket {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: askTime}).DialContext(ctx, "unix", socket)
		}
	}
	if certificate != "" {
		transport.TLSClientConfig = pinned(certificate)
	}
	return &gatewayClient{shown: withoutQuery(address), base: u.String(), token: token, http: http.Client{
		Transport: transport,
		// A redirect must not receive the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func withoutQuery(address string) string {
	address, _, _ = strings.Cut(address, "?")
	return address
}

// pinned trusts one certificate, regardless of its names.
func pinned(sum string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // the whole certificate is compared below
		VerifyConnection: func(st tls.ConnectionState) error {
			if len(st.PeerCertificates) > 0 {
				got := sha256.Sum256(st.PeerCertificates[0].Raw)
				if hex.EncodeToString(got[:]) == sum {
					return nil
				}
			}
			return errors.New("the gateway shows another certificate than the one it was started with")
		},
	}
}

func (g *gatewayClient) close() { g.http.CloseIdleConnections() }

// refusedError is an answer with a status other than 200.
type refusedError struct {
	status  int
	message string
}

func (e *refusedError) Error() string { return e.message }

// final reports whether a repeated request would fail, too.
func (e *refusedError) final() bool {
	return e.status >= 400 && e.status < 500 && e.status != http.StatusRequestTimeout &&
		e.status != http.StatusTooManyRequests
}

// get sends a request. It returns the answer if the status is 200; the caller closes its body. An error names the
// gateway.
func (g *gatewayClient) get(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	u := g.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.shown, err)
	}
	if g.token != "" {
		req.Header.Set("Authorization", "token "+g.token)
	}
	resp, err := g.http.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, since it may hold a msg_id
		}
		return nil, fmt.Errorf("%s: %w", g.shown, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }() // only the necessary part was read
	var body struct{ Message string }
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	if err != nil || body.Message == "" {
		body.Message = "the answer is " + resp.Status
	}
	return nil, fmt.Errorf("%s: %w", g.shown, &refusedError{resp.StatusCode, body.Message})
}

// listedKernel holds the fields of a kernel's model that commands need.
type listedKernel struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"execution_state"`
}

func (k listedKernel) String() string { return fmt.Sprintf("%s (%s, %s)", k.ID, k.Name, k.State) }

// kernels lists the gateway's kernels.
func (g *gatewayClient) kernels(ctx context.Context) ([]listedKernel, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := g.get(ctx, "api/kernels", nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	var all []listedKernel
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxKernelList)).Decode(&all); err != nil {
		return nil, fmt.Errorf("%s: the list of kernels: %w", g.shown, err)
	}
	return all, nil
}
