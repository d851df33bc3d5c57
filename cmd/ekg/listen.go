package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// maxSocketPath is what fits into Linux's sockaddr_un, its final NUL not counted.
const maxSocketPath = 107

// listen opens the listener that the settings ask for.
func listen(ctx context.Context, s *settings) (net.Listener, error) {
	place := s.origins["listen"].place
	var config *tls.Config
	if s.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(s.tlsCert, s.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.origins["tls-cert"].place, err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	var l net.Listener
	var err error
	if path, ok := strings.CutPrefix(s.listen, "unix:"); ok {
		l, err = listenUnix(ctx, path)
	} else {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", place, err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	return l, nil
}

// listenUnix listens on a socket that only this user can connect to. A socket that a killed gateway has left is
// replaced, one that is in use is not.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and not a socket", path)
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
		// Linux gives the file the mode of its socket. Changed after bind it would be open to others for a moment.
		var err error
		cerr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(cerr, err)
	}}
	return lc.Listen(ctx, "unix", path)
}

// url returns the address people use, with a slash at the end.
func (s *settings) url(addr net.Addr) string {
	scheme := "http"
	if s.tlsCert != "" {
		scheme = "https"
	}
	host := addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok {
		if tcp.IP.IsUnspecified() {
			// Every address of the machine answers; this one is right on it.
			host = fmt.Sprintf("127.0.0.1:%d", tcp.Port)
		}
	} else {
		// The form that Jupyter Server prints.
		scheme += "+unix"
		host = url.QueryEscape(host)
	}
	base := strings.Trim(s.baseURL, "/")
	if base != "" {
		base += "/"
	}
	return scheme + "://" + host + "/" + base
}
