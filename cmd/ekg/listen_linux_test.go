package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/client"
	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

func TestServer_UnixSocket(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0)) // the worst case for a socket's mode
	dir, err := os.MkdirTemp("", "ekg")   // t.TempDir's paths are too long
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "s")
	// A killed gateway leaves such a socket.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	flags := map[string][]string{"listen": {"unix:" + path}, "no-auth": {"true"}}
	r := start(t, &fakeLauncher{}, flags)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	if code, body := r.get("/api/kernels", "", transport); code != http.StatusOK {
		t.Errorf("got %d %s", code, body)
	}
	if want := "ekg is ready at http+unix://" + url.QueryEscape(path) + "/\n"; r.stdout.String() != want {
		t.Errorf("printed %q, want %q", r.stdout, want)
	}
	// A socket in use is not replaced, and neither is another file with its name.
	s, err := settings.Load(sourcesOf(flags, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), s); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second gateway: got %v", err)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(t.Context(), s); err == nil || !strings.Contains(err.Error(), "exists and is not a socket") {
		t.Errorf("a file in its place: got %v", err)
	}
}

func TestServer_TLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, keyFile := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	for file, block := range map[string]*pem.Block{
		cert:    {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state := t.TempDir()
	r := start(t, &fakeLauncher{}, map[string][]string{
		"tls-cert": {cert}, "tls-key": {keyFile}, "token": {"x"}, "state-dir": {state},
	})
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	if code, body := r.get("/api/kernels", "x", transport); code != http.StatusOK || r.url.Scheme != "https" {
		t.Errorf("got %d %s at %s", code, body, r.url)
	}
	// Commands of the same user trust the certificate that the gateway started with, regardless of its names.
	running, err := client.RunningGateways(state, false)
	if err != nil || len(running) != 1 {
		t.Fatalf("got %v, %v", running, err)
	}
	for sum, ok := range map[string]bool{running[0].Certificate: true, strings.Repeat("0", 64): false, "": false} {
		asked := running[0]
		asked.Certificate = sum
		if _, _, err := asked.Ask(t.Context()); (err == nil) != ok {
			t.Errorf("with %q: %v", sum, err)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}
