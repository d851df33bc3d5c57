//go:build e2e

package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// apiProxy stands between a gateway and the API server of deploy/devcluster. It causes faults that networks and API
// servers have now and then. Its fields are set before the first request.
type apiProxy struct {
	before func(*http.Request) bool  // sees a request; if it returns false, the request does not reach the API server
	after  func(*http.Response) bool // sees an answer; if it returns false, the answer does not reach the gateway
	late   time.Duration             // delay of all data of watches

	server *httptest.Server
}

// newAPIProxy starts a proxy on the node's address, with the API server's own certificate. A request without
// credentials is sent with those of the cluster's administrator.
func (c *cluster) newAPIProxy(t *testing.T) *apiProxy {
	t.Helper()
	c.needsOwn(t, "a proxy uses the keys of its API server")
	pair := func(name string) tls.Certificate {
		pair, err := tls.LoadX509KeyPair(c.pki(name+".crt"), c.pki(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	ca, err := os.ReadFile(c.pki("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	asIs := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	admin := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair("admin")}}}
	p := &apiProxy{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: nodeIP + ":6443"})
		},
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Header.Get("Authorization") != "" {
				return asIs.RoundTrip(r)
			}
			return admin.RoundTrip(r)
		}),
		FlushInterval: -1,
		ModifyResponse: func(r *http.Response) error {
			if p.after != nil && !p.after(r) {
				return fmt.Errorf("%s %s is not answered", r.Request.Method, r.Request.URL.Path)
			}
			if p.late > 0 && r.Request.URL.Query().Get("watch") != "" {
				r.Body = newLateBody(r.Body, p.late)
			}
			return nil
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 { // a server notices that its client has gone only after it has read the whole body
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if p.before != nil && !p.before(r) {
			http.Error(w, "the proxy has dropped the request", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	_ = p.server.Listener.Close()
	if p.server.Listener, err = net.Listen("tcp", net.JoinHostPort(nodeIP, "0")); err != nil {
		t.Fatal(err)
	}
	p.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair("apiserver")}}
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	t.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
		asIs.CloseIdleConnections()
		admin.CloseIdleConnections()
	})
	return p
}

// kubeconfig writes a kubeconfig that leads to the proxy.
func (p *apiProxy) kubeconfig(t *testing.T, c *cluster) string {
	t.Helper()
	return c.writeKubeconfig(t, p.server.URL, "{}")
}

// writeKubeconfig writes a kubeconfig with this server and this user. The server has a certificate of the cluster.
func (c *cluster) writeKubeconfig(t *testing.T, server, user string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q, "certificate-authority": %q}}],
		"users": [{"name": "x", "user": %s}], "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, server,
		c.pki("ca.crt"), user)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// nodeIP is the address of deploy/devcluster's node and API server.
const nodeIP = "10.233.0.1"

// pki returns the path of one of the cluster's keys and certificates.
func (c *cluster) pki(name string) string { return filepath.Join(filepath.Dir(c.kubeconfig), name) }

// gone waits until the client of a request no longer waits for an answer.
func gone(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(time.Minute):
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// lateBody delivers the data of a body with a delay.
type lateBody struct {
	body   io.Closer
	pieces chan piece
	closed chan struct{}
	close  func()
	rest   []byte
}

// piece is data, or the error that ended the body.
type piece struct {
	data []byte
	err  error
	due  time.Time
}

func newLateBody(body io.ReadCloser, late time.Duration) *lateBody {
	b := &lateBody{body: body, pieces: make(chan piece, 4096), closed: make(chan struct{})}
	b.close = sync.OnceFunc(func() { close(b.closed) })
	go func() { // it ends with the body, which the reader of lateBody closes
		for {
			buffer := make([]byte, 32<<10)
			n, err := body.Read(buffer)
			pieces := []piece{{data: buffer[:n], due: time.Now().Add(late)}}
			if err != nil {
				pieces = append(pieces, piece{err: err, due: pieces[0].due})
			}
			for _, p := range pieces {
				select {
				case b.pieces <- p:
				case <-b.closed:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return b
}

func (b *lateBody) Read(into []byte) (int, error) {
	for len(b.rest) == 0 {
		select {
		case p := <-b.pieces:
			select {
			case <-time.After(time.Until(p.due)):
			case <-b.closed:
				return 0, http.ErrBodyReadAfterClose
			}
			if b.rest = p.data; p.err != nil {
				return 0, p.err
			}
		case <-b.closed:
			return 0, http.ErrBodyReadAfterClose
		}
	}
	n := copy(into, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *lateBody) Close() error {
	b.close()
	return b.body.Close()
}
