package supervisor

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the supervisor's HTTP server.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 5 * time.Minute
	maxHeaderBytes    = 64 << 10
	shutdownLimit     = 2 * time.Second
)

// ErrTaken says that another supervisor runs this kernel.
var ErrTaken = errors.New("another supervisor holds the kernel's lock")

// Lock takes the kernel's lock for the life of this process, or returns ErrTaken. Closing the file releases it.
func Lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close() //nolint:errcheck // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrTaken
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

// Listen opens the listener that a Config asks for: a unix socket of mode 0600, replacing a stale one, or TCP with TLS.
func Listen(c *Config) (net.Listener, error) {
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
		cert, err := Certificate(c.TLSSeed, c.KernelID)
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

// Certificate makes the self-signed certificate of a kernel's supervisor from a seed of 32 bytes. Whoever knows the
// seed knows the public key beforehand and pins it; the rest of the certificate means nothing.
func Certificate(seed []byte, kernelID string) (tls.Certificate, error) {
	if len(seed) != ed25519.SeedSize {
		return tls.Certificate{}, fmt.Errorf("tls_seed has %d bytes, not %d", len(seed), ed25519.SeedSize)
	}
	key := ed25519.NewKeyFromSeed(seed)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: kernelID},
		DNSNames: []string{kernelID}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// PinnedTLS is the client's side of Certificate: it trusts the one key made from the seed, and nothing else.
func PinnedTLS(seed []byte, kernelID string) (*tls.Config, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("tls_seed has %d bytes, not %d", len(seed), ed25519.SeedSize)
	}
	want := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	return &tls.Config{
		ServerName: kernelID, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // the key is pinned below, which is stricter than a chain
		VerifyConnection: func(st tls.ConnectionState) error {
			if len(st.PeerCertificates) == 0 {
				return errors.New("the supervisor showed no certificate")
			}
			if got, ok := st.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !want.Equal(got) {
				return errors.New("the supervisor's key is not the one of this kernel")
			}
			return nil
		},
	}, nil
}

// Serve runs the supervisor's HTTP server on the listener while s runs its kernel, and returns when both have ended. In a
// pod it tells the child of the end last of all, and returns at once if the kernel has ended for good before.
func Serve(ctx context.Context, s *Supervisor, l net.Listener) error {
	if s.container == nil {
		return s.serve(ctx, l)
	}
	switch ended, err := s.alreadyEnded(); {
	case err != nil || ended:
		l.Close() //nolint:errcheck // nothing was said on it
		return err
	}
	if err := s.container.listen(); err != nil {
		l.Close() //nolint:errcheck // likewise
		return fmt.Errorf("child_socket: %w", err)
	}
	listening := make(chan struct{})
	go func() {
		defer close(listening)
		s.container.serve()
	}()
	err := s.serve(ctx, l)
	s.container.close(s.ending)
	<-listening
	return err
}

// serve is Serve once the kernel's container, if it has one of its own, can be heard.
func (s *Supervisor) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn)}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(l)
		cancel() // a kernel that nobody can reach is of no use
	}()
	s.Run(ctx)
	last, done := context.WithTimeout(context.Background(), shutdownLimit)
	defer done()
	err := srv.Shutdown(last)
	if err != nil {
		srv.Close() //nolint:errcheck // the error of Shutdown is the one that matters
	}
	s.log.close()
	if serr := <-served; err == nil && !errors.Is(serr, http.ErrServerClosed) {
		err = serr
	}
	return err
}
