// Package listener opens the socket on which a supervisor serves (Open), and ends the program when a handler panics
// (EndOnPanic). It starts no goroutine.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/elastic-kernel-gateway/ekg/launcher/supervisor/api"
)

// Open opens the listener that a Config asks for: a unix socket of mode 0600, replacing a stale one, or TCP with TLS.
func Open(c *api.Config) (net.Listener, error) {
	scheme, address, _ := strings.Cut(c.Listen, ":")
	switch scheme {
	case "unix":
		if err := os.Remove(address); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		// Linux gives the file the mode of its socket, so it is right from the first moment. The umask would do the same,
		// but it belongs to the whole process.
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			cerr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) })
			return errors.Join(cerr, err)
		}}
		return lc.Listen(context.Background(), "unix", address)
	case "tcp":
		if c.Token == "" {
			return nil, errors.New("token is missing: a supervisor on tcp demands one")
		}
		cert, err := api.Certificate(c.TLSSeed, c.KernelID)
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13,
			NextProtos: []string{"http/1.1"}}), nil
	}
	return nil, fmt.Errorf("listen is %q, not unix:/path or tcp:host:port", c.Listen)
}
