package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/cmd/ekg/settings"
)

// listen opens the listener of the settings.
func listen(ctx context.Context, s *settings.Settings) (net.Listener, error) {
	place := s.Place("listen")
	var config *tls.Config
	if s.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Place("tls-cert"), err)
		}
		config = &tls.Config{
			Certificates: []tls.Certificate{cert},
			MinVersion:   tls.VersionTLS12,
			NextProtos:   []string{"http/1.1"},
		}
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(s.Listen, "unix:"); ok {
		l, err = listenUnix(ctx, path)
	} else {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// listenUnix listens on a socket that only this user can connect to. It replaces the socket of a killed gateway, but
// not one in use.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s exists and is not a socket", path)
	default:
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, syscall.EADDRINUSE), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		// On Linux the file gets its socket's mode. A chmod after bind would leave it open to others for a moment.
		var err error
		cerr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(cerr, err)
	}}
	return lc.Listen(ctx, "unix", path)
}

// gatewayAddress returns the URL for users, with a slash at the end.
func gatewayAddress(s *settings.Settings, addr net.Addr) string {
	scheme := "http"
	if s.TLSCert != "" {
		scheme = "https"
	}
	host := addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok {
		if tcp.IP.IsUnspecified() {
			// All addresses of the machine answer; this one is valid on the machine itself.
			host = fmt.Sprintf("127.0.0.1:%d", tcp.Port)
		}
	} else {
		// Jupyter Server prints the same form.
		scheme += "+unix"
		host = url.QueryEscape(host)
	}
	base := strings.Trim(s.Gateway.BaseURL, "/")
	if base != "" {
		base += "/"
	}
	return scheme + "://" + host + "/" + base
}

// certificateSum returns the certificate's SHA-256 for a gateway's file, or "" for a gateway without TLS.
func certificateSum(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	block, rest := pem.Decode(b)
	for block != nil && block.Type != "CERTIFICATE" { // a key may precede it
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return "", fmt.Errorf("%s holds no certificate", file)
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:]), nil
}
