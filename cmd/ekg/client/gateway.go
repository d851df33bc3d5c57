package client

import (
	"bytes"
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

	"github.com/google/uuid"
)

// Bounds of the commands' requests to a gateway.
const (
	askTime       = 15 * time.Second // for an answer to begin
	maxKernelList = 64 << 20         // bytes
	maxRefusal    = 64 << 10
	shownKernels  = 10 // candidates that an error names
)

// gatewayClient sends requests to one gateway. It may be used concurrently. Method close ends its idle connections.
type gatewayClient struct {
	shown   string // its URL, without a token
	base    string // of every request, with a slash at the end
	token   string
	http    http.Client
	patient http.Client // the same without a bound of its own on the time until an answer begins
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
	patient := transport.Clone()
	patient.ResponseHeaderTimeout = 0
	client := func(t *http.Transport) http.Client {
		return http.Client{
			Transport: t,
			// A redirect must not receive the token.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &gatewayClient{shown: withoutQuery(address), base: u.String(), token: token, http: client(transport),
		patient: client(patient)}, nil
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

func (g *gatewayClient) close() {
	g.http.CloseIdleConnections()
	g.patient.CloseIdleConnections()
}

// refusedError is an answer that is no success.
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
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return g.send(ctx, &g.http, http.MethodGet, path, nil)
}

// change sends a request that takes as long as a gateway needs, up to changeTime. It sends body as JSON, unless body is
// nil, and decodes the answer into out, unless out is nil.
func (g *gatewayClient) change(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	resp, err := g.send(ctx, &g.patient, method, path, text)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxRefusal)).Decode(out); err != nil {
		return fmt.Errorf("%s: the answer: %w", g.shown, err)
	}
	return nil
}

// send sends a request with a body of JSON, if there is any. It returns the answer if it is a success.
func (g *gatewayClient) send(
	ctx context.Context, client *http.Client, method, path string, body []byte,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, g.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.shown, err)
	}
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	if g.token != "" {
		req.Header.Set("Authorization", "token "+g.token)
	}
	resp, err := client.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // without the URL, since it may hold a msg_id
		}
		return nil, fmt.Errorf("%s: %w", g.shown, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }() // only the necessary part was read
	var refusal struct{ Message string }
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err == nil {
		err = json.Unmarshal(b, &refusal)
	}
	if err != nil || refusal.Message == "" {
		refusal.Message = "the answer is " + resp.Status
	}
	return nil, fmt.Errorf("%s: %w", g.shown, &refusedError{resp.StatusCode, refusal.Message})
}

// listedKernel holds the fields of a kernel's model that commands need.
type listedKernel struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"execution_state"`
}

func (k listedKernel) String() string { return fmt.Sprintf("%s (%s, %s)", k.ID, k.Name, k.State) }

// kernels lists the gateway's kernels.
func (g *gatewayClient) kernels(ctx context.Context) (all []listedKernel, err error) {
	return all, g.read(ctx, kernelList.path, nil, "the list of kernels", &all)
}

// read decodes the answer to a GET into out. what names the answer in errors.
func (g *gatewayClient) read(ctx context.Context, path string, query url.Values, what string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	resp, err := g.get(ctx, path, query)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxKernelList)).Decode(out); err != nil {
		return fmt.Errorf("%s: %s: %w", g.shown, what, err)
	}
	return nil
}

// locate finds the gateway that has a kernel, and the kernel's id. The kernel is given by its id or the beginning of
// it.
func locate(ctx context.Context, gateways []*gatewayClient, kernel string) (*gatewayClient, string, error) {
	var errs []error
	var at, answered *gatewayClient
	var all, matching []listedKernel
	known := map[string]bool{} // gateways with one state directory have the same kernels
	for _, g := range gateways {
		kernels, err := g.kernels(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if answered == nil {
			answered = g
		}
		for _, k := range kernels {
			if k.ID == kernel {
				return g, k.ID, nil
			}
			if known[k.ID] {
				continue
			}
			known[k.ID] = true
			all = append(all, k)
			if strings.HasPrefix(k.ID, kernel) {
				at, matching = g, append(matching, k)
			}
		}
	}
	switch {
	case len(matching) > 1:
		return nil, "", fmt.Errorf("the ids of several kernels begin with %q: %s", kernel, nameKernels(matching))
	case len(errs) > 0: // the gateway that failed may have a matching kernel
		return nil, "", errs[0]
	case len(matching) == 1:
		return at, matching[0].ID, nil
	case validID(kernel):
		return answered, kernel, nil // the gateway may know how the kernel ended
	case len(all) == 0:
		return nil, "", fmt.Errorf("kernel %q was not found: no kernel exists", kernel)
	}
	return nil, "", fmt.Errorf("no kernel %q; the kernels are: %s", kernel, nameKernels(all))
}

func nameKernels(all []listedKernel) string {
	var names []string
	for _, k := range all[:min(len(all), shownKernels)] {
		names = append(names, k.String())
	}
	if n := len(all) - len(names); n > 0 {
		names = append(names, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// validID reports whether a text is a whole kernel id: a UUID in lower case with hyphens.
func validID(text string) bool {
	id, err := uuid.Parse(text)
	return err == nil && id.String() == text
}
